"""One lane's bookkeeping of rounds and passes, without I/O: frames' heads in, verdicts out.

The shell (lane.py) holds arrays and sockets. `offer` decides what to do with a push before its payload is read;
`landed` then counts it and returns how to close the round once it is complete, or `dropped` forgets it if its
connection died; `close` steps on once the kernel has run; `look` decides how to answer a pull.

A contribution is named by (round, span) and its bytes are a function of that name, so applying it once follows: a
repeat of the open round must have the same bytes, one of a closed round is answered and changes nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from bireme.core.errors import FrameError, StaleError
from bireme.ps.tree import Span, reduction
from bireme.ps.wire.frames import Flag, Head, Record


@dataclass(frozen=True, slots=True)
class Take:
    """Receive the payload into this row of the inbox."""

    row: int


@dataclass(frozen=True, slots=True)
class Repeat:
    """This row is in already: receive aside and compare."""

    row: int


@dataclass(frozen=True, slots=True)
class Late:
    """The round has closed with this contribution in it: discard the payload, it counted."""


@dataclass(frozen=True, slots=True)
class Refuse:
    """Change nothing and send the reason."""

    reason: str
    is_stale: bool = False  # the frame belongs to a view that is over

    def as_error(self) -> FrameError:
        return StaleError(self.reason) if self.is_stale else FrameError(self.reason)


@dataclass(frozen=True, slots=True)
class AnswerAt:
    """Answer a pull with the parameters as they stood after this many rounds, and where in the data that is."""

    round: int
    pass_id: int
    batch: int


@dataclass(frozen=True, slots=True)
class Wait:
    """Answer later."""


@dataclass(frozen=True, slots=True)
class Closing:
    """A complete round: add `rows` by `steps`, apply row `root` (None: no shard had a sample)."""

    round: int
    pass_id: int
    root: int | None
    steps: tuple[tuple[int, int], ...]
    samples: int  # samples in all rounds so far, this one included: what schedules count
    ends_pass: bool = False  # every shard has no further batch in this pass


@dataclass(slots=True)
class Totals:
    """Sums over the rounds of one pass for one shard."""

    samples: int = 0
    cost: float = 0.0
    evals: list[float] = field(default_factory=lambda: [0.0, 0.0, 0.0])

    def copy(self) -> Totals:
        return Totals(self.samples, self.cost, list(self.evals))

    def add(self, record: Record) -> None:
        self.samples += record.samples
        self.cost += record.cost
        for i, value in enumerate(record.evals):
            self.evals[i] += value


@dataclass(frozen=True, slots=True)
class LaneCounts:
    """One lane's bookkeeping at a cut."""

    round: int
    pass_id: int
    pass_start: int  # the round with which the open pass began; 0 where updates come one by one
    samples: int
    ended: frozenset[int]
    totals: dict[int, Totals]
    next_q: tuple[int, ...] = ()  # where updates come one by one: the batch that each shard must push next
    staleness: dict[int, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class PassTotals:
    """What a lane knows when a pass is over."""

    pass_id: int
    samples: int  # samples of all passes so far
    shards: dict[int, Totals]
    staleness: dict[int, int]
    """Updates by how many batches their shard was ahead of the slowest; empty where all go together."""


@dataclass(slots=True)
class _Row:
    records: list[Record]
    is_in: bool = False

    @property
    def samples(self) -> int:
        return sum(r.samples for r in self.records)


class LaneMachine:
    """What is counted alike with rounds and without, where `round` counts updates."""

    def __init__(self, shards: int, spans: Sequence[Span], slice_nbytes: int | None, job: int, view: int) -> None:
        """Take `slice_nbytes` as the length of a whole payload; None where that differs from push to push."""
        self.shards = shards
        self.spans = list(spans)
        self.slice_nbytes = slice_nbytes
        self.job = job
        self.view = view
        self.round = 0
        self.pass_id = 0
        self.pass_start = 0
        self.samples = 0
        self.cut_at = 0
        """The round at whose beginning the next cut is to be taken; pushes carry it on from lane 0."""
        self.ended: set[int] = set()
        self.totals: dict[int, Totals] = {s: Totals() for s in range(shards)}
        self.next_q: list[int] = []
        """Without rounds: the batch of the open pass that each shard must push next."""
        self.staleness_counts: dict[int, int] = {}
        """Without rounds: how many updates came from a shard that was so many batches ahead of the slowest."""

    def start_at(self, pass_id: int, samples: int) -> None:
        """Count on from an earlier run's pass and samples, before the first round."""
        self.pass_id, self.samples = pass_id, samples

    def restore(self, counts: LaneCounts) -> None:
        self.round, self.pass_id, self.pass_start = counts.round, counts.pass_id, counts.pass_start
        self.samples, self.ended, self.next_q = counts.samples, set(counts.ended), list(counts.next_q)
        self.totals = {shard: totals.copy() for shard, totals in counts.totals.items()}
        self.staleness_counts = dict(counts.staleness)

    def take_staleness(self) -> dict[int, int]:
        """`staleness_counts` since this was last asked."""
        counted, self.staleness_counts = self.staleness_counts, {}
        return counted

    def check(self, head: Head) -> Refuse | None:
        """Refuse what belongs to another job or another view."""
        if head.job != self.job:
            return Refuse(f"this pserver serves job {self.job:016x}, the frame is of job {head.job:016x}")
        if head.view != self.view:
            return Refuse(f"view {head.view} is not the current view {self.view}", is_stale=True)
        return None

    def _wrong_length(self, samples: int, nbytes: int) -> str:
        """Say that a payload is missing where there are samples, or there where there are none."""
        whole = self.slice_nbytes
        is_wrong = samples == 0 and nbytes > 0 if whole is None else whole > 0 and (samples > 0) != (nbytes > 0)
        return f"{samples} samples with a payload of {nbytes} bytes" if is_wrong else ""

    def _check_pass(self, wanted: int) -> Wait | Refuse | None:
        """Whether a PULL for the start of a pass must wait, or comes too early or late; None if it is answered now."""
        if wanted == self.pass_id + 1:
            return Wait()
        if wanted != self.pass_id:
            return Refuse(f"pass {wanted} is {_away(wanted, self.pass_id)}: the lane is in pass {self.pass_id}")
        return None

    def _count(self, record: Record) -> None:
        self.totals[record.shard].add(record)
        self.samples += record.samples
        if record.is_last:
            self.ended.add(record.shard)

    def _end_pass(self) -> dict[int, Totals] | None:
        """Begin the next pass if all shards have ended this one; returns its totals."""
        if len(self.ended) < self.shards:
            return None
        done, self.totals = self.totals, {s: Totals() for s in range(self.shards)}
        self.ended.clear()
        self.pass_id += 1
        return done


class LaneRounds(LaneMachine):
    """The state of one lane's rounds."""

    def __init__(self, shards: int, spans: Sequence[Span], slice_nbytes: int | None, *, job: int, view: int) -> None:
        super().__init__(shards, spans, slice_nbytes, job, view)
        self._before = (0, 0)
        self._oldest = 0
        self._rows: dict[Span, _Row] = {}
        self._index = {span: i for i, span in enumerate(self.spans)}

    def restore(self, counts: LaneCounts) -> None:
        """Continue from a cut; the round before it is not available."""
        super().restore(counts)
        self._oldest = counts.round

    def enter(self, view: int) -> None:
        """Move to a later view: trainers send the open round's contributions again."""
        self.view = view
        self._rows.clear()

    def row_of(self, span: Span) -> int | None:
        """The inbox row of a contribution; None for one that this view does not have."""
        return self._index.get(span)

    def has_landed(self, span: Span) -> bool:
        return span in self._rows and self._rows[span].is_in

    def awaited(self) -> list[Span]:
        live = [span for span in self.spans if any(s not in self.ended for s in span.shards)]
        return [span for span in live if not self.has_landed(span)]

    def offer(self, head: Head, records: list[Record]) -> Take | Repeat | Late | Refuse:
        """Decide what to do with a PUSH whose payload has not been read yet."""
        refusal = self.check(head)
        if refusal:
            return refusal
        span = Span(head.lo, head.hi)
        if span not in self._index:
            return Refuse(f"shards {head.lo}…{head.hi - 1} are no contribution of this view")
        if self.slice_nbytes is not None and head.nbytes not in (0, self.slice_nbytes):
            return Refuse(f"a payload of {head.nbytes} bytes for a slice of {self.slice_nbytes}")
        if head.round < self.round:
            # No round closes without its live shards, so it counted, maybe in an earlier view. Where its shards have
            # no further batch, others may have closed any number of rounds meanwhile.
            return Late()
        if head.round > self.round:
            return Refuse(f"round {head.round} is ahead of round {self.round}")
        wrong = self._wrong_records(head, span, records)
        if wrong:
            return Refuse(wrong)
        row = self._rows.get(span)
        if row is not None and not row.is_in:
            return Refuse(f"shards {head.lo}…{head.hi - 1} are being received on another connection")
        if row is not None:
            return Repeat(self._index[span]) if row.records == records else Refuse("the repeat has other records")
        self._rows[span] = _Row(records)
        # Every push of this round names the same cut, if any, so it reaches every lane before that round does.
        self.cut_at = max(self.cut_at, head.extra)
        return Take(self._index[span])

    def _wrong_records(self, head: Head, span: Span, records: list[Record]) -> str:
        live = [s for s in span.shards if s not in self.ended]
        if [r.shard for r in records] != live:
            return f"records of shards {[r.shard for r in records]}, but {live} are live in this pass"
        samples = sum(r.samples for r in records)
        wrong = self._wrong_length(samples, head.nbytes)
        if not wrong and samples == 0 and not all(r.is_last for r in records):
            return "an empty contribution that does not end its shards would never end the pass"
        return wrong

    def landed(self, span: Span) -> Closing | None:
        """The payload is in; return how to close the round once every live shard is there."""
        self._rows[span].is_in = True
        for other in self.spans:  # not `awaited`: this runs for every push, and ends at the first gap
            row = self._rows.get(other)
            if (row is None or not row.is_in) and any(s not in self.ended for s in other.shards):
                return None
        samples = self.samples + sum(row.samples for row in self._rows.values())
        ending = {r.shard for row in self._rows.values() for r in row.records if r.is_last}
        ends_pass = len(self.ended | ending) == self.shards
        present = [span for span in self.spans if span in self._rows and self._rows[span].samples]
        if not present:
            return Closing(self.round, self.pass_id, None, (), samples, ends_pass)
        # The order of the additions follows from the spans, never from the order of arrival: a sum has one result.
        root, steps = reduction(tuple(present), self.shards)
        row_of = [self._index[span] for span in present]
        pairs = tuple((row_of[a], row_of[b]) for a, b in steps)
        return Closing(self.round, self.pass_id, row_of[root], pairs, samples, ends_pass)

    def dropped(self, span: Span) -> None:
        self._rows.pop(span, None)

    def close(self) -> dict[int, Totals] | None:
        """Step to the next round; when the pass is over, return its totals per shard."""
        for span in self.spans:  # in the order of shards, so that the sums are the same for every layout
            for record in self._rows[span].records if span in self._rows else ():
                self._count(record)
        self._rows.clear()
        self._before = (self.pass_id, self.round - self.pass_start)
        self.round += 1
        done = self._end_pass()
        if done is not None:
            self.pass_start = self.round
        return done

    def look(self, head: Head) -> AnswerAt | Wait | Refuse:
        refusal = self.check(head)
        if refusal:
            return refusal
        if head.flags & Flag.NOW:
            return self._look_round(self.round)
        if head.flags & Flag.AT_PASS:
            return self._check_pass(head.round) or self._look_round(self.pass_start)
        return self._look_round(head.round)

    def _look_round(self, wanted: int) -> AnswerAt | Wait | Refuse:
        if wanted == self.round:
            return AnswerAt(wanted, self.pass_id, self.round - self.pass_start)
        if wanted == self.round - 1 and wanted >= self._oldest:
            return AnswerAt(wanted, *self._before)
        if wanted == self.round + 1:
            return Wait()
        return Refuse(
            f"round {wanted} is {_away(wanted, self.round)}: the lane is at round {self.round} and keeps one before it"
        )


def _away(wanted: int, now: int) -> str:
    return "far ahead" if wanted > now else "gone"
