"""One lane's bookkeeping without rounds, for the modes `bounded` and `async`: every push is applied on arrival.

A push is named by (pass, shard, q), q being the shard's batch number within the pass. A lane keeps
the q that it expects next from each shard: that one is taken, lower ones counted before and are
answered only, higher ones are refused. So each is applied exactly once, whatever is repeated or lost.

Progress in mode `bounded`: a shard may compute batch q while q is at most `staleness` above the
lowest expected q of all unfinished shards. The shard that has the lowest is 0 above it, so one shard
may always continue. That lowest q never falls within a pass, so a push is no staler than its pull was.
The verdicts and methods are those of rounds.py; `round` counts updates.
"""

from __future__ import annotations

from collections.abc import Sequence

from bireme.ps.lanes.rounds import AnswerAt, Closing, LaneMachine, Late, Refuse, Repeat, Take, Totals, Wait
from bireme.ps.tree import Span
from bireme.ps.wire.frames import Flag, Head, Record

FAR = 4
"""Without a staleness bound, a trainer is far behind once all others have twice its batches and so many more: at the
beginning of a pass a factor means little."""


class LaneStream(LaneMachine):
    """The state of one lane's updates; `staleness` is None where nothing bounds it."""

    def __init__(self, shards: int, slice_nbytes: int | None, *, job: int, view: int, staleness: int | None) -> None:
        # `cut_at` stays 0: cuts are taken at the end of passes only, which every lane counts by itself.
        super().__init__(shards, [Span(s, s + 1) for s in range(shards)], slice_nbytes, job, view)
        self.staleness = staleness
        self.next_q = [0] * shards
        self._flying: dict[int, Record] = {}
        self._landed: int | None = None

    def enter(self, view: int) -> None:
        """Move to a later view: a push that was on its way is sent again."""
        self.view = view
        self._flying.clear()
        self._landed = None

    def row_of(self, span: Span) -> int | None:
        """The inbox row of a shard; None for what is not one shard of this job."""
        return span.lo if span.hi == span.lo + 1 <= self.shards else None

    def has_landed(self, span: Span) -> bool:
        """Whether this shard's push is in and about to be applied."""
        return self._landed is not None and self._landed == self.row_of(span)

    def offer(self, head: Head, records: list[Record]) -> Take | Repeat | Late | Refuse:
        refusal = self.check(head)
        if refusal:
            return refusal
        shard = self.row_of(Span(head.lo, head.hi))
        if shard is None:
            return Refuse(f"shards {head.lo}…{head.hi - 1} are not one shard of {self.shards}")
        if self.slice_nbytes is not None and head.nbytes not in (0, self.slice_nbytes):
            return Refuse(f"a payload of {head.nbytes} bytes for a slice of {self.slice_nbytes}")
        if (head.extra, head.round) < (self.pass_id, self.next_q[shard]):
            return Late()
        if (head.extra, head.round) > (self.pass_id, self.next_q[shard]):
            return Refuse(f"{_place(head)} is ahead: {self._now(shard)}")
        wrong = self._not_its_turn(shard) or self._wrong_records(head, shard, records)
        if wrong:
            return Refuse(wrong)
        self._flying[shard] = records[0]
        return Take(shard)

    def _not_its_turn(self, shard: int) -> str:
        if shard in self.ended:
            return f"shard {shard} has already ended pass {self.pass_id}"
        if shard in self._flying:
            return f"shard {shard} is being received on another connection"
        # The pull of this batch would have waited, so only a push without its pull can be here.
        if self._is_too_far(shard):
            return f"shard {shard} is {self._ahead(shard)} batches ahead, more than {self.staleness}: pull first"
        return ""

    def _wrong_records(self, head: Head, shard: int, records: list[Record]) -> str:
        if [r.shard for r in records] != [shard]:
            return f"records of shards {[r.shard for r in records]} in a push of shard {shard}"
        wrong = self._wrong_length(records[0].samples, head.nbytes)
        if not wrong and records[0].samples == 0 and not records[0].is_last:
            return "an empty contribution that does not end its shard would never end the pass"
        return wrong

    def landed(self, span: Span) -> Closing | None:
        """The payload is in; return how to apply it. `close` must follow before anything else lands."""
        if span.lo not in self._flying or self._landed is not None:
            raise AssertionError(f"shard {span.lo} landed unasked, or before another was closed; this is a bug")
        if self._is_too_far(span.lo):
            raise AssertionError(f"shard {span.lo} ran past the staleness bound; this is a bug")
        self._landed = span.lo
        record = self._flying[span.lo]
        root = span.lo if record.samples else None
        ends_pass = record.is_last and len(self.ended) + 1 == self.shards
        return Closing(self.round, self.pass_id, root, (), self.samples + record.samples, ends_pass)

    def dropped(self, span: Span) -> None:
        self._flying.pop(span.lo, None)

    def close(self) -> dict[int, Totals] | None:
        """Count the push that landed as applied; when that ends the pass, return its totals per shard."""
        if self._landed is None:
            raise AssertionError("nothing has landed that could be closed; this is a bug")
        shard, self._landed = self._landed, None
        record = self._flying.pop(shard)
        ahead = self._ahead(shard)
        self.staleness_counts[ahead] = self.staleness_counts.get(ahead, 0) + 1
        self._count(record)
        self.next_q[shard] += 1
        self.round += 1
        done = self._end_pass()
        if done is not None:
            self.next_q = [0] * self.shards
        return done

    def look(self, head: Head) -> AnswerAt | Wait | Refuse:
        """Decide how to answer a PULL of shard `lo`, which is about to compute batch `round` of pass `extra`."""
        refusal = self.check(head)
        if refusal:
            return refusal
        if head.lo >= self.shards:
            return Refuse(f"there is no shard {head.lo} among {self.shards}")
        if head.flags & Flag.NOW:
            return self._ready(head.lo)
        if head.flags & Flag.AT_PASS:
            return self._check_pass(head.round) or self._ready(head.lo)
        return self._look_batch(head)

    def _look_batch(self, head: Head) -> AnswerAt | Wait | Refuse:
        shard, now = head.lo, self.next_q[head.lo]
        if (head.extra, head.round) < (self.pass_id, now):
            return self._ready(shard)  # its push counted here and not on every lane: it is computed once more
        if (head.extra, head.round) in ((self.pass_id + 1, 0), (self.pass_id, now + 1)):
            return Wait()  # for other shards to end this pass, or for its own push before this one
        if (head.extra, head.round) != (self.pass_id, now):
            return Refuse(f"{_place(head)} is far ahead: {self._now(shard)}")
        if shard in self.ended:
            return Refuse(f"shard {shard} has already ended pass {self.pass_id}")
        return Wait() if self._is_too_far(shard) else self._ready(shard)

    def _ready(self, shard: int) -> AnswerAt:
        return AnswerAt(self.round, self.pass_id, self.next_q[shard])

    def _ahead(self, shard: int) -> int:
        """Batches between this unfinished shard and the slowest one."""
        return self.next_q[shard] - min(q for s, q in enumerate(self.next_q) if s not in self.ended)

    def laggard(self, trainer_of: Sequence[int]) -> tuple[int, int] | None:
        """The trainer that all others are far ahead of, and by how many batches; None if there is no such one.

        In mode `bounded` these may not continue; without a bound they have more than twice as many batches.
        """
        open_: dict[int, int] = {}
        done: dict[int, int] = {}
        for shard, q in enumerate(self.next_q):
            places, trainer = done if shard in self.ended else open_, trainer_of[shard]
            places[trainer] = min(q, places.get(trainer, q))
        # A trainer that has ended the pass is far ahead only of those that have done less.
        last = min(open_, key=lambda trainer: (open_[trainer], trainer), default=-1)
        others = [q for places in (open_, done) for trainer, q in places.items() if trainer != last]
        if self.staleness is not None:
            others = [q for trainer, q in open_.items() if trainer != last]
        if not others:
            return None
        ahead = min(others) - open_[last]
        far = open_[last] + FAR if self.staleness is None else self.staleness + 1
        return (last, ahead) if ahead >= far else None

    def _is_too_far(self, shard: int) -> bool:
        return self.staleness is not None and self._ahead(shard) > self.staleness

    def _now(self, shard: int) -> str:
        return f"the lane expects batch {self.next_q[shard]} of pass {self.pass_id} from shard {shard}"


def _place(head: Head) -> str:
    return f"batch {head.round} of pass {head.extra}"
