"""`bireme list` and `status`: a job is one job, however often it was started, and all its passes count."""

from __future__ import annotations

import json
import os
import socket
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from click.testing import CliRunner
from msgspec.structs import replace
from tests.unit.cli.conftest import Leave, closed

from bireme.api import local
from bireme.cli.jobs.listing import list_, logs, status
from bireme.core.errors import UsageError
from bireme.core.processes import birth_of
from bireme.job.coordination import messages
from bireme.job.coordination.messages import Address
from bireme.job.node.discovery import SharedDirectory
from bireme.job.node.log_budget import rotate
from bireme.job.output import logs as output_logs
from bireme.job.status import JobStatus
from bireme.local import registry
from bireme.spec.model import Logs


def run(command: Any, *arguments: object) -> str:
    done = CliRunner().invoke(command, [str(a) for a in arguments], catch_exceptions=False)
    assert done.exit_code == 0
    return done.output


def record(output: Path, state: registry.State, started: float, **more: Any) -> registry.RunRecord:
    made, _ = registry.new_run("small", "job.yaml", str(output))
    made = msgspec.structs.replace(made, state=state, started=started, **more)
    registry.save(made)
    return made


def test_a_run_that_died_shows_its_passes_and_how_to_resume(leave: Leave) -> None:
    output = leave(done=3)
    made = record(output, "running", 1.0, birth="another boot/1")
    lines = run(list_).splitlines()[1:]
    assert "died" in lines[0] and "3/4 passes" in lines[0]
    assert lines[1].strip() == f"continue with `bireme resume {output}`"
    shown = run(status, made.id)
    assert "died (its process is gone)" in shown and "3/4 passes" in shown
    assert [line[:8] for line in shown.splitlines() if line.startswith("pass ")] == ["pass   0", "pass   1", "pass   2"]
    assert f"continue with `bireme resume {output}`" in shown


def test_a_killed_and_resumed_job_is_listed_once(leave: Leave) -> None:
    output = leave(done=4)
    record(output, "died", 1.0)
    last = JobStatus(first_pass=0, passes=4, saved=3, passes_done=(closed(3),))
    record(output, "finished", 2.0, status=last)
    lines = run(list_).splitlines()[1:]
    assert len(lines) == 1
    assert "finished" in lines[0] and "4/4 passes" in lines[0]
    assert [line.split()[1] for line in run(list_, "--all").splitlines()[1:]] == ["finished", "died"]
    assert run(status).count("\npass ") == 4


def test_a_resume_that_failed_takes_no_pass_away(leave: Leave) -> None:
    output = leave(done=2)
    record(output, "died", 1.0)
    record(output, "failed", 2.0, reason="no snapshot can be used")
    assert "2/4 passes" in run(list_)
    shown = run(status)
    assert "failed (no snapshot can be used)" in shown and "2/4 passes" in shown
    assert "continue with" in shown


def test_a_list_is_as_long_as_asked_for(leave: Leave) -> None:
    for number in range(5):
        record(leave(f"out-{number}", done=4), "finished", float(number))
    header, *rows, more = run(list_, "--limit", 2).splitlines()
    assert header.split() == ["job", "state", "started", "progress", "output"]
    assert [line.rsplit("/", 1)[1] for line in rows] == ["out-4", "out-3"]
    assert more == "(3 more; `--limit 5` shows them)"
    assert len(run(list_).splitlines()) == 6


def test_a_long_list_ends_with_how_many_more_there_are(leave: Leave) -> None:
    for number in range(22):
        record(leave(f"out-{number}"), "finished", float(number))
    assert run(list_).splitlines()[21:] == ["(2 more; `--limit 22` shows them)"]
    assert len(json.loads(run(list_, "--json"))["jobs"]) == 22


def test_a_job_whose_output_is_gone_is_shown_with_all_only(leave: Leave, tmp_path: Path) -> None:
    record(leave(done=4), "finished", 1.0)
    record(tmp_path / "gone", "finished", 2.0)
    record(tmp_path / "going", "running", 3.0, pid=os.getpid(), birth=birth_of(os.getpid()))
    shown = run(list_)
    assert "/going\n" in shown and "/gone" not in shown
    assert shown.endswith("(1 job hidden, as the output directory is gone; `--all` shows them)\n")
    assert "/gone (gone)\n" in run(list_, "--all")


def test_an_output_that_is_gone_leaves_what_the_run_said_last(tmp_path: Path) -> None:
    last = JobStatus(first_pass=1, passes=3, saved=2, passes_done=(closed(1), closed(2)))
    record(tmp_path / "gone", "cancelled", 1.0, status=last)
    assert "3/4 passes" in run(list_, "--all")


def test_json_has_the_passes_of_the_job(leave: Leave) -> None:
    record(leave(done=2), "cancelled", 1.0)
    for answer in (json.loads(run(list_, "--json"))["jobs"][0], json.loads(run(status, "--json"))):
        assert (answer["passes_done"], answer["passes"], answer["state"]) == (2, 4, "cancelled")


def test_nothing_to_list_names_the_demo() -> None:
    assert run(list_) == "no job has run here yet; try `bireme demo`\n"


@pytest.fixture
def stopped(monkeypatch: pytest.MonkeyPatch) -> Iterator[Address]:
    """The address of a stopped process: connections are made, and no answer comes."""
    monkeypatch.setattr(messages, "ASK_TIMEOUT_S", 0.05)
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield Address(host="127.0.0.1", ports=(server.getsockname()[1],))


def as_json(value: JobStatus) -> Any:
    return json.loads(msgspec.json.encode(value))


def announce(made: registry.RunRecord, address: Address) -> None:
    SharedDirectory(registry.runs_directory() / made.id / "meet", 1).announce(0, address)


def test_a_silent_coordinator_is_named_with_what_is_known(leave: Leave, stopped: Address) -> None:
    output = leave(done=2)
    made = record(output, "running", 10.0)
    announce(made, stopped)
    shown = run(status)
    assert "small: running" in shown and "2/4 passes" in shown
    assert shown.count("\npass ") == 2
    assert "waits for pserver 0 (the coordinator), which does not answer\n" in shown
    assert json.loads(run(status, "--json"))["status"]["phase"] == "starting"
    views = [{"event": "view", "unix": 5.0}, {"event": "view", "unix": 15.0}]
    for rows, phase in ((views[:1], "starting"), (views, "training")):
        text = "".join(json.dumps(row) + "\n" for row in rows) + '{"event": "vi'
        (output / "metrics.jsonl").write_text(text)
        assert json.loads(run(status, "--json"))["status"]["phase"] == phase, "this run began at 10"
    assert "2/4 passes" in run(list_)


def test_what_is_wrong_though_training_continues_is_reported(leave: Leave, stopped: Address) -> None:
    warning = "no snapshot since round 7: pserver 1: the disk is full"
    made = record(leave(done=1), "running", 10.0, status=JobStatus(phase="training", warnings=(warning,)))
    announce(made, stopped)
    assert f"\nwarning: {warning}\n" in run(status)
    assert json.loads(run(status, "--json"))["status"]["warnings"] == [warning]


def test_a_running_job_says_how_long_it_will_take(leave: Leave, monkeypatch: pytest.MonkeyPatch) -> None:
    record(leave(done=2, passes=100), "running", 1.0, pid=os.getpid(), birth=birth_of(os.getpid()))
    last = JobStatus(phase="training", passes=100, saved=1, passes_done=(closed(0), closed(1)))
    monkeypatch.setattr(local, "status_of", lambda _: last)
    assert run(status).splitlines()[0].endswith(" ago, 2/100 passes, about 49 s left")


def test_a_job_is_watched_until_it_is_over(leave: Leave, monkeypatch: pytest.MonkeyPatch) -> None:
    made = record(leave(done=2), "running", 1.0, pid=os.getpid(), birth=birth_of(os.getpid()))
    monkeypatch.setattr(local, "POLL_S", 0.0)

    def finished_status(_: registry.RunRecord) -> JobStatus:
        registry.save(msgspec.structs.replace(made, state="finished"))
        return JobStatus(phase="training", passes=4, passes_done=(closed(0),))

    monkeypatch.setattr(local, "status_of", finished_status)
    lines = run(status, "--watch").splitlines()
    assert (lines[0], lines[1][:8]) == ("training", "pass   0") and lines[2].startswith("small: finished")
    assert [line[:8] for line in lines if line.startswith("pass ")] == ["pass   0", "pass   1"], "each once"


def test_watching_has_no_single_object_to_print(leave: Leave) -> None:
    record(leave(), "finished", 1.0)
    with pytest.raises(UsageError, match="--watch and --json do not go together"):
        run(status, "--watch", "--json")


def test_the_last_status_is_kept_when_there_is_no_answer(leave: Leave, stopped: Address) -> None:
    output = leave(done=1)
    last = JobStatus(phase="training", round=77, waits_for=("trainer 1",), passes=4)
    made = record(output, "running", 10.0, status=last)
    announce(made, stopped)
    answer = json.loads(run(status, "--json"))["status"]
    assert answer == as_json(replace(last, waits_for=("pserver 0 (the coordinator), which does not answer",)))
    (output / "status.json").write_text(json.dumps({"phase": "finished", "waits_for": []}))
    assert json.loads(run(status, "--json"))["status"] == as_json(JobStatus(phase="finished"))


def test_a_rotated_log_is_followed_from_its_new_beginning(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = tmp_path / "train.log"
    log.write_text("old\n" * 300_000)

    def rotate_and_append() -> None:
        rotate(log, Logs(max_mb=1, keep=1))
        append_to(log, "first\nhal")

    turns: Iterator[Callable[[], object]] = iter(
        [
            lambda: append_to(log, "last\n"),
            rotate_and_append,
            lambda: append_to(log, "f\n"),
        ]
    )
    monkeypatch.setattr(time, "sleep", lambda _: next(turns)())
    left = iter([False, False, True])
    wanted = output_logs.LogFilter(last=0, is_following=True)
    followed = output_logs.followed({"node_0/train.log": [log]}, wanted, lambda: next(left))
    assert [line.text for line in followed] == ["last", "first", "half"], "and that is all when the job is over"


def test_logs_of_all_nodes_come_in_the_order_of_time(leave: Leave) -> None:
    output = leave()
    record(output, "finished", 1.0)
    for node, seconds in ((0, (1, 4)), (1, (2, 3))):
        (output / f"node_{node}").mkdir()
        lines = "".join(f"I1118 20:46:0{s}.000000 1 a.py:1] said at {s}\n  more of {s}\n" for s in seconds)
        (output / f"node_{node}/train.log").write_text(lines)
    said = [line.split()[-1] for line in run(logs).splitlines()]
    assert said == ["1", "1", "2", "2", "3", "3", "4", "4"]
    assert [line.split()[-1] for line in run(logs, "-n", 1).splitlines()] == ["3", "4"]


def test_lines_of_a_rotated_log_come_before_those_of_the_new_one(leave: Leave) -> None:
    output = leave()
    record(output, "finished", 1.0)
    (output / "node_0").mkdir()
    for name, second in (("train.log.1", 1), ("train.log", 2)):
        (output / "node_0" / name).write_text(f"I1118 20:46:0{second}.000000 1 a.py:1] said at {second}\n")
    assert [line.split()[-1] for line in run(logs).splitlines()] == ["1", "2"]
    assert [line.split()[-1] for line in run(logs, "-n", 1).splitlines()] == ["2"]


def append_to(path: Path, text: str) -> None:
    with path.open("a") as f:
        f.write(text)
