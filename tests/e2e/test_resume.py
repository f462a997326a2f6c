"""A job whose processes are all killed goes on from its last snapshot, and ends as if nothing had happened."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import time
from pathlib import Path

import pytest

from tests.e2e.conftest import Cli, processes_mentioning

PASSES = 4


@pytest.fixture
def often(job: Path) -> Path:
    """The small job, with small batches and a snapshot every few rounds."""
    config = job.parent / "quick_start" / "trainer_config.lr.py"
    config.write_text(
        config.read_text().replace("batch_size=1 if is_predict else 128", "batch_size=1 if is_predict else 4")
    )
    job.write_text(job.read_text().replace("passes: 2", f"passes: {PASSES}") + "snapshots: {every_s: 0.05, keep: 4}\n")
    return job


def end(process: subprocess.Popen[str], output: Path) -> None:
    """Kill the runner; the kernel kills the rest, as a power cut would."""
    os.kill(process.pid, signal.SIGKILL)
    process.communicate()
    deadline = time.monotonic() + 20
    while processes_mentioning(str(output)) and time.monotonic() < deadline:
        time.sleep(0.02)
    assert processes_mentioning(str(output)) == []


def kill_in_the_middle(cli: Cli, job: Path, output: Path) -> None:
    """Start the job and kill everything once a pass is saved and a later snapshot committed."""
    process = cli.start("train", job, "--output", output)
    first = output / "pass-00000" / "done"
    deadline = time.monotonic() + 60
    while process.poll() is None and time.monotonic() < deadline:
        if first.is_file() and newest(output) > first.stat().st_mtime:
            break
        time.sleep(0.01)
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
    "layout", [(), ("--trainers=1", "--pservers=4", "--ports-num=2")], ids=["as before", "another"]
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
    rows = [json.loads(line) for line in (output / "ledger.jsonl").read_text().splitlines()]
    assert sorted((row["pass"], row["shard"]) for row in rows) == [(p, s) for p in range(PASSES) for s in range(3)]
    assert all(row["read"] == row["trained"] == row["applied"] for row in rows)


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


def test_other_data_is_refused_with_what_changed(cli: Cli, often: Path, tmp_path: Path) -> None:
    output = tmp_path / "killed"
    kill_in_the_middle(cli, often, output)
    data = often.parent / "0" / "data" / "train.txt"
    data.write_text(data.read_text() + "1\tgood\n")
    done = cli.run("resume", output)
    assert done.code == 15
    assert "data" in done.err and "--accept-changes" in done.err


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
