"""Putting lanes together again from a snapshot's parts, however many lanes the parts were cut into.

A part holds of each dense lane `lane<k>.place` (begin and end in the flat vector of all dense parameters),
`lane<k>.w` and the optimizer's rows; of each sparse lane and table `rows<k>.<table>.<name>`, a table's
state. Where a lane writes only the rows that changed since an earlier snapshot, it adds
`gone`, the ids that are no longer there. All rules are elementwise or by row, so a lane that is put
together from others' pieces continues with the same bits.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bireme.core.errors import ModelError, SnapshotError
from bireme.ps.optim.optimizers import UPDATES, VELOCITY
from bireme.ps.plan import Slice
from bireme.ps.snapshot.snapshot_files import SnapshotFile
from bireme.ps.sparse.row_sums import Ids, lane_of
from bireme.ps.sparse.table import CLOCK, IDS, ROUNDS, State

PLACE, VALUES = "place", "w"
GONE = "gone"
_WHOLE = (ROUNDS, CLOCK)  # what a table's state has once, not for each row
Arrays = Mapping[str, NDArray[Any]]


def pack_dense(lane: int, part: Slice, w: NDArray[np.float32], state: Arrays) -> dict[str, NDArray[Any]]:
    """One dense lane's arrays under the names that they have in a part; nothing is copied."""
    arrays: dict[str, NDArray[Any]] = {PLACE: np.array([part.begin, part.end], np.int64), VALUES: w, **state}
    return {f"lane{lane}.{name}": array for name, array in arrays.items()}


def pack_table(lane: int, table: str, state: Arrays, gone: Ids | None = None) -> dict[str, NDArray[Any]]:
    """One sparse lane's rows of a table under the names that they have in a part; `gone` marks a delta."""
    arrays = dict(state) if gone is None else {**state, GONE: gone}
    return {f"rows{lane}.{table}.{name}": array for name, array in arrays.items()}


def dense_slice(parts: Iterable[SnapshotFile], part: Slice, *, size: int | None = None) -> dict[str, NDArray[Any]]:
    """One lane's `w` and optimizer state. State rows get `size` elements; what a lane has beyond is padding.

    A missing velocity means zeros: the lane that it comes from may have had no use for one.
    """
    lanes = list(_dense_lanes(parts))
    if not lanes:
        raise SnapshotError("the snapshot holds no dense parameters", fix="use another snapshot")
    names = {name for _, _, arrays in lanes for name in arrays} - {PLACE, UPDATES}
    result: dict[str, NDArray[Any]] = {name: np.zeros(len(part), np.float32) for name in sorted(names)}
    position = part.begin
    for where, place, arrays in sorted(lanes, key=lambda lane: (lane[1].begin, lane[1].end)):
        _check_lane(where, place, arrays, names)
        begin, end = max(place.begin, part.begin), min(place.end, part.end)
        if begin >= end:
            continue
        if begin != position:
            raise _holes(position, begin)
        for name, array in arrays.items():
            if name in names:
                piece = array[begin - place.begin : end - place.begin]
                result[name][begin - part.begin :][: len(piece)] = piece
        position = end
    if position < part.end:
        raise _holes(position, part.end)
    result[UPDATES] = _agreed_updates(lanes)
    return {n: a[:size] if n in names - {VALUES} else a for n, a in result.items()}


def _arrays_by_lane(part: SnapshotFile, kind: str, table: str = "") -> Iterator[tuple[str, dict[str, NDArray[Any]]]]:
    """The arrays of each `lane<k>`, or of a table in each `rows<k>`, under their own names."""
    lanes: dict[str, dict[str, NDArray[Any]]] = {}
    for full_name, array in part.arrays.items():
        owner, _, name = full_name.rpartition(".")  # a table's name may have dots
        lane, _, of_table = owner.partition(".")
        if lane.startswith(kind) and of_table == table:
            lanes.setdefault(lane, {})[name] = array
    yield from lanes.items()


def _dense_lanes(parts: Iterable[SnapshotFile]) -> Iterator[tuple[str, Slice, dict[str, NDArray[Any]]]]:
    for part in parts:
        for lane, arrays in _arrays_by_lane(part, "lane"):
            missing = {PLACE, VALUES, UPDATES} - set(arrays)
            if missing:
                raise SnapshotError(f"{part.name} lacks {lane}.{min(missing)}", fix="use another snapshot")
            begin, end = (int(x) for x in arrays[PLACE])
            yield f"{part.name}, {lane}", Slice(begin, end), arrays


def _check_lane(where: str, place: Slice, arrays: Arrays, names: set[str]) -> None:
    missing = names - {VELOCITY} - set(arrays)
    long = [n for n in arrays if n in names and len(arrays[n]) > len(place)]
    if missing or long or len(arrays[VALUES]) != len(place):
        what = f"lacks {min(missing)}" if missing else f"has a wrong length for {min(long, default=VALUES)}"
        raise SnapshotError(f"{where} {what}", fix="use another snapshot")


def _agreed_updates(lanes: Sequence[tuple[str, Slice, Arrays]]) -> NDArray[np.int64]:
    counts = {int(arrays[UPDATES][0]) for _, _, arrays in lanes}
    if len(counts) > 1:
        raise SnapshotError(
            f"the dense lanes had {min(counts)} to {max(counts)} updates when they were saved",
            why="parts of one snapshot must hold the same moment",
            fix="use another snapshot",
        )
    return np.array([*counts], np.int64)


def _holes(position: int, begin: int) -> SnapshotError:
    what = "no part holds" if begin > position else "several parts hold"
    lo, hi = sorted((position, begin))
    return SnapshotError(
        f"{what} elements {lo} to {hi - 1} of the dense parameters",
        why="the snapshot is not whole, or was made for other parameters",
        fix="use another snapshot, or the config that this one was made with",
    )


def chained_rows(chain: Iterable[Iterable[SnapshotFile]], table: str, lane: int, lanes: int) -> State:
    """The rows of a table that one of so many lanes keeps, from a snapshot and those that it builds on, oldest first.

    Each is given by its parts. In each snapshot every lane, of however many there were, may have written all
    of its rows or those that changed since some earlier snapshot: lanes do not learn of commits at the same moment.
    """
    state: State | None = None
    for parts in chain:
        rows, gone, whole, then_lanes = _level(parts, table, lane, lanes)
        if len(whole) == then_lanes:
            state = rows
        elif state is None:
            raise SnapshotError(f"the rows of {table} build on a snapshot that is not there", fix="use another one")
        else:
            # What earlier snapshots hold of the rows of lanes that wrote everything does not count.
            is_replaced = np.isin(lane_of(state[IDS], then_lanes), whole)
            state = apply_delta(state, rows, np.concatenate([gone, state[IDS][is_replaced]]))
    if state is None:
        raise SnapshotError(f"there is no snapshot of the rows of {table}")
    return state


def _level(parts: Iterable[SnapshotFile], table: str, lane: int, lanes: int) -> tuple[State, Ids, list[int], int]:
    """One snapshot's rows of a lane; ids that are gone; which lanes wrote everything; how many lanes there were."""
    states: list[State] = []
    gone, whole = [np.empty(0, np.uint64)], []
    for where, number, arrays in _table_lanes(parts, table):
        if GONE in arrays:
            gone.append(part_of({IDS: arrays.pop(GONE)}, lane, lanes)[IDS])
        else:
            whole.append(number)
        if set(arrays) != (set(states[0]) if states else set(arrays) | {IDS, ROUNDS}):
            raise SnapshotError(f"{where} lacks arrays, or has some that others lack", fix="use another snapshot")
        states.append(part_of(arrays, lane, lanes))
    if not states:
        raise SnapshotError(f"no part holds rows of {table}", fix="use the config that the snapshot was made with")
    rows = join_states(states)
    if bool((rows[IDS][1:] == rows[IDS][:-1]).any()):
        raise SnapshotError(f"several lanes hold the same rows of {table}", fix="use another snapshot")
    return rows, np.concatenate(gone), whole, len(states)


def _table_lanes(parts: Iterable[SnapshotFile], table: str) -> Iterator[tuple[str, int, dict[str, NDArray[Any]]]]:
    for part in parts:
        for lane, arrays in _arrays_by_lane(part, "rows", table):
            yield f"{part.name}, {lane}.{table}", int(lane.removeprefix("rows")), arrays


def part_of(state: Arrays, lane: int, lanes: int) -> State:
    """What of a table's state belongs to one of so many lanes."""
    # Arrays of a part are read-only, and Numba would compile once more for these.
    is_own = lane_of(np.require(state[IDS], np.uint64, ["C", "A", "W"]), lanes) == lane
    return {name: array if name in _WHOLE else array[is_own] for name, array in state.items()}


def join_states(states: Iterable[Arrays]) -> State:
    """One state of all rows from the states of several lanes, all taken after the same round."""
    parts = list(states)
    for part in parts[1:]:
        for name in set(_WHOLE) & set(part):
            if not np.array_equal(part[name], parts[0][name]):
                raise ModelError("saved rows of one parameter are of different rounds", fix="use another snapshot")
    order = np.argsort(np.concatenate([part[IDS] for part in parts]))
    return {
        name: first if name in _WHOLE else np.concatenate([part[name] for part in parts])[order]
        for name, first in parts[0].items()
    }


def apply_delta(full: Arrays, delta: Arrays, gone: Ids) -> State:
    """The state after a delta: rows that are gone leave, changed ones take the place of what they were."""
    if set(full) != set(delta) or delta[ROUNDS][0] < full[ROUNDS][0]:
        raise SnapshotError("an incremental snapshot does not follow the one that it builds on", fix="use another one")
    is_kept = ~np.isin(full[IDS], np.concatenate([gone, delta[IDS]]))
    kept = {name: now if name in _WHOLE else full[name][is_kept] for name, now in delta.items()}
    return join_states([kept, delta])
