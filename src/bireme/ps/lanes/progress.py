"""Where a lane is in the data, as JSON for a snapshot: rounds, passes, ended shards, and sums that survive to the bit.

All lanes of a cut are at the same place, which is checked when they are read. Sums of costs are
written with `float.hex`, as decimal digits and JSON's lack of infinities would change them.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import msgspec

from bireme.core.errors import SnapshotError
from bireme.ps.lanes.rounds import LaneCounts, LaneMachine, Totals
from bireme.ps.snapshot.snapshot_files import SnapshotFile

COUNTS = "counts"  # the key in a part's meta


class ShardTotals(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A shard's totals as JSON can hold them."""

    samples: int
    cost: str
    evals: tuple[str, ...]

    @classmethod
    def of(cls, totals: Totals) -> ShardTotals:
        return cls(totals.samples, totals.cost.hex(), tuple(e.hex() for e in totals.evals))

    def totals(self) -> Totals:
        return Totals(self.samples, float.fromhex(self.cost), [float.fromhex(e) for e in self.evals])


class _Json(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    round: int
    pass_id: int
    pass_start: int
    samples: int
    ended: tuple[int, ...]
    totals: dict[int, ShardTotals]
    next_q: tuple[int, ...]
    staleness: dict[int, int]


def counts_of(machine: LaneMachine) -> LaneCounts:
    """A copy of what a machine has counted; it must stand at a border between rounds."""
    return LaneCounts(
        machine.round,
        machine.pass_id,
        machine.pass_start,
        machine.samples,
        frozenset(machine.ended),
        {shard: totals.copy() for shard, totals in machine.totals.items()},
        tuple(machine.next_q),
        dict(machine.staleness_counts),
    )


def pack_counts(counts: LaneCounts) -> object:
    totals = {shard: ShardTotals.of(totals) for shard, totals in counts.totals.items()}
    packed: object = msgspec.to_builtins(
        _Json(
            counts.round,
            counts.pass_id,
            counts.pass_start,
            counts.samples,
            tuple(sorted(counts.ended)),
            totals,
            counts.next_q,
            counts.staleness,
        ),
        str_keys=True,
    )
    return packed


def unpack_counts(value: Any, where: str) -> LaneCounts:
    """Read what `pack_counts` made; `where` it comes from goes into the message if it is malformed."""
    try:
        j = msgspec.convert(value, _Json, str_keys=True)
        totals = {shard: sums.totals() for shard, sums in j.totals.items()}
    except (msgspec.MsgspecError, ValueError, OverflowError) as e:
        raise SnapshotError(f"{where} does not say where its lanes were: {e}", fix="use another snapshot") from e
    return LaneCounts(
        j.round, j.pass_id, j.pass_start, j.samples, frozenset(j.ended), totals, j.next_q, dict(j.staleness)
    )


def agreed_counts(parts: Iterable[SnapshotFile]) -> LaneCounts:
    """Where all parts of a cut are; refused where they are not at one place.

    The sums are those of the first part: where updates come one by one, lanes may differ in how stale they were.
    """
    named = [(part.name, unpack_counts(part.meta.get(COUNTS), part.name)) for part in parts]
    if not named:
        raise SnapshotError("a snapshot without parts says nothing about where it was taken")
    first_name, first = named[0]
    for name, counts in named[1:]:
        if _place(counts) != _place(first):
            raise SnapshotError(
                _difference(name, counts, first_name, first),
                why="parts of one snapshot must hold the same moment",
                fix="use another snapshot",
            )
    return first


def _place(counts: LaneCounts) -> tuple[object, ...]:
    return (counts.round, counts.pass_id, counts.pass_start, counts.samples, counts.ended, counts.next_q)


def _difference(name: str, counts: LaneCounts, first_name: str, first: LaneCounts) -> str:
    if counts.round != first.round:
        return f"{name} was cut at round {counts.round}, {first_name} at round {first.round}"
    if counts.samples != first.samples:
        return f"{name} has counted {counts.samples:,} samples, {first_name} {first.samples:,}"
    return f"{name} has seen the end of other shards, or of other batches, than {first_name}"
