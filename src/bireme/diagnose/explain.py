"""Why a job is in its state: every row of the table that fits, the one to solve first in front.

Pure: evidence in, causes out. A consequence is reported only where no cause explains the same pods; that all is well is
reported only if nothing else is.
"""

from __future__ import annotations

from collections.abc import Iterator

# These register their looks.
from bireme.diagnose import job as job
from bireme.diagnose import own_error as own_error
from bireme.diagnose import pods as pods
from bireme.diagnose import scheduler as scheduler
from bireme.diagnose.evidence import Cause, Evidence
from bireme.diagnose.table import LOOKS, Situation, situations
from bireme.diagnose.words import vocabulary
from bireme.kube.api.fields import name_of


def explain(evidence: Evidence) -> list[Cause]:
    """Every cause in the evidence, the one to solve first in front; never empty."""
    rows = situations()
    if evidence.is_finished:
        return list(_causes(next(row for row in rows if row.id == "finished"), evidence))
    if alone := [cause for row in rows if row.kind == "alone" for cause in _causes(row, evidence)]:
        return alone
    causes = [cause for row in rows if row.kind == "cause" for cause in _causes(row, evidence)]
    explained = {name for cause in causes for name in cause.about}
    for row in rows:
        if row.kind == "consequence":
            # A consequence without pods of its own follows from any cause.
            new = [c for c in _causes(row, evidence) if not causes or not set(c.about) <= explained]
            causes += new
            explained |= {name for cause in new for name in cause.about}
    if not causes:
        causes = [cause for row in rows if row.kind == "calm" for cause in _causes(row, evidence)][:1]
    if not causes:
        state = evidence.record.get("state", "unknown")
        reason = f" ({evidence.record['reason']})" if evidence.record.get("reason") else ""
        cause = f"The job is {state}{reason}, and no fact that can be seen from here explains it."
        causes = [Cause(cause, f"Read its logs with `{evidence.command} logs {evidence.job}`.", situation="unknown")]
    return causes


def _causes(row: Situation, evidence: Evidence) -> Iterator[Cause]:
    for rule in (row, *row.also):
        if not rule.where or (rule.where == "local") == (evidence.where == "local"):
            for match in LOOKS[rule.look](evidence, rule):
                about = tuple(map(name_of, match.pods)) if match.about is None else match.about
                names = vocabulary(evidence, match.pods, match.values)
                yield Cause(rule.cause.format_map(names), rule.advice.format_map(names), about, row.id)
