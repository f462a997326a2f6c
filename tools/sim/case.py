"""The job of one history, and its expected result, computed by plain loops without lanes, trainers or faults.

Parameters are numbers. A gradient is a hash of all parameters and of the batch, a sum one of its terms in their order,
an update one of old value and sum: a missing, doubled, stale or misplaced push shows in every later round.
Where updates come one by one their order is free, so a lane's value is the set of pushes that it has applied.
In `local` mode a shard's gradient also depends on all that it sent before in the same pass: state of trainers alone.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Literal

from bireme.core.draws import stream_key
from bireme.ps.wire.frames import Record
from bireme.spec.model import Optimizer, Parameter, Snapshots, Updates
from bireme.spec.terms import Facts

Mode = Literal["sync", "bounded", "async", "local"]
MIX: tuple[Mode, ...] = ("sync", "sync", "sync", "bounded", "async")
MODES: tuple[Mode, ...] = ("sync", "bounded", "async", "local")
LOCAL = 0.15
"""The share of sync histories that run in local mode instead."""
OUTPUT = "output"
SNAPSHOTS = "output/snapshots"
PATIENCE_S = 60.0
_APART = 0x7368617065
"""Makes another generator of a history's seed."""


@dataclass(frozen=True, slots=True)
class Shape:
    """How large a job is."""

    mode: Mode
    trainers: int
    pservers: int
    lanes: int
    shards: int
    passes: int
    batch_size: int
    staleness: int
    samples: tuple[tuple[int, ...], ...]
    """By pass and shard."""
    cut_every_s: float
    keep: int
    cut_every_rounds: int = 0

    @property
    def is_streamed(self) -> bool:
        """Whether updates come one by one; else they come in rounds, and the bits are known beforehand."""
        return self.mode in ("bounded", "async")

    def batches(self, pass_id: int, shard: int) -> int:
        """How many batches a shard has in a pass."""
        return -(-self.samples[pass_id][shard] // self.batch_size)

    def rounds(self, pass_id: int, shard: int) -> int:
        """In how many rounds of a pass a shard takes part: an empty one takes part in the first."""
        return max(self.batches(pass_id, shard), 1)

    def record(self, pass_id: int, shard: int, batch: int) -> Record:
        """A shard's record of a batch."""
        total = self.samples[pass_id][shard]
        count = min(self.batch_size, total - batch * self.batch_size) if total else 0
        cost = ((shard * 7 + batch * 3 + pass_id) % 11) / 7.0 if total else 0.0
        return Record(shard, batch + 1 >= self.rounds(pass_id, shard), count, cost)

    @property
    def all_lanes(self) -> int:
        """Lanes of all pservers."""
        return self.pservers * self.lanes


def draw_shape(seed: int, rng: random.Random, mode: Mode | None) -> Shape:
    """A small job. Some of it has a generator of its own, so that a seed names the same history as before."""
    apart = random.Random(seed ^ _APART)
    is_local, cut_every_rounds = apart.random() < LOCAL, apart.choice((0, 0, 0, 1, 2, 5))
    drawn: Mode = rng.choice(MIX)
    chosen = mode or ("local" if drawn == "sync" and is_local else drawn)
    trainers, pservers = rng.choice((1, 2, 3, 3)), rng.choice((1, 2, 3, 3))
    shards = trainers + rng.choice((0, 0, 1, 2))
    passes = rng.randint(1, 4)
    rounds = rng.randint(1, max(1, 20 // passes))
    size = 4
    samples = tuple(
        tuple(0 if rng.random() < 0.05 else rng.randint(1, rounds * size) for _ in range(shards)) for _ in range(passes)
    )
    samples = tuple(counts if any(counts) else (1,) * shards for counts in samples)
    lanes, staleness = rng.choice((1, 1, 2)), rng.randint(0, 2)
    cut_every_s = rng.choice((0.0, 0.01, 0.03, 0.1))
    return Shape(
        chosen, trainers, pservers, lanes, shards, passes, size, staleness, samples, cut_every_s, rng.randint(1, 3),
        cut_every_rounds,
    )  # fmt: skip


def usual_shape() -> Shape:
    """Three trainers, three pservers, 20 rounds: the job for figures of speed."""
    samples = ((40, 40, 38), (40, 37, 40))
    return Shape("sync", 3, 3, 1, 3, 2, 4, 0, samples, 0.03, 2)


def facts_of(shape: Shape) -> Facts:
    """The job's facts, as trainers send them."""
    return Facts(
        name="simulated",
        program="hashes",
        fingerprint="f",
        parameters=(Parameter(name="w", shape=(1,)),),
        optimizer=Optimizer(),
        batch_size=shape.batch_size,
        evals=(),
        shards=shape.shards,
        trainers=shape.trainers,
        passes=shape.passes,
        seed=0,
        pservers=shape.pservers,
        ports_num=shape.lanes,
        ports_num_for_sparse=0,
        output=OUTPUT,
        updates=Updates(mode=shape.mode, staleness=shape.staleness),
        data_fingerprint="d",
        snapshots=Snapshots(
            path=SNAPSHOTS, every_s=shape.cut_every_s, every_rounds=shape.cut_every_rounds, keep=shape.keep
        ),
        connect_timeout_s=PATIENCE_S,
    )


def gradient(shard: int, pass_id: int, batch: int, values: tuple[int, ...], own: int = 0) -> int:
    """A shard's gradient at these parameters and, in local mode, this state of its trainer."""
    return hash((shard, pass_id, batch, values, own))


def add(left: int, right: int) -> int:
    """A sum that depends on the order of its terms."""
    return hash((left, right))


def updated(lane: int, value: int, total: int | None, samples: int, pass_id: int) -> int:
    """A lane's value after a round."""
    return hash((lane, value, -1 if total is None else total, samples, pass_id))


def first_value(lane: int) -> int:
    """A lane's first value."""
    return stream_key(0, lane) >> 8


class Reference:
    """The parameters after every round of a job that has rounds."""

    def __init__(self, shape: Shape) -> None:
        self._shape = shape
        self._values = [tuple(first_value(lane) for lane in range(shape.all_lanes))]
        self.ends: list[int] = []
        """The round after each pass."""
        self._samples = 0
        self._own: dict[int, int] = {}
        for pass_id in range(shape.passes):
            self._own.clear()
            for batch in range(max(shape.rounds(pass_id, shard) for shard in range(shape.shards))):
                self._values.append(self._next(pass_id, batch))
            self.ends.append(len(self._values) - 1)

    def _next(self, pass_id: int, batch: int) -> tuple[int, ...]:
        shape, now = self._shape, self._values[-1]
        leaves: list[int | None] = []
        for shard in range(shape.shards):
            if batch < shape.batches(pass_id, shard):
                leaves.append(gradient(shard, pass_id, batch, now, self._own.get(shard, 0)))
                if shape.mode == "local":
                    self._own[shard] = leaves[-1] or 0
                self._samples += shape.record(pass_id, shard, batch).samples
            else:
                leaves.append(None)
        total = _tree(leaves)
        return tuple(updated(lane, value, total, self._samples, pass_id) for lane, value in enumerate(now))

    def value(self, round_: int, lane: int) -> int:
        """A lane's expected value after so many rounds."""
        return self._values[round_][lane] if round_ < len(self._values) else -1


def _tree(leaves: list[int | None]) -> int | None:
    """The sum over the fixed tree; a shard without a contribution passes its sibling through."""
    if len(leaves) == 1:
        return leaves[0]
    middle = (len(leaves) + 1) // 2
    left, right = _tree(leaves[:middle]), _tree(leaves[middle:])
    if left is None or right is None:
        return right if left is None else left
    return add(left, right)
