"""Which record is that of a process that was just started."""

from __future__ import annotations

from bireme.api.local import record_of
from bireme.local.registry import RunRecord


def record(pid: int, started: float) -> RunRecord:
    return RunRecord(id=f"{pid}-{started}", name="small", pid=pid, birth="", started=started, job_file="", output="")


def test_an_older_process_of_the_same_number_is_another_one() -> None:
    old, other, own = record(7, 10.0), record(8, 30.0), record(7, 20.5)
    assert record_of(7, 20.0, [other, old]) is None
    assert record_of(7, 20.0, [other, old, own]) is own
