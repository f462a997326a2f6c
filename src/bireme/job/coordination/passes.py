"""Passes from the end of their last round until their model is saved. No I/O.

A pass is closed when the first lane has reported its totals, every trainer has reported, and the cut that ends it is
settled: committed, or lost for good where computing the pass again gives the same result. Then trainer 0 saves its
model, and with that on disk the pass counts. The successor of a process that dies in between reports again, so every
method may be called twice for a pass.
"""

from __future__ import annotations

from bireme.job.coordination import messages as m
from bireme.ps.lanes.rounds import PassTotals
from bireme.spec.terms import Facts


class Passes:
    """Totals, reports and results of passes whose rounds are over."""

    def __init__(self) -> None:
        self.closed: list[m.PassClosed] = []
        """Passes whose models were saved under this coordinator, or under its predecessors in this run."""
        self.saved = -1
        self.costs: dict[int, float | None] = {}
        """The test costs of all passes that count, also of earlier runs where they matter."""
        self._totals: dict[int, PassTotals] = {}
        self._reports: dict[int, dict[int, m.PassDone]] = {}
        self._settled: set[int] = set()
        self._unsaved: m.PassClosed | None = None
        self._begun_s = 0.0

    def begin(self, now_s: float) -> None:
        """Count the time of the first pass from now, unless it is counted already."""
        self._begun_s = self._begun_s or now_s

    def rewind(self, saved: int, ended: PassTotals | None) -> None:
        """Return to the state at a cut; `ended` has the totals of the pass that ended with it, if one did."""
        self.saved = max(saved, self.saved)
        self._totals, self._reports, self._settled, self._unsaved = {}, {}, set(), None
        if ended is not None:
            self._totals[ended.pass_id] = ended
            self._settled.add(ended.pass_id)

    def totals(self, pass_id: int) -> PassTotals | None:
        return self._totals.get(pass_id)

    def lane_passed(self, totals: PassTotals) -> None:
        self._totals[totals.pass_id] = totals

    def report(self, message: m.PassDone) -> None:
        self._reports.setdefault(message.pass_id, {})[message.trainer] = message

    def settle(self, pass_id: int) -> None:
        """Let a pass be closed without waiting for its cut any more."""
        self._settled.add(pass_id)

    def seen(self, pass_id: int) -> m.PassClosed | None:
        return next((closed for closed in self.closed if closed.pass_id == pass_id), None)

    def close(self, pass_id: int, facts: Facts, now_s: float) -> m.PassClosed | None:
        """The results of a pass; None while totals, reports or the cut are missing."""
        reports = self._reports.get(pass_id, {})
        is_settled = pass_id in self._settled or not facts.snapshots.path
        if pass_id not in self._totals or len(reports) < facts.trainers or not is_settled or pass_id <= self.saved:
            return None
        ended, done = self._totals[pass_id], [report for _, report in sorted(reports.items())]
        totals = [t for _, t in sorted(ended.shards.items())]
        test = next((report.test for report in done if report.test is not None), None)
        samples = sum(t.samples for t in totals)
        self._unsaved = m.PassClosed(
            pass_id=pass_id,
            round=done[0].round,
            samples=samples,
            samples_so_far=ended.samples,
            seconds=round(now_s - self._begun_s, 3),
            cost=sum(t.cost for t in totals) / max(samples, 1),
            evals={name: sum(t.evals[i] for t in totals) / max(samples, 1) for i, name in enumerate(facts.evals)},
            test_samples=test.samples if test else 0,
            test_cost=test.cost / max(test.samples, 1) if test and test.cost is not None else None,
            test_evals={k: v / max(test.samples, 1) for k, v in test.evals.items()} if test else {},
            staleness={str(ahead): count for ahead, count in sorted(ended.staleness.items())},
            wire_error=max((report.wire_error for report in done), default=0.0),
            spent={n: round(s, 6) for n, s in done[0].spent.items()},
        )
        return self._unsaved

    def save(self, pass_id: int, now_s: float) -> tuple[m.PassClosed, list[dict[str, object]]] | None:
        """A pass's model is on disk: returns its results and its lines of the ledger; None if not due."""
        closed = self._unsaved
        if closed is None or closed.pass_id != pass_id:
            return None
        totals, reports = self._totals.pop(pass_id), self._reports.pop(pass_id)
        self.closed.append(closed)
        self.costs[pass_id] = closed.test_cost
        self.saved, self._unsaved, self._begun_s = pass_id, None, now_s
        read = {shard: n for report in reports.values() for shard, n in report.read.items()}
        trained = {shard: n for report in reports.values() for shard, n in report.trained.items()}
        return closed, [
            {"pass": pass_id, "shard": s, "read": read.get(s, 0), "trained": trained.get(s, 0), "applied": t.samples}
            for s, t in sorted(totals.shards.items())
        ]
