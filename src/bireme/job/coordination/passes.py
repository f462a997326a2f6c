"""Passes from the moment their rounds are over until people can see them. No I/O.

A pass is closed when the lanes have told its totals, every trainer has reported, and the cut that ends it is
settled: committed, or lost for good where the pass would come out alike once more. Then trainer 0 is told to save its
model, and when that is on disk the pass counts. Whoever dies in between, the ones after him report again; so
everything here may happen twice.
"""

from __future__ import annotations

from bireme.job.coordination import messages as m
from bireme.ps.lanes.rounds import PassTotals, Totals


class Passes:
    """What is known of passes that are over."""

    def __init__(self) -> None:
        self.closed: list[m.PassClosed] = []
        """What this coordinator has seen saved."""
        self.saved = -1
        self.costs: dict[int, float | None] = {}
        """The test costs of all passes that count, also of earlier runs where they matter."""
        self._totals: dict[int, PassTotals] = {}
        self._reports: dict[int, dict[int, m.PassDone]] = {}
        self._settled: set[int] = set()
        self._unsaved: m.PassClosed | None = None
        self._begun_s = 0.0

    def begin(self, now_s: float) -> None:
        """Trainers are at work, from now on at the latest."""
        self._begun_s = self._begun_s or now_s

    def rewind(self, saved: int, ended: PassTotals | None) -> None:
        """Everything is as it was at a cut; `ended` is the pass that ended with it, if one did."""
        self.saved = max(saved, self.saved)
        self._totals, self._reports, self._settled, self._unsaved = {}, {}, set(), None
        if ended is not None:
            self._totals[ended.pass_id] = ended
            self._settled.add(ended.pass_id)

    def totals(self, pass_id: int) -> PassTotals | None:
        """What the lanes said about a pass that is over."""
        return self._totals.get(pass_id)

    def lane_passed(self, totals: PassTotals) -> None:
        """The first lane has closed a pass: these samples were applied."""
        self._totals[totals.pass_id] = totals

    def report(self, message: m.PassDone) -> None:
        """A trainer has ended a pass."""
        self._reports.setdefault(message.pass_id, {})[message.trainer] = message

    def settle(self, pass_id: int) -> None:
        """No cut is to be waited for any more before a pass is closed."""
        self._settled.add(pass_id)

    def seen(self, pass_id: int) -> m.PassClosed | None:
        """A pass that was saved, as it was told then."""
        return next((closed for closed in self.closed if closed.pass_id == pass_id), None)

    def close(self, pass_id: int, facts: m.Facts, now_s: float) -> m.PassClosed | None:
        """What a pass came to, as soon as everything about it is known."""
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
        """A pass's model is on disk: returns what the pass came to and its lines of the ledger; None if not due."""
        closed = self._unsaved
        if closed is None or closed.pass_id != pass_id:
            return None
        totals, reports = self._totals.pop(pass_id), self._reports.pop(pass_id)
        self.closed.append(closed)
        self.costs[pass_id] = closed.test_cost
        self.saved, self._unsaved, self._begun_s = pass_id, None, now_s
        return closed, _ledger_rows(pass_id, totals.shards, list(reports.values()))


def _ledger_rows(pass_id: int, totals: dict[int, Totals], done: list[m.PassDone]) -> list[dict[str, object]]:
    read = {shard: n for report in done for shard, n in report.read.items()}
    trained = {shard: n for report in done for shard, n in report.trained.items()}
    return [
        {
            "pass": pass_id,
            "shard": s,
            "read": read.get(s, 0),
            "trained": trained.get(s, 0),
            "applied": t.samples,
        }
        for s, t in sorted(totals.items())
    ]
