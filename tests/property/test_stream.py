"""Whatever is repeated, lost or restarted, in any view: each push is applied once, within the bound.

A `World` has one trainer per shard that repeats what it says until it is answered, a network that
keeps every frame ever sent and delivers any of them at any time, and one lane's machine.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from hypothesis import given
from hypothesis import strategies as st

from bireme.ps.lanes.rounds import AnswerAt, Late, Refuse, Take, Totals, Wait
from bireme.ps.lanes.stream import LaneStream
from bireme.ps.tree import Span
from bireme.ps.wire.frames import Flag, Head, Kind, Record

JOB, NBYTES = 7, 64
Name = tuple[int, int, int]
"""Pass, shard, q."""


def gradient(name: Name) -> int:
    pass_id, shard, q = name
    return (1 + q) * (1, 1000, 10**6, 10**9)[shard % 4] + pass_id


@dataclass
class Trainer:
    """One shard's trainer: it pulls a batch's parameters, then pushes its gradient, then continues."""

    pass_id: int = 0
    q: int = 0
    has_pulled: bool = False


class World:
    """One lane and all that happens around it."""

    def __init__(self, batches: Sequence[int], staleness: int | None, passes: int) -> None:
        self.batches, self.passes = list(batches), passes
        self.shards = len(self.batches)
        self.view = 3
        self.stream = LaneStream(self.shards, NBYTES, job=JOB, view=self.view, staleness=staleness)
        self.trainers = [Trainer() for _ in self.batches]
        self.sent: list[Head] = []
        self.flying: dict[int, Name] = {}
        self.applied: Counter[Name] = Counter()
        self.sum = 0
        self.totals: list[dict[int, Totals]] = []

    def pushes_of(self, shard: int) -> int:
        return max(self.batches[shard], 1)  # an empty shard says so once

    def record(self, name: Name) -> Record:
        _, shard, q = name
        return Record(shard, q + 1 == self.pushes_of(shard), 1 + q if self.batches[shard] else 0)

    def say(self, shard: int) -> Head | None:
        """Send, or send again, what the trainer wants now."""
        trainer = self.trainers[shard]
        if trainer.pass_id == self.passes:
            return None
        head = Head(Kind.PUSH if trainer.has_pulled else Kind.PULL, job=JOB, view=self.view, round=trainer.q)
        head = head._replace(lo=shard, hi=shard + 1, extra=trainer.pass_id)
        if trainer.has_pulled:
            head = head._replace(nbytes=NBYTES if self.batches[shard] else 0)
        self.sent.append(head)
        return head

    def deliver(self, head: Head) -> None:
        name = (head.extra, head.lo, head.round)
        if head.kind == Kind.PULL:
            self.deliver_pull(head)
            return
        verdict = self.stream.offer(head, [self.record(name)])
        if isinstance(verdict, Take):
            assert verdict.row == head.lo
            assert self.applied[name] == 0
            assert head.lo not in self.flying, "two connections write into one row"
            self.flying[head.lo] = name
        elif isinstance(verdict, Late):
            assert self.applied[name] == 1
            self.acknowledge(name)
        else:
            assert isinstance(verdict, Refuse)
            assert verdict.is_stale == (head.view != self.view)
            if not verdict.is_stale:
                assert self.flying[head.lo] == name, "only what is being received is refused to an honest trainer"

    def deliver_pull(self, head: Head) -> None:
        trainer, here = self.trainers[head.lo], (head.extra, head.round)
        verdict = self.stream.look(head)
        if isinstance(verdict, AnswerAt):
            is_applied = self.applied[head.extra, head.lo, head.round] == 1
            assert is_applied or (verdict.pass_id, verdict.batch) == here
            assert verdict.round == self.applied.total()
            if (trainer.pass_id, trainer.q) == here:
                trainer.has_pulled = True
        elif isinstance(verdict, Refuse):
            assert verdict.is_stale and head.view != self.view
        else:
            assert verdict == Wait()

    def land(self, shard: int, *, is_answered: bool) -> None:
        """The payload arrives and is applied; the answer may be lost."""
        if shard not in self.flying:
            return
        name = self.flying.pop(shard)
        closing = self.stream.landed(Span(shard, shard + 1))
        assert closing is not None
        assert (closing.root is None) == (self.batches[shard] == 0)
        assert (closing.round, closing.pass_id) == (self.applied.total(), name[0])
        done = self.stream.close()
        assert closing.ends_pass == (done is not None)
        assert self.stream.samples == closing.samples
        if done is not None:
            self.totals.append(done)
        self.applied[name] += 1
        self.sum += gradient(name)
        if is_answered:
            self.acknowledge(name)

    def acknowledge(self, name: Name) -> None:
        pass_id, shard, q = name
        trainer = self.trainers[shard]
        if (trainer.pass_id, trainer.q) == (pass_id, q):
            is_last = self.record(name).is_last
            self.trainers[shard] = Trainer(pass_id + 1) if is_last else Trainer(pass_id, q + 1)

    def lose(self, shard: int) -> None:
        """The connection dies under a payload."""
        if self.flying.pop(shard, None):
            self.stream.dropped(Span(shard, shard + 1))

    def restart(self, shard: int, lacking: int) -> None:
        """The trainer is replaced; the new one asks where to continue, and some other lane lacks so many pushes."""
        now = self.stream.look(Head(Kind.PULL, Flag.NOW, job=JOB, view=self.view, lo=shard))
        assert isinstance(now, AnswerAt)
        batch = max(now.batch - lacking, 0)
        has_ended = batch == self.pushes_of(shard)
        self.trainers[shard] = Trainer(now.pass_id + 1) if has_ended else Trainer(now.pass_id, batch)

    def change_view(self, lacking: int) -> None:
        """After a loss, frames on their way are gone, and every trainer asks where to continue."""
        self.view += 1
        self.flying.clear()
        self.stream.enter(self.view)
        for shard in range(self.shards):
            self.restart(shard, lacking)

    def go_on(self, shard: int) -> None:
        """The trainer's next step, with nothing in its way."""
        self.land(shard, is_answered=True)
        head = self.say(shard)
        if head is not None:
            self.deliver(head)

    def step(self, choice: tuple[int, int, int]) -> None:
        action, shard, pick = choice[0], choice[1] % self.shards, choice[2]
        recent = [head for head in self.sent if head.lo == shard][-4:]
        if action < 6:
            self.go_on(shard)
        elif action == 6 and recent:
            self.deliver(recent[pick % len(recent)])
        elif action == 7:
            self.land(shard, is_answered=False)
        elif action == 8:
            self.lose(shard)
        elif action == 9:
            self.restart(shard, pick)
        elif action == 10:
            self.change_view(pick)

    def check(self) -> None:
        """The promises that hold at every moment."""
        stream = self.stream
        assert max(self.applied.values(), default=0) <= 1
        assert self.sum == sum(map(gradient, self.applied))
        if stream.staleness is not None:
            assert max(stream.staleness_counts, default=0) <= stream.staleness
        heads = [
            Head(Kind.PULL, job=JOB, view=self.view, round=stream.next_q[s], lo=s, extra=stream.pass_id)
            for s in range(self.shards)
            if s not in stream.ended
        ]
        assert any(isinstance(stream.look(head), AnswerAt) for head in heads), "no shard may continue"

    def finish(self) -> None:
        """From now on nothing fails: the job must end within as many steps as there is work."""
        work = self.passes * sum(self.pushes_of(s) for s in range(self.shards))
        for shard in [s for _ in range(3 * work + 3) for s in range(self.shards)]:
            self.go_on(shard)
            self.check()
        assert [t.pass_id for t in self.trainers] == [self.passes] * self.shards, "the job does not end"


def run(
    batches: Sequence[int], staleness: int | None, choices: Sequence[tuple[int, int, int]], passes: int = 2
) -> World:
    world = World(batches, staleness, passes)
    for choice in choices:
        world.step(choice)
        world.check()
    world.finish()
    return world


_BATCHES = st.lists(st.integers(0, 5), min_size=1, max_size=5)
_CHOICES = st.lists(st.tuples(st.integers(0, 10), st.integers(0, 4), st.integers(0, 3)), max_size=120)
_STALENESS = st.none() | st.integers(0, 4)


@given(batches=_BATCHES, staleness=_STALENESS, choices=_CHOICES)
def test_each_push_is_applied_once_and_one_can_always_continue(
    batches: list[int], staleness: int | None, choices: list[tuple[int, int, int]]
) -> None:
    world = run(batches, staleness, choices)
    wanted = {
        (pass_id, shard, q)
        for pass_id in range(2)
        for shard in range(len(batches))
        for q in range(world.pushes_of(shard))
    }
    assert world.applied == Counter(wanted)
    assert world.sum == sum(map(gradient, wanted))
    assert sum(world.stream.staleness_counts.values()) == len(wanted)


@given(batches=_BATCHES, staleness=_STALENESS, choices=_CHOICES)
def test_totals_count_every_batch_of_every_shard_once(
    batches: list[int], staleness: int | None, choices: list[tuple[int, int, int]]
) -> None:
    world = run(batches, staleness, choices)
    wanted = {shard: sum(range(1, count + 1)) for shard, count in enumerate(batches)}
    assert [{s: t.samples for s, t in totals.items()} for totals in world.totals] == [wanted, wanted]
    assert world.stream.samples == 2 * sum(wanted.values())
