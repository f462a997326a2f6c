from __future__ import annotations

from pathlib import Path

import pytest

from bireme.core.errors import DataError, NetworkError, NumericError, PortInUseError, ProcessError
from bireme.job.node.failure_reports import (
    STATUS_FILE,
    FailureReport,
    failure_of,
    first_cause,
    read_reports,
    report_failure,
)


def report(kind: str, time: float = 0.0) -> FailureReport:
    return FailureReport(process="trainer 1", kind=kind, what="it broke", time=time)


def test_a_report_comes_back_as_the_error_it_was(tmp_path: Path) -> None:
    (tmp_path / "reports").mkdir()
    report_failure(tmp_path, "trainer 1", NumericError("a NaN", why="bad", fix="clip"))
    (found,) = read_reports(tmp_path)
    error = found.error()
    assert type(error) is NumericError
    assert (error.what, error.why, error.fix) == ("trainer 1: a NaN", "bad", "clip")


@pytest.mark.parametrize("kind", ["annotations", "Nonsense", "", "__doc__"])
def test_a_report_of_an_unknown_kind_is_a_process_error(kind: str) -> None:
    assert type(report(kind).error()) is ProcessError


def test_reports_are_read_oldest_first_and_strangers_left_out(tmp_path: Path) -> None:
    reports = tmp_path / "reports"
    reports.mkdir()
    for name in ("b", "a"):
        report_failure(tmp_path, name, DataError("x"))
    (reports / "torn.json").write_bytes(b'{"process": "x"')
    (reports / "other.json").write_bytes(b"[1, 2]")
    (reports / "directory.json").mkdir()
    assert [r.process for r in read_reports(tmp_path)] == ["b", "a"]


def test_no_directory_has_no_reports(tmp_path: Path) -> None:
    assert read_reports(tmp_path / "nowhere") == []


def test_losing_a_peer_is_a_consequence_and_not_the_cause() -> None:
    lost, refused, bad = report("NetworkError"), report("RefusedError"), report("DataError")
    assert first_cause([lost, refused, bad]) is bad
    assert first_cause([lost, refused]) is refused
    assert first_cause([lost]) is lost
    assert first_cause([]) is None


def test_a_port_in_use_is_a_cause_though_it_is_a_network_error() -> None:
    assert issubclass(PortInUseError, NetworkError)
    port = report("PortInUseError")
    assert first_cause([report("NetworkError"), port]) is port


def test_a_failed_jobs_cause_is_shown_where_all_left_in_peace(tmp_path: Path) -> None:
    assert failure_of(tmp_path, tmp_path) is None
    (tmp_path / STATUS_FILE).write_bytes(b'{"phase": "finished", "reason": ""}')
    assert failure_of(tmp_path, tmp_path) is None
    (tmp_path / STATUS_FILE).write_bytes(b'{"phase": "failed", "reason": "a cost that is no number"}')
    error = failure_of(tmp_path, tmp_path)
    assert error is not None and "a cost that is no number" in error.what
    (tmp_path / "reports").mkdir()
    report_failure(tmp_path, "trainer 1", NumericError("NaN in w"))
    assert isinstance(failure_of(tmp_path, tmp_path), NumericError)
