"""`bireme verify`: everything that a job has left, checked. Reads only, changes nothing."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from bireme.cli.options import json_option
from bireme.cli.output import emit
from bireme.core.errors import BiremeError, ModelError, SnapshotError, SpecError
from bireme.spec.load import command_name
from bireme.view.plain import count

if TYPE_CHECKING:
    from bireme.job.output.verify import Verdict

_MARKS = {"good": "✓", "note": "·", "bad": "✗"}


@click.command(epilog="\b\nExample: bireme verify first-job/output")
@click.argument("output", metavar="OUTPUT", type=Path)
@json_option
def verify(output: Path, as_json: bool) -> None:
    """Check all that a job has left in its output directory.

    Compares snapshots with their hashes, models with their second copy, the ledger with the metrics of the passes,
    and reports from where `bireme resume` would continue. Changes nothing.

    Exits with 6 if a model or the ledger is not sound, with 15 if only snapshots are not, with 3 if the
    job's own description is not.
    """
    from bireme.api.local import running_in
    from bireme.job.output.verify import verify as check

    verdict = check(output, is_running=running_in(output) is not None)
    emit(_as_json(verdict), _describe(verdict), as_json=as_json, error=_error(verdict))


def _error(verdict: Verdict) -> BiremeError | None:
    """What to exit with: the gravest problem, as one of the known errors."""
    from bireme.job.output.verify import JOB, SNAPSHOTS

    places = [problem.where.partition("/")[0] for problem in verdict.problems]
    if not places:
        return None
    kind = SpecError if JOB in places else SnapshotError if set(places) == {SNAPSHOTS} else ModelError
    found = f"{count(len(places), 'problem')} in {verdict.output}"
    return kind(found, fix="do as the lines with `fix:` say, then verify again")


def _as_json(verdict: Verdict) -> dict[str, Any]:
    problems = [{k: v for k, v in asdict(finding).items() if k != "state"} for finding in verdict.problems]
    point = verdict.resume_from
    resume_from = None
    if point is not None:  # without a snapshot, the job would begin anew there
        at = {"round": point.round, "pass_id": point.pass_id, "batch": point.batch}
        resume_from = {"snapshot": point.name or None, **at}
    return {
        "ok": not problems,
        "job": verdict.job.name if verdict.job else None,
        "phase": verdict.phase,
        "problems": problems,
        "notes": [{"where": f.where, "what": f.what} for f in verdict.findings if f.state == "note"],
        "snapshots": [asdict(snapshot) for snapshot in verdict.snapshots],
        "passes": [asdict(each) for each in verdict.passes],
        "resume_from": resume_from,
    }


def _describe(verdict: Verdict) -> Iterator[str]:
    for finding in verdict.findings:
        yield f"{_MARKS[finding.state]} {finding.where}: {finding.what}"
        if finding.state == "bad":
            yield f"    means: {finding.means}"
            yield f"    fix:   {finding.fix}"
    yield _describe_end(verdict)
    if not verdict.problems:
        yield "sound"


def _describe_end(verdict: Verdict) -> str:
    point, command = verdict.resume_from, f"`{command_name()} resume {verdict.output}`"
    if verdict.phase == "finished":
        return "the job has finished"
    if verdict.phase == "running":
        return "the job runs now"
    if point is None:
        return f"the job has not finished, and {command} cannot continue it"
    if not point.name:
        return f"the job has not finished; {command} would begin with pass {point.pass_id}"
    place = f"round {point.round}, batch {point.batch} of pass {point.pass_id}"
    return f"the job has not finished; {command} would continue from {place}"
