"""What a drill reports: every fault that was asked for, and how many of those that were drawn."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from bireme.api.drills import DrillRun, FaultOptions, report_of
from bireme.cli.jobs.drill import _describe, drill
from bireme.core.errors import OutputExistsError, UsageError
from bireme.demo.prepare import prepare
from bireme.local.drill import Drill, Struck
from bireme.local.faults import Fault


def report(faults: list[Fault], happened: int) -> dict[str, Any]:
    drill = Drill(faults, Path("/out"))
    drill.struck = [Struck(fault, 5.0, 3) for fault in faults[:happened]]
    return report_of(None, DrillRun("ab" * 32, 9.0, [], drill))


def test_a_fault_for_a_moment_after_the_end_is_named() -> None:
    result = report([Fault("kill", "trainer:0", "@after=9999s", after_s=9999.0)], 0)
    assert (result["never"], result["drawn"]) == (["kill trainer:0 @after=9999s"], 0)
    shown = "\n".join(_describe(result))
    assert "kill trainer:0 @after=9999s  never happened: the job was over before" in shown
    assert "drawn" not in shown


def test_drawn_faults_are_counted() -> None:
    drawn = [Fault("kill", "all", f"@after={s}s", after_s=float(s), is_drawn=True) for s in range(1000)]
    result = report(drawn, 7)
    assert (result["never"], result["drawn"], result["drawn_happened"], result["faults"]) == ([], 1000, 7, 7)
    assert "7 of 1,000 faults that were drawn happened before the job's end" in _describe(result)


def test_faults_that_come_all_at_once_are_refused() -> None:
    with pytest.raises(UsageError, match="--mtbf 0"):
        FaultOptions(is_random=True, mtbf="0s", count=3).faults(None)  # type: ignore[arg-type]  # refused before the job matters


def test_a_drill_does_not_mix_its_runs_with_what_is_there(tmp_path: Path) -> None:
    place = tmp_path / "output"
    (place / "pass-00000").mkdir(parents=True)
    prepare(tmp_path / "job", reviews=30)
    arguments = [str(tmp_path / "job/job.yaml"), "--kill", "trainer:0@round=1", "--output", str(place)]
    refused = CliRunner().invoke(drill, arguments).exception
    assert isinstance(refused, OutputExistsError) and refused.what.endswith("output is not empty")
    assert [path.name for path in place.iterdir()] == ["pass-00000"]
