"""Jobs from start to end and through every way of stopping: no process is left behind, finished work stays."""

from __future__ import annotations

import fcntl
import json
import os
import re
import signal
import socket
import struct
import subprocess
import sys
import termios
from contextlib import suppress
from pathlib import Path

import pytest

from bireme.core.processes import is_alive
from tests.e2e.conftest import ONE, Cli, assert_ledger_is_exact, pids_of, processes_mentioning, wait_until

LONG = ("--passes", 99_999)
"""More than any machine does while a test looks on."""


def nothing_left(job: Path) -> bool:
    return not processes_mentioning(str(job.parent))


def passes_saved(output: Path) -> int:
    return len(list(output.glob("pass-*/done")))


@pytest.fixture
def running(cli: Cli, job: Path) -> subprocess.Popen[str]:
    """A long job that has finished its first pass."""
    process = cli.start("train", job, *LONG)
    wait_until((job.parent / "output" / "pass-00000").is_dir, "the first pass is saved")
    return process


def test_the_output_tree_is_that_of_the_original(cli: Cli, job: Path) -> None:
    done = cli.run("train", job)
    assert done.code == 0, done.err
    output = job.parent / "output"
    assert {p.name for p in output.iterdir()} == {
        "node_0", "node_1", "pass-00000", "pass-00001",
        "job.json", "status.json", "metrics.jsonl", "ledger.jsonl", "snapshots", "incarnations",
    }  # fmt: skip
    assert {p.name for p in (output / "node_1").iterdir()} == {"train.log", "server.log", "node.log"}
    model = output / "pass-00001"
    assert {p.name for p in model.iterdir()} == {
        "___fc_layer_0__.w0", "___fc_layer_0__.wbias", "path.txt", "trainer_config.lr.py",
        "model.safetensors", "metrics.json", "done",
    }  # fmt: skip
    assert (model / "path.txt").read_text() == "trainer_config.lr.py"
    assert (model / "___fc_layer_0__.wbias").read_bytes()[:16] == struct.pack("<iIQ", 0, 4, 2)
    log = (output / "node_0" / "train.log").read_text()
    prefix = r"^I\d{4} \d\d:\d\d:\d\d\.\d{6} +\d+ \w+\.py:\d+\] +"
    line = r"Pass=1 Batch=2 samples=401 AvgCost=[\d.e-]+ Eval: classification_error_evaluator=[\d.e-]+$"
    assert re.search(prefix + line, log, re.MULTILINE)
    assert re.search(r"\]  Test samples=120 cost=[\d.]+ Eval: classification_error_evaluator=", log)
    events = [json.loads(line) for line in (output / "metrics.jsonl").read_text().splitlines()]
    assert [e["pass_id"] for e in events if e["event"] == "pass"] == [0, 1]
    shown = cli.run("model", "hash", model)
    assert re.fullmatch(r"[0-9a-f]{64}\n", shown.out)
    assert nothing_left(job)


def test_a_short_log_period_gives_the_originals_batch_lines(cli: Cli, job: Path) -> None:
    job.write_text(job.read_text() + "log_period: 1\n")
    assert cli.run("train", job, "--passes", 1, *ONE).code == 0
    log = (job.parent / "output" / "node_0" / "train.log").read_text()
    assert re.search(
        r"\]  Batch=1 samples=384 AvgCost=\S+ CurrentCost=\S+ Eval: \S+=\S+  CurrentEval: \S+=\S+$", log, re.MULTILINE
    )


def test_logs_keep_to_the_budget_that_the_job_file_gives_them(cli: Cli, job: Path) -> None:
    job.write_text(job.read_text() + "log_period: 1\nlogs: {max_mb: 0.002, keep: 1}\n")
    process = cli.start("train", job, *LONG, *ONE)
    node = job.parent / "output" / "node_0"
    first_lines: set[str] = set()

    def has_moved_aside_three_times() -> bool:
        moved = node / "train.log.1"
        first_lines.update(moved.read_text().splitlines()[:1] if moved.is_file() else [])
        return len(first_lines) >= 3 or process.poll() is not None

    wait_until(has_moved_aside_three_times, "the log is moved aside for the third time")
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=30)
    assert process.returncode == 130, err
    assert {p.name for p in node.glob("train.log*")} == {"train.log", "train.log.1"}
    assert (node / "train.log.1").stat().st_size > 2000, "it was moved before it was full"
    kept = (node / "train.log.1").read_text() + (node / "train.log").read_text()
    assert "Pass=0 " not in kept, "what is older is deleted"
    assert f"Pass={passes_saved(job.parent / 'output') - 1} " in kept, "what is new is there"


def test_ctrl_c_stops_cleanly_and_says_how_to_resume(cli: Cli, job: Path, running: subprocess.Popen[str]) -> None:
    running.send_signal(signal.SIGINT)
    _, err = running.communicate(timeout=30)
    assert running.returncode == 130, err
    assert nothing_left(job)
    found = re.search(r"resume (\S+)`", err)
    assert found, err
    output = Path(found[1])
    saved = passes_saved(output)
    went_on = cli.run("resume", output, "--passes", saved + 1)
    assert went_on.code == 0, went_on.err
    assert passes_saved(output) == saved + 1


def test_ctrl_c_before_the_job_has_begun_leaves_no_process(cli: Cli, job: Path) -> None:
    slow = job.parent / "quick_start" / "dataprovider_bow.py"
    slow.write_text(
        slow.read_text().replace("label, text =", "__import__('time').sleep(0.5)\n            label, text =")
    )
    process = cli.start("train", job)
    log = job.parent / "output" / "node_1" / "server.log"
    wait_until(lambda: log.is_file() and "Starting parameterServer" in log.read_text(), "pserver 1 listens")
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=30)
    assert process.returncode == 130, err
    assert "no snapshot was made yet" in err
    assert nothing_left(job)


def test_a_node_asked_to_leave_comes_back_and_the_job_continues(cli: Cli, job: Path) -> None:
    output = job.parent / "output"
    process = cli.start("train", job, "--passes", 100, *ONE)
    wait_until((output / "pass-00000").is_dir, "the first pass is saved")
    os.kill(pids_of(output)["node 0"], signal.SIGTERM)
    out, err = process.communicate(timeout=60)
    assert process.returncode == 0, (out, err)
    assert "the coordinator was lost" in (output / "metrics.jsonl").read_text()
    assert_ledger_is_exact(output, passes=100)
    assert nothing_left(job)


def test_ctrl_c_twice_stops_at_once(job: Path, running: subprocess.Popen[str]) -> None:
    running.send_signal(signal.SIGINT)
    running.send_signal(signal.SIGINT)
    running.communicate(timeout=30)
    assert running.returncode == 130
    assert nothing_left(job)


@pytest.mark.slow  # test_sparse.py says the same of a job with tables
@pytest.mark.parametrize("name", ["pserver 1", "trainer 0"])
def test_without_restarts_a_killed_process_is_named(cli: Cli, job: Path, name: str) -> None:
    job.write_text(job.read_text() + "restarts: {limit: 0}\n")
    output = job.parent / "output"
    process = cli.start("train", job, *LONG)
    wait_until((output / "pass-00000" / "done").is_file, "the first pass is saved")
    os.kill(pids_of(output)[name], signal.SIGKILL)
    _, err = process.communicate(timeout=30)
    assert process.returncode == 13, err
    assert f"{name} was killed by SIGKILL" in err
    assert nothing_left(job)
    assert (output / "pass-00000" / "done").is_file()


@pytest.mark.slow  # test_resume.py and test_sparse.py look for leftover processes, too
def test_no_process_outlives_a_killed_runner(job: Path, running: subprocess.Popen[str]) -> None:
    running.kill()
    running.communicate(timeout=30)
    wait_until(lambda: nothing_left(job), "all processes are gone", 10)


def test_a_job_is_seen_and_stopped_from_another_terminal(cli: Cli, job: Path, running: subprocess.Popen[str]) -> None:
    listed = cli.run("list", "--json").json["jobs"]
    assert [(j["name"], j["state"]) for j in listed] == [("small", "running")]
    status = cli.run("status", "small", "--json").json["status"]
    assert status["phase"] == "training"
    assert all(is_alive(t["pid"]) for t in status["trainers"])
    assert "trainer 1 (pid" in cli.run("status").out
    assert "node_1/server.log: I" in cli.run("logs", "--node", 1, "--role", "pserver").out
    busy = cli.run("train", job, *LONG)
    assert busy.code == 7 and "belongs to a job that runs now" in busy.err
    assert cli.run("cancel", "small").out == "small: cancelled\n"
    running.communicate(timeout=30)
    assert running.returncode == 130
    assert nothing_left(job)
    assert cli.run("list", "--json").json["jobs"][0]["state"] == "cancelled"
    assert cli.run("cancel").code == 2


@pytest.mark.slow
def test_a_job_under_nohup_survives_the_end_of_its_terminal(cli: Cli, job: Path) -> None:
    ignoring = ("sh", "-c", 'trap "" HUP; exec "$@"', "sh", sys.executable, "-m", "bireme", "train", str(job))
    process = subprocess.Popen(
        [*ignoring, "--passes", "40"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=cli.environment()
    )
    wait_until((job.parent / "output" / "pass-00000").is_dir, "the first pass is saved")
    process.send_signal(signal.SIGHUP)
    out, err = process.communicate(timeout=120)
    assert process.returncode == 0, (out, err)
    assert "pass  39  cost" in out


class Terminal:
    """A terminal of its own in which `bireme` runs, as in a window: closing it hangs up."""

    def __init__(self, cli: Cli, *args: object) -> None:
        self._master, slave = os.openpty()
        os.set_blocking(self._master, False)
        self.process = subprocess.Popen(
            [sys.executable, "-m", "bireme", *map(str, args)],
            stdin=slave,
            stdout=slave,
            stderr=slave,
            env=cli.environment(TERM="xterm"),
            start_new_session=True,
            preexec_fn=self._take,
        )
        os.close(slave)

    @staticmethod
    def _take() -> None:
        fcntl.ioctl(0, termios.TIOCSCTTY, 0)
        signal.signal(signal.SIGHUP, signal.SIG_DFL)  # these tests may run under nohup

    def is_past(self, claim: Path) -> bool:
        """Whether a file is there; what is shown meanwhile is read, as by a person."""
        with suppress(OSError):  # nothing more, or all processes have ended
            while os.read(self._master, 1 << 16):
                pass
        return claim.exists() or self.process.poll() is not None

    def close(self) -> None:
        os.close(self._master)


def test_a_job_outlives_its_terminal_until_another_stops_it(cli: Cli, job: Path) -> None:
    output = job.parent / "output"
    terminal = Terminal(cli, "train", job, *LONG, *ONE)
    wait_until(lambda: terminal.is_past(output / "pass-00000" / "done"), "the first pass is saved")
    terminal.close()
    later = output / f"pass-{passes_saved(output) + 5:05d}" / "done"
    wait_until(lambda: later.is_file() or terminal.process.poll() is not None, "five more passes are saved")
    assert terminal.process.poll() is None, "it ended with its terminal"
    assert "small: running" in cli.run("status").out
    assert cli.run("cancel").out == "small: cancelled\n"
    assert terminal.process.wait(timeout=30) == 130
    assert nothing_left(job)
    assert cli.run("resume", output, "--passes", passes_saved(output) + 1).code == 0


def test_a_job_whose_terminal_is_closed_runs_to_its_end(cli: Cli, job: Path) -> None:
    output = job.parent / "output"
    terminal = Terminal(cli, "train", job, "--passes", 40, *ONE)
    wait_until(lambda: terminal.is_past(output / "pass-00000"), "the first pass is saved")
    terminal.close()
    assert terminal.process.wait(timeout=120) == 0
    assert_ledger_is_exact(output, passes=40)
    assert cli.run("list", "--json").json["jobs"][0]["state"] == "finished"


def test_a_job_that_ignores_ctrl_c_can_be_stopped_at_once(cli: Cli, job: Path) -> None:
    ignoring = ("sh", "-c", 'trap "" INT; exec "$@"', "sh", sys.executable, "-m", "bireme", "train", str(job))
    process = subprocess.Popen([*ignoring, *map(str, LONG), *ONE], stdout=subprocess.DEVNULL, env=cli.environment())
    wait_until((job.parent / "output" / "pass-00000").is_dir, "the first pass is saved")
    process.send_signal(signal.SIGINT)
    assert cli.run("cancel", "--now").out == "small: cancelled\n"
    assert process.wait(timeout=30) == 130
    assert nothing_left(job)


def test_two_jobs_at_once_do_not_disturb_each_other(cli: Cli, job: Path) -> None:
    runs = [cli.start("train", job, "--output", job.parent / name, "--json") for name in ("one", "two")]
    results = [json.loads(run.communicate(timeout=120)[0]) for run in runs]
    assert results[0]["hash"] == results[1]["hash"]


def test_the_dry_run_prints_the_plan_and_starts_nothing(cli: Cli, job: Path) -> None:
    done = cli.run("train", job, "--trainers", 2, "--ports-num", 2, "--dry-run", "--json")
    plan = done.json
    assert [t["shards"] for t in plan["trainers"]] == [[0, 1], [2]]
    held = [h for p in plan["pservers"] for lane in p["lanes"] for h in lane["holds"]]
    assert sum(h["to"] - h["from"] for h in held) == sum(p["values"] for p in plan["parameters"]) == 1501 * 2 + 2
    assert plan["bytes_per_round"] > 4 * (1501 * 2 + 2) * 4
    assert "trainer 0 reads shard 0, 1" in cli.run("train", job, "--trainers", 2, "--dry-run").out
    assert not (job.parent / "output").exists()


def test_a_model_predicts_tests_shows_and_exports(cli: Cli, job: Path) -> None:
    assert cli.run("train", job, *ONE).code == 0
    model = job.parent / "output" / "pass-00001"
    lines = cli.run("predict", model).out.splitlines()
    assert len(lines) == 8
    assert all(re.fullmatch(r"[01];[\d.e-]+ [\d.e-]+", line) for line in lines), lines
    (job.parent / "mine.txt").write_text("a truly wonderful camera\n")
    assert len(cli.run("predict", model, job.parent / "mine.txt", "--json").json["predictions"]) == 1
    measured = cli.run("test", model, "--json").json
    metrics = json.loads((model / "metrics.json").read_text())
    assert (measured["samples"], measured["cost"]) == (120, metrics["test_cost"])
    assert "___fc_layer_0__.w0" in cli.run("model", "show", model).out
    same = cli.run("model", "diff", model, model)
    other = cli.run("model", "diff", job.parent / "output" / "pass-00000", model)
    assert (same.code, other.code) == (0, 1)
    assert "values differ" in other.out
    assert cli.run("model", "export", model, job.parent / "model.npz").code == 0
    assert (job.parent / "model.npz").stat().st_size > 4 * 3002


def free_block(count: int) -> int:
    """A port after which `count - 1` more are free."""
    for port in range(21000, 60000, 16):
        probes = [socket.socket() for _ in range(count)]
        try:
            for i, probe in enumerate(probes):
                probe.bind(("127.0.0.1", port + i))
            return port
        except OSError:
            continue
        finally:
            for probe in probes:
                probe.close()
    raise AssertionError("no free ports")


def test_a_cluster_started_by_hand_trains_the_same_model(cli: Cli, job: Path, tmp_path: Path) -> None:
    trained = cli.run("train", job, "--output", tmp_path / "runner", "--json", *ONE).json
    ports = free_block(4)
    pservers = [
        cli.start("pserver", f"--port={ports + 2 * i}", "--ports_num=2", "--num_gradient_servers=3", "--nics=lo")
        for i in range(2)
    ]
    trainers = []
    for i in range(3):
        here = tmp_path / f"machine-{i}"
        here.mkdir()
        for name in ("trainer_config.lr.py", "dataprovider_bow.py"):
            (here / name).symlink_to(job.parent / "quick_start" / name)
        (here / "data").symlink_to(job.parent / str(i) / "data")
        flags = [
            "--config=trainer_config.lr.py", f"--pservers=127.0.0.1:{ports},127.0.0.1:{ports + 2}", "--ports_num=2",
            f"--trainer_id={i}", "--num_passes=2", f"--save_dir={tmp_path / 'byhand'}", "--trainer_count=3",
            "--use_gpu=0", "--local=0", "--dot_period=10", "--saving_period=1",
        ]  # fmt: skip
        trainers.append(cli.start("trainer", *flags, cwd=here))
    for process in [*trainers, *pservers]:
        _, err = process.communicate(timeout=120)
        assert process.returncode == 0, err
    assert cli.run("model", "hash", tmp_path / "byhand" / "pass-00001").out.strip() == trained["hash"]
