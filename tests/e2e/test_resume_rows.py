"""A job with tables that is killed continues from a chain of snapshots, each of which holds only what had changed."""

from __future__ import annotations

import time
from pathlib import Path

import msgspec
import pytest

from tests.e2e.conftest import Cli, edit, take_rows
from tests.e2e.power import cut_power

WAIT_S = 60.0


class _Manifest(msgspec.Struct):
    base: list[str]


class _Sealed(msgspec.Struct):
    manifest: _Manifest


@pytest.fixture
def often(job: Path) -> Path:
    """The small job with a table, rounds that touch few of its rows, and a snapshot every few rounds."""
    take_rows(job, is_unbounded=True, method="AdaGradOptimizer()")
    edit(job.parent / "quick_start" / "trainer_config.lr.py", ("is_predict else 16", "is_predict else 1"))
    edit(job, ("passes: 2", "passes: 3"))
    job.write_text(job.read_text() + "snapshots: {every_s: 0.02, keep: 2}\n")
    return job


def chain_of(output: Path) -> list[str]:
    """What the newest snapshot builds on."""
    for path in sorted(output.glob("snapshots/*/manifest.json"), reverse=True):
        try:
            return msgspec.json.decode(path.read_bytes(), type=_Sealed).manifest.base
        except FileNotFoundError:
            continue  # it has just been removed, so there are newer ones
    return []


def kill_within_a_chain(cli: Cli, job: Path, output: Path) -> bool:
    """Start a job and kill it; returns whether its newest snapshot builds on others."""
    process = cli.start("train", job, "--output", output)
    deadline = time.monotonic() + WAIT_S
    while process.poll() is None and time.monotonic() < deadline and len(chain_of(output)) < 2:
        time.sleep(0.005)
    assert process.poll() is None, "it ended before it could be killed"
    cut_power(cli, process)
    return bool(chain_of(output))


@pytest.mark.parametrize(
    "layout",
    [pytest.param((), marks=pytest.mark.slow), ("--trainers=1", "--pservers=4")],
    ids=["as before", "another"],
)
def test_a_job_resumed_from_a_chain_ends_with_the_same_bits(
    cli: Cli, often: Path, tmp_path: Path, layout: tuple[str, ...]
) -> None:
    whole = cli.run("train", often, "--output", tmp_path / "whole", "--json")
    assert whole.code == 0, whole.err
    # The newest one when the kill arrives may begin a chain: then it was the wrong moment.
    outputs = (tmp_path / f"killed-{attempt}" for attempt in range(5))
    output = next((output for output in outputs if kill_within_a_chain(cli, often, output)), None)
    assert output is not None, "there was never a snapshot of changes to continue from"
    done = cli.run("resume", output, *layout, "--json")
    assert done.code == 0, done.err
    assert done.json["hash"] == whole.json["hash"]
