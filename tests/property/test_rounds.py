"""Whatever the order of arrival, repeats, losses, strangers and views: every round closes once, with the same sum.

A `Play` sends all contributions of a small job to one lane's machine, in an order that Hypothesis
chooses, and disturbs it in between; after each disturbance the machine's state must be what it was.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from bireme.core.draws import draw_normal, stream_key
from bireme.ps.lanes.rounds import AnswerAt, Closing, LaneRounds, Late, Refuse, Repeat, Take, Totals, Wait
from bireme.ps.tree import Span, children, share_out, spans_of
from bireme.ps.wire.frames import Flag, Head, Kind, Record

JOB, NBYTES, WIDTH = 7, 64, 3
Gradient = NDArray[np.float32]


def gradient(shard: int, pass_id: int, batch: int) -> Gradient:
    """A shard's made-up gradient; large and small values, so that the order of adding shows in the bits."""
    drawn = draw_normal(stream_key(1, shard, pass_id, batch), 0, WIDTH)
    return (drawn * 10.0 ** ((shard * 5 + batch) % 13 - 6)).astype(np.float32)


def samples_of(shard: int, pass_id: int, batch: int) -> int:
    return 1 + (shard * 7 + pass_id * 3 + batch) % 5


class Play:
    """One lane's machine and all that its trainers would send it."""

    def __init__(self, batches: Sequence[int], trainers: int) -> None:
        self.batches = list(batches)
        shards = len(self.batches)
        self.spans = list(spans_of(share_out(shards, trainers), shards))
        self.view = 3
        self.rounds = LaneRounds(shards, self.spans, NBYTES, job=JOB, view=self.view)
        self.flying: set[Span] = set()
        self.landed: set[Span] = set()
        self.inbox = np.zeros((len(self.spans), WIDTH), dtype=np.float32)
        self.before: dict[Span, tuple[Head, list[Record]]] = {}
        self.sums: list[tuple[bytes | None, int]] = []
        self.totals: list[dict[int, Totals]] = []

    @property
    def batch(self) -> int:
        return self.rounds.round - self.rounds.pass_start

    def live(self, span: Span) -> list[int]:
        return [s for s in span.shards if self.batch < max(self.batches[s], 1)]

    def records(self, span: Span) -> list[Record]:
        at = self.rounds.pass_id, self.batch
        found = []
        for s in self.live(span):
            count = samples_of(s, *at) if self.batches[s] else 0
            is_last = self.batch + 1 >= self.batches[s]
            found.append(Record(s, is_last, count, 0.1 * count, (1.0 * count, 0.0, 0.3)))
        return found

    def head(self, span: Span) -> Head:
        has_samples = any(r.samples for r in self.records(span))
        head = Head(Kind.PUSH, job=JOB, view=self.view, round=self.rounds.round, lo=span.lo, hi=span.hi)
        return head._replace(nbytes=NBYTES * has_samples, records=len(self.live(span)))

    def subtree_sum(self, span: Span) -> Gradient | None:
        if span.hi - span.lo == 1:
            has_batch = self.batch < self.batches[span.lo]
            return gradient(span.lo, self.rounds.pass_id, self.batch) if has_batch else None
        left, right = map(self.subtree_sum, children(span))
        if left is None or right is None:
            return right if left is None else left
        return left + right

    def state(self) -> dict[str, object]:
        machine = self.rounds
        names = ("round", "pass_id", "pass_start", "samples", "_before", "ended", "totals", "_rows")
        return copy.deepcopy({name: getattr(machine, name) for name in names})

    def unchanged(self, head: Head, records: list[Record]) -> object:
        """Offer a frame that must change nothing, and return the verdict."""
        before = self.state()
        verdict = self.rounds.offer(head, records)
        assert self.state() == before
        return verdict

    def advance(self, span: Span) -> None:
        """Offer a contribution, or let the payload of an offered one arrive."""
        if not self.live(span) or span in self.landed:
            return
        row = self.spans.index(span)
        if span not in self.flying:
            assert self.rounds.offer(self.head(span), self.records(span)) == Take(row)
            self.flying.add(span)
            return
        total = self.subtree_sum(span)
        self.inbox[row] = np.nan if total is None else total
        self.flying.remove(span)
        self.landed.add(span)
        wanted = all(other in self.landed for other in self.spans if self.live(other))
        closing = self.rounds.landed(span)
        assert (closing is not None) == wanted
        if closing is not None:
            self.close(closing)

    def close(self, closing: Closing) -> None:
        pass_id, batch = self.rounds.pass_id, self.batch
        for a, b in closing.steps:
            self.inbox[a] += self.inbox[b]
        total = None if closing.root is None else self.inbox[closing.root].tobytes()
        self.sums.append((total, closing.samples))
        self.before = {s: (self.head(s), self.records(s)) for s in self.landed}
        assert closing.round == self.rounds.round
        assert closing.pass_id == pass_id
        ends_pass = batch + 1 == max(*self.batches, 1)
        assert closing.ends_pass == ends_pass
        done = self.rounds.close()
        assert (done is not None) == ends_pass
        assert self.rounds.samples == closing.samples
        assert self.rounds.pass_id == pass_id + ends_pass
        if done is not None:
            self.totals.append(done)
        self.landed.clear()

    def disturb(self, kind: int, span: Span) -> None:
        head, records = self.head(span), self.records(span)
        if kind == 0 and span in self.flying:
            self.rounds.dropped(span)
            self.flying.remove(span)
        elif kind == 1 and span in self.landed:
            assert self.unchanged(head, records) == Repeat(self.spans.index(span))
        elif kind == 1 and span in self.flying:
            assert isinstance(self.unchanged(head, records), Refuse)
        elif kind == 2 and span in self.before:
            self.come_late(*self.before[span])
        elif kind == 3:
            other = [r._replace(samples=r.samples + 1) for r in records]
            if span in self.landed and head.nbytes:
                assert isinstance(self.unchanged(head, other), Refuse)
        elif kind == 4:
            self.refuse_strangers(head, records)
        elif kind == 5:
            self.look()
        elif kind == 6:
            self.change_view(head, records)

    def change_view(self, head: Head, records: list[Record]) -> None:
        """After a loss the open round's contributions are sent again, and nothing else is forgotten."""
        self.view += 1
        before = self.state()
        self.rounds.enter(self.view)
        assert self.state() == before | {"_rows": {}}
        verdict = self.unchanged(head, records)
        assert isinstance(verdict, Refuse) and verdict.is_stale
        self.flying.clear()
        self.landed.clear()

    def come_late(self, head: Head, records: list[Record]) -> None:
        """What counted is sent again; for shards that have ended maybe many rounds later."""
        for round_ in range(head.round + 1):
            assert self.unchanged(head._replace(view=self.view, round=round_), records) == Late()

    def refuse_strangers(self, head: Head, records: list[Record]) -> None:
        at = self.rounds.round
        strangers = [
            head._replace(job=JOB + 1),
            head._replace(view=self.view - 1),
            head._replace(view=self.view + 1),
            head._replace(round=at + 1),
            head._replace(hi=head.hi + 1),
            head._replace(nbytes=NBYTES + 4),
        ]
        for stranger in strangers:
            assert isinstance(self.unchanged(stranger, records), Refuse)
        extra = [*records, Record(len(self.batches), False, 1)]
        assert isinstance(self.unchanged(head, extra), Refuse)

    def look(self) -> None:
        before = self.state()
        machine, pull = self.rounds, Head(Kind.PULL, job=JOB, view=self.view)
        now = AnswerAt(machine.round, machine.pass_id, self.batch)
        assert machine.look(pull._replace(flags=Flag.NOW)) == now
        assert machine.look(pull._replace(round=machine.round)) == now
        assert machine.look(pull._replace(round=machine.round + 1)) == Wait()
        assert machine.look(pull._replace(flags=Flag.AT_PASS, round=machine.pass_id + 1)) == Wait()
        if machine.round:
            kept = machine.look(pull._replace(round=machine.round - 1))
            assert isinstance(kept, AnswerAt)
            assert kept.round == machine.round - 1
        if machine.round > 1:
            assert isinstance(machine.look(pull._replace(round=machine.round - 2)), Refuse)
        assert isinstance(machine.look(pull._replace(job=0)), Refuse)
        assert self.state() == before


def run(batches: Sequence[int], trainers: int, choices: Sequence[int], passes: int) -> Play:
    play = Play(batches, trainers)
    for choice in choices:
        span = play.spans[choice // 13 % len(play.spans)]
        if choice % 13 < 6:
            play.advance(span)
        else:
            play.disturb(choice % 13 - 6, span)
        if play.rounds.pass_id == passes:
            return play
    most = 2 * passes * max(*batches, 1)  # each round takes an offer and a landing
    for span in play.spans * most:
        if play.rounds.pass_id < passes:
            play.advance(span)
    assert play.rounds.pass_id == passes, "the job does not end"
    return play


_BATCHES = st.lists(st.integers(0, 4), min_size=1, max_size=7)
_CHOICES = st.lists(st.integers(0, 13 * 7 - 1), max_size=150)


@given(batches=_BATCHES, choices=_CHOICES, data=st.data())
def test_any_order_with_any_disturbance_closes_the_same_rounds(
    batches: list[int], choices: list[int], data: st.DataObject
) -> None:
    trainers = data.draw(st.integers(1, len(batches)))
    quiet = run(batches, 1, [], passes=2)
    loud = run(batches, trainers, choices, passes=2)
    assert loud.sums == quiet.sums
    assert loud.totals == quiet.totals


@given(batches=_BATCHES, choices=_CHOICES, data=st.data())
def test_totals_count_every_batch_of_every_shard_once(
    batches: list[int], choices: list[int], data: st.DataObject
) -> None:
    trainers = data.draw(st.integers(1, len(batches)))
    play = run(batches, trainers, choices, passes=2)
    assert play.rounds.round == 2 * max(*batches, 1)
    for pass_id, totals in enumerate(play.totals):
        counts = {s: [samples_of(s, pass_id, b) for b in range(n)] for s, n in enumerate(batches)}
        assert {s: t.samples for s, t in totals.items()} == {s: sum(c) for s, c in counts.items()}
        for shard, total in totals.items():
            assert total.cost == sum(0.1 * count for count in counts[shard])
            assert total.evals[0] == sum(counts[shard])
    assert play.rounds.samples == sum(t.samples for totals in play.totals for t in totals.values())
