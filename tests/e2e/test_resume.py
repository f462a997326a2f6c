"""A job whose processes are all killed goes on from its last snapshot, and ends as if nothing had happened."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
from pathlib import Path

import pytest

from bireme.job.snapshots import candidates
from tests.e2e.conftest import Cli, assert_ledger_is_exact, edit, processes_mentioning, wait_until


def end(process: subprocess.Popen[str], output: Path) -> None:
    """Kill the runner; the kernel kills the rest, as a power cut would."""
    os.kill(process.pid, signal.SIGKILL)
    process.communicate()
    wait_until(lambda: not processes_mentioning(str(output)), "everybody is gone", 20)


def kill_in_the_middle(cli: Cli, job: Path, output: Path) -> None:
    """Start the job and kill everything once a pass is saved and a later snapshot committed."""
    process = cli.start("train", job, "--output", output)
    first = output / "pass-00000" / "done"

    def has_begun() -> bool:
        return first.is_file() and newest(output) > first.stat().st_mtime

    wait_until(lambda: has_begun() or process.poll() is not None, "a snapshot follows the first pass")
    assert process.poll() is None, "it ended before it could be killed"
    end(process, output)


def newest(output: Path) -> float:
    """When the last snapshot was committed."""
    return max((p.stat().st_mtime for p in output.glob("snapshots/*/manifest.json")), default=0.0)


@pytest.fixture
def undisturbed(cli: Cli, often: Path, tmp_path: Path) -> str:
    done = cli.run("train", often, "--output", tmp_path / "whole", "--json")
    assert done.code == 0, done.err
    return str(done.json["hash"])


@pytest.mark.parametrize(
    "layout",
    [pytest.param((), marks=pytest.mark.slow), ("--trainers=1", "--pservers=4", "--ports-num=2")],
    ids=["as before", "another"],
)
def test_a_job_that_was_killed_ends_with_the_same_bits(
    cli: Cli, often: Path, tmp_path: Path, undisturbed: str, layout: tuple[str, ...]
) -> None:
    output = tmp_path / "killed"
    kill_in_the_middle(cli, often, output)
    done = cli.run("resume", output, *layout, "--json")
    assert done.code == 0, done.err
    assert done.json["hash"] == undisturbed
    assert "going on from round" in (output / "node_0" / "server.log").read_text()
    assert_ledger_is_exact(output, passes=4)


def test_a_damaged_snapshot_is_named_and_the_one_before_is_used(
    cli: Cli, often: Path, tmp_path: Path, undisturbed: str
) -> None:
    output = tmp_path / "killed"
    kill_in_the_middle(cli, often, output)
    last = sorted(p.parent for p in output.glob("snapshots/*/manifest.json"))[-1]
    part = last / "part-0.bin"
    data = bytearray(part.read_bytes())
    data[len(data) // 2] ^= 1
    part.write_bytes(data)
    done = cli.run("resume", output, "--json")
    assert done.code == 0, done.err
    assert done.json["hash"] == undisturbed
    assert f"snapshot {last.name} cannot be used" in (output / "node_0" / "server.log").read_text()


def test_snapshots_by_rounds_are_at_multiples_and_a_job_goes_on_from_one(
    cli: Cli, often: Path, tmp_path: Path, undisturbed: str
) -> None:
    edit(often, ("{every_s: 0.05, keep: 4}", "{every_s: 86400, every_rounds: 7, keep: 100}"))
    output = tmp_path / "killed"
    kill_in_the_middle(cli, often, output)
    found = candidates(output / "snapshots")[0]
    within = [manifest.round for manifest in found if manifest.batch]
    assert within and [round_ for round_ in within if round_ % 7] == []
    assert any(manifest.batch == 0 for manifest in found), "and one at the end of a pass"
    done = cli.run("resume", output, "--json")
    assert done.code == 0, done.err
    assert done.json["hash"] == undisturbed
    rounds = {manifest.round for manifest in candidates(output / "snapshots")[0] if manifest.batch}
    assert all(round_ % 7 == 0 for round_ in rounds) and len(rounds) > len(within)


def test_a_job_that_was_moved_is_told_where_its_program_and_data_are(
    cli: Cli, often: Path, tmp_path: Path, undisturbed: str
) -> None:
    output = often.parent / "output"
    kill_in_the_middle(cli, often, output)
    elsewhere = often.parent.rename(tmp_path / "elsewhere")
    lost = cli.run("resume", elsewhere / "output")
    assert lost.code != 0
    assert "program is not where it was" in lost.err and "--job JOB.yaml" in lost.err
    done = cli.run("resume", elsewhere / "output", "--job", elsewhere / often.name, "--json")
    assert done.code == 0, done.err
    assert done.json["hash"] == undisturbed


def test_changes_that_are_accepted_are_gone_on_with(cli: Cli, often: Path, tmp_path: Path) -> None:
    output = tmp_path / "killed"
    kill_in_the_middle(cli, often, output)
    data = often.parent / "0" / "data" / "train.txt"
    data.write_text(data.read_text() + "1\tgood\n")
    assert cli.run("resume", output).code == 15
    done = cli.run("resume", output, "--accept-changes", "--json")
    assert done.code == 0, done.err
    assert done.json["phase"] == "finished"


def test_other_data_is_refused_with_what_changed(cli: Cli, often: Path, tmp_path: Path) -> None:
    output = tmp_path / "killed"
    kill_in_the_middle(cli, often, output)
    data = often.parent / "0" / "data" / "train.txt"
    data.write_text(data.read_text() + "1\tgood\n")
    done = cli.run("resume", output)
    assert done.code == 15
    assert "shard 0: train.txt has changed" in done.err and "--accept-changes" in done.err


def test_resuming_what_is_no_output_says_so(cli: Cli, tmp_path: Path) -> None:
    done = cli.run("resume", tmp_path)
    assert done.code != 0
    assert "is not a job's output" in done.err


def test_a_job_without_a_snapshot_begins_anew(cli: Cli, often: Path, tmp_path: Path, undisturbed: str) -> None:
    shutil.rmtree(tmp_path / "whole" / "snapshots")
    for left in (tmp_path / "whole").glob("pass-*"):
        shutil.rmtree(left)
    (tmp_path / "whole" / "ledger.jsonl").unlink()
    done = cli.run("resume", tmp_path / "whole", "--json")
    assert done.code == 0, done.err
    assert done.json["hash"] == undisturbed
