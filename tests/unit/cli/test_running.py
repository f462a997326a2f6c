"""What is said around a run: that kernels are compiled first, and how to go on after an end."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest
from tests.unit.cli.conftest import Leave

from bireme.cli.progress import job_in
from bireme.cli.running import are_kernels_compiled, explain_end
from bireme.core.errors import BiremeError, Cancelled, NetworkError, ProcessError
from bireme.spec.job import Job


def job_of(output: Path) -> Job:
    job = job_in(output)
    assert job is not None
    return job


@pytest.mark.parametrize("error", [ProcessError, NetworkError])
def test_a_job_that_is_given_up_is_told_with_how_to_go_on(leave: Leave, error: type[BiremeError]) -> None:
    output = leave(has_snapshot=True)
    told = explain_end(job_of(output), error("trainer 1 died 11 times", fix="its last words are in train.log"))
    assert type(told) is error
    assert told.fix == f"its last words are in train.log; then go on with `bireme resume {output}`"
    assert explain_end(job_of(output), error("gone")).fix == f"go on with `bireme resume {output}`"


def test_without_a_snapshot_there_is_no_way_on_to_tell(leave: Leave) -> None:
    error = ProcessError("gone", fix="look into its log")
    assert explain_end(job_of(leave()), error) is error


def test_a_stop_names_the_newest_snapshot_and_how_to_go_on(leave: Leave) -> None:
    output = leave(has_snapshot=True)
    told = explain_end(job_of(output), Cancelled("stopped on request"))
    assert told.what == "stopped on request; the newest snapshot is of round 7"
    assert told.fix == f"go on with `bireme resume {output}`"
    before = explain_end(job_of(leave("early")), Cancelled("stopped on request"))
    assert "no snapshot was made yet" in before.what


def test_kernels_are_compiled_once_a_file_of_theirs_is_newer_than_they(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(tmp_path / "numba"))
    assert not are_kernels_compiled()
    place = tmp_path / "numba" / "ps_0123"
    place.mkdir(parents=True)
    tag = f"py{sys.version_info[0]}{sys.version_info[1]}"
    (place / f"others.f-1.{tag}.nbi").touch()
    (place / "kernels.f-1.py27.nbi").touch()
    assert not are_kernels_compiled()
    (place / f"kernels.f-1.{tag}.nbi").touch()
    assert are_kernels_compiled()
    os.utime(place / f"kernels.f-1.{tag}.nbi", (1, 1))
    assert not are_kernels_compiled()
