"""Where snapshots find no room training continues, says so, and loses nothing that was saved."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.conftest import Cli, assert_ledger_is_exact

PAGE = 4096


@pytest.fixture
def small_disk(job: Path) -> Iterator[Path]:
    """A file system of its own for a job's snapshots, in the place where they go."""
    place = job.parent / "output" / "snapshots"
    place.mkdir(parents=True)
    made = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "none", place], capture_output=True, check=False)
    if made.returncode != 0:
        pytest.skip("only root can mount a small disk; the same is proven in parts by unit tests")
    try:
        yield place
    finally:
        subprocess.run(["umount", place], check=True)


def fill(disk: Path) -> Path:
    """Leave no room but for a small file or two; returns what takes it."""
    ballast = disk / "ballast"
    with ballast.open("wb", buffering=0) as f:
        with pytest.raises(OSError, match="No space left"):
            while True:
                f.write(bytes(PAGE))
        f.truncate(f.tell() - 2 * PAGE)
    return ballast


def test_a_job_without_room_for_snapshots_keeps_its_old_ones(
    cli: Cli, job: Path, small_disk: Path, tmp_path: Path
) -> None:
    whole = cli.run("train", job, "--passes", 3, "--output", tmp_path / "whole", "--json")
    assert whole.code == 0, whole.err
    output = small_disk.parent
    assert cli.run("train", job, "--passes", 1).code == 0
    (saved,) = small_disk.glob("*/manifest.json")
    ballast = fill(small_disk)

    done = cli.run("resume", output, "--passes", 3)
    assert done.code == 0, done.err
    assert "warning: no snapshot since round " in done.out
    assert "the disk is full: cannot write " in done.out
    assert "failed cut round=" in (output / "node_0" / "server.log").read_text()
    assert list(small_disk.glob("*/manifest.json")) == [saved]
    assert_ledger_is_exact(output, passes=3)
    ballast.unlink()
    verified = cli.run("verify", output, "--json")
    assert verified.code == 0, verified.out
    assert verified.json["passes"][-1]["hash"] == whole.json["hash"]


def test_an_async_pass_waits_for_room_for_its_snapshot(cli: Cli, job: Path, small_disk: Path) -> None:
    job.write_text(job.read_text() + "mode: async\n")
    output = small_disk.parent
    assert cli.run("train", job, "--passes", 1).code == 0
    ballast = fill(small_disk)
    refused = cli.run("resume", output, "--passes", 2)
    assert refused.code == 8, refused.err
    assert "there is no snapshot at the end of pass 1: pserver " in refused.err
    assert "the disk is full: cannot write " in refused.err and "bireme resume" in refused.err
    assert [p.name for p in output.glob("pass-*")] == ["pass-00000"]

    ballast.unlink()
    done = cli.run("resume", output)
    assert done.code == 0, done.err
    assert_ledger_is_exact(output, passes=2)
    assert cli.run("verify", output).code == 0
