"""A sparse parameter's rows on one lane: which exist, what they hold, and how a round changes them.

A row begins when it is first pushed to, with values drawn from a stream of its own (seed, parameter, id).
Reading changes nothing. What a push does to a row depends on the row's own history and on round numbers
alone, so it does not matter on how many lanes the rows are spread, nor in which order they came.
With `admit_after` the first pushes only count; with `evict_after` rows without a push are forgotten, at
rounds that their numbers fix. What the last round changed can still be read as it was before it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bireme.core.draws import stream_key
from bireme.core.errors import ModelError
from bireme.ps.optim.optimizers import check_sparse
from bireme.ps.sparse.arena import Arena, RowCopies
from bireme.ps.sparse.row_sums import Floats, Ids, Slots
from bireme.ps.sparse.table_kernels import Draw
from bireme.ps.sparse.table_rules import Push, RowRule
from bireme.spec.model import Optimizer, Parameter, Rows

Rule = Callable[[slice, Floats, Floats, Floats], None]
"""Rewrites a part of the rows: from values and state to values after it, changing the state in place."""
State = dict[str, NDArray[Any]]

IDS, VALUES, TOUCHED, PUSHES = "ids", "values", "touched", "pushes"
ROUNDS = "rounds"  # in a state: the last round, and the one after which all rows were last regularised
CLOCK = "clock"
MOST_EVICTED = 1 << 16  # how many ids of forgotten rows are remembered however few rows there are


class Table:
    """The rows of one sparse parameter that one lane keeps. Not for use by two threads at once.

    Rounds are numbered from 0 and may be skipped where they touch no row; only what is *read* between can then
    be older than it should (rows that are due to be forgotten, and `read_before`).
    """

    def __init__(self, parameter: Parameter, optimizer: Optimizer, seed: int) -> None:
        check_sparse([parameter], optimizer)
        lives = parameter.rows or Rows()
        self.width = parameter.shape[1]
        self._parameter = parameter
        self._admit_after = lives.admit_after
        self._evict_after = lives.evict_after
        # A sweep walks all rows, so not every round has one; a row stays at most a quarter longer than asked.
        self._sweep_every = max(1, lives.evict_after // 4)
        self._seed = seed
        self._rule = RowRule(parameter, optimizer)
        self._arena = self._empty_arena()
        self._round = -1
        self._caught_up = -1
        self._undo: list[tuple[Ids, Floats]] = []
        # As wide as rows: a lane that never had one writes arrays that can be joined with those of other lanes.
        self._room = RowCopies.of_size(0, self._arena.block.shape[1])
        self._evicted: list[tuple[int, Ids]] = []
        self._evicted_after = -1  # `_evicted` is complete for rounds after this one
        self._before_room = np.empty((0, self.width), np.float32)
        room = self._rule.block_rows * self.width
        self._after_room = np.empty(room, np.float32)
        self._state_room = np.empty(len(self._rule.names) * room, np.float32)

    def _empty_arena(self) -> Arena:
        p = self._parameter
        key = np.uint64(stream_key(self._seed, "row", p.name))
        draw = Draw(key, p.init.kind == "normal", float(p.init.mean), float(p.init.spread))
        return Arena(self.width, len(self._rule.names), draw)

    def _blank(self, rows: int) -> Floats:
        return np.zeros((len(self._rule.names), rows * self.width), np.float32)

    def __len__(self) -> int:
        """How many rows are kept, those included that are not admitted yet."""
        return len(self._arena)

    def read(self, ids: Ids) -> Floats:
        """Values of these rows, in any order; of rows that do not exist, their first values."""
        return self._arena.read(_plain(ids, np.uint64))

    def read_before(self, ids: Ids) -> Floats:
        """What `read` would have given before the last round; its `end_pass` is part of a round."""
        ids = _plain(ids, np.uint64)
        out = self.read(ids)
        for changed, values in reversed(self._undo):
            place = np.searchsorted(changed, ids).clip(max=len(changed) - 1)
            is_changed = changed[place] == ids
            out[is_changed] = values[place[is_changed]]
        return out

    def apply(self, ids: Ids, rows: Floats, learning_rate: float, round_: int) -> None:
        """One round's summed gradient, by ascending ids; `learning_rate` is the scheduled one."""
        ids, rows = _plain(ids, np.uint64), _plain(rows, np.float32)
        if rows.shape != (len(ids), self.width) or not (ids[1:] > ids[:-1]).all() or round_ <= self._round:
            raise AssertionError("apply needs ascending ids, a row for each, and a later round; this is a bug")
        self._undo = []  # of one round: a lane is asked for its present parameters or those one round before
        self._skip_to(round_ - 1, learning_rate)
        self._round = round_
        if self._parameter.is_static:
            return
        self._rule.advance(learning_rate)
        if len(ids):
            self._push(ids, rows, learning_rate)
        self._rule.restart(self._arena.block)
        self._sweep(round_)

    def _push(self, ids: Ids, g: Floats, learning_rate: float) -> None:
        rows = self._arena.find_or_add(ids, self._round - 1)
        touched, pushes = self._arena.mark(rows, self._round)
        if self._admit_after:
            is_in = pushes >= self._admit_after
            ids, g, rows = ids[is_in], g[is_in], rows[is_in]
            touched, pushes = touched[is_in], pushes[is_in]
        push = Push(self._round, learning_rate, self._caught_up, touched, pushes == self._admit_after)
        self._change(
            ids, rows, lambda part, w, state, after: self._rule.update(push.of(part), g[part], w, state, after)
        )

    def _change(self, ids: Ids, rows: Slots, rule: Rule) -> None:
        """Let a rule rewrite rows, as many at a time as stay in cache; what they were is kept for `read_before`."""
        # Copied before they change: a trainer that is one round behind may still ask for these values.
        before = self._buffer(len(ids))
        step = self._rule.block_rows
        for begin in range(0, len(ids), step):
            part = slice(begin, min(begin + step, len(ids)))
            w = before[part].reshape(-1)
            state = self._state_room[: len(self._rule.names) * w.size].reshape(-1, w.size)
            after = self._after_room[: w.size]
            self._arena.load(rows[part], w, state)
            rule(part, w, state, after)
            self._arena.store(rows[part], after, state)
        if len(ids):
            self._undo.append((ids.copy(), before))

    def _buffer(self, count: int) -> Floats:
        """Room for what rows were, where the round before had it: fresh memory costs more than the copy itself."""
        if self._undo:
            return np.empty((count, self.width), np.float32)
        if len(self._before_room) < count:
            self._before_room = np.empty((count + count // 4, self.width), np.float32)
        return self._before_room[:count]

    def _skip_to(self, round_: int, learning_rate: float) -> None:
        """Let rounds pass that touched nothing; they are taken to have had this learning rate."""
        if self._rule.is_lazy:
            for _ in range(self._round, round_):
                self._rule.advance(learning_rate)
                self._rule.restart(self._arena.block)
        # Of several sweeps the last one alone does the same, as nothing was pushed between them.
        sweep = round_ - round_ % self._sweep_every
        if sweep > self._round:
            self._sweep(sweep)
        self._round = max(self._round, round_)

    def _sweep(self, round_: int) -> None:
        if not self._evict_after or self._parameter.is_static or round_ % self._sweep_every:
            return
        rows = self._arena.older_than(round_ - self._evict_after)
        if len(rows):
            ids = self._arena.ids_of(rows)
            self._undo.append((ids, self._arena.values(rows)))
            self._evicted.append((round_, ids))
            self._arena.remove(rows)
        if sum(len(ids) for _, ids in self._evicted) > len(self) + MOST_EVICTED:
            self.forget_changes(round_)  # no cut asks for them, or a whole state would have fewer rows

    def end_pass(self, learning_rate: float, round_: int) -> None:
        """Bring regularisation up to date in all rows; `round_` is the pass's last, after its `apply`."""
        if round_ < self._round:
            raise AssertionError(f"a pass that ended in round {round_}, before round {self._round}; this is a bug")
        if round_ > self._round:
            self._undo = []
            self._skip_to(round_, learning_rate)
        if not self._rule.is_regularised or self._parameter.is_static:
            return
        rows = self._arena.taken()
        touched, pushes = self._arena.marks_of(rows)
        rounds = round_ - np.maximum(touched, self._caught_up)
        # Lazy momentum begins with the first push that counts; before it there is nothing to catch up with.
        is_behind = (rounds > 0) & (pushes >= self._admit_after + self._rule.is_lazy)
        rows, rounds = rows[is_behind], rounds[is_behind]
        self._change(
            self._arena.ids_of(rows),
            rows,
            lambda part, w, state, after: self._rule.catch_up(rounds[part], learning_rate, w, state, after),
        )
        self._caught_up = round_

    def rows(self) -> tuple[Ids, Floats]:
        rows = self._arena.taken()
        rows = rows[self._arena.marks_of(rows)[1] >= self._admit_after]
        return self._arena.ids_of(rows), self._arena.values(rows)

    def put(self, ids: Ids, values: Floats) -> None:
        """Set rows to values of a saved model: admitted, with fresh state, as if last pushed to in the last round."""
        ids, values = _plain(ids, np.uint64), _plain(values, np.float32)
        if values.shape != (len(ids), self.width) or len(np.unique(ids)) != len(ids):
            raise AssertionError("put needs different ids and a row of values for each; this is a bug")
        rows = self._arena.find_or_add(ids, self._round)
        self._arena.set_marks(rows, self._round, self._admit_after)
        self._arena.store(rows, values.reshape(-1), self._blank(len(rows)))
        self._undo = []

    def can_tell_changes(self, since: int) -> bool:
        """Whether all that changed after that round is in `changed_rows` and `evicted`.

        Not where rows change without a push: with regularisation at the end of a pass, or with a lazy momentum.
        """
        return not self._rule.is_lazy and self._caught_up <= since and self._evicted_after <= since

    def changed_rows(self, since: int | None) -> Slots:
        """Arena rows that were pushed to after that round, or all of them."""
        return self._arena.pushed_since(since)

    def evicted(self, since: int) -> Ids:
        """Ids that were forgotten after that round, by ascending id; those that came back are in `changed_rows` too."""
        gone = [ids for round_, ids in self._evicted if round_ > since]
        return np.unique(np.concatenate(gone)) if gone else np.empty(0, np.uint64)

    def forget_changes(self, until: int) -> None:
        self._evicted = [(round_, ids) for round_, ids in self._evicted if round_ > until]
        self._evicted_after = max(self._evicted_after, until)

    def state_of(self, rows: Slots, nbytes: int) -> tuple[State, list[Callable[[], None]]]:
        """All that the next round depends on of these rows, in their order, once all calls are made.

        Each call copies about so many bytes. They must be made before the next round; the arrays are good until this
        is called again.
        """
        count, stride = len(rows), self._arena.block.shape[1]
        step = max(nbytes // (4 * stride), 1)
        if len(self._room.ids) < count:
            self._room = RowCopies.of_size(count + count // 4, stride)
        room, names = self._room.part(slice(count)), (VALUES, *self._rule.names)
        arrays: State = {IDS: room.ids, TOUCHED: room.touched, PUSHES: room.pushes}
        arrays |= {name: room.block[:, i * self.width : (i + 1) * self.width] for i, name in enumerate(names)}
        parts = [slice(begin, begin + step) for begin in range(0, count, step)]
        arrays[ROUNDS] = np.array([self._round, self._caught_up], np.int64)
        if self._rule.is_lazy:
            clock = self._rule.clock
            arrays[CLOCK] = np.array([clock.alpha, clock.beta, clock.tau], np.float64)
        return arrays, [partial(self._arena.copy_into, rows[p], room.part(p)) for p in parts]

    def load_state(self, arrays: Mapping[str, NDArray[Any]]) -> None:
        """Continue from a state; ids may be in any order."""
        self._check_state(arrays)
        self._arena = self._empty_arena()
        self._undo = []
        self._round, self._caught_up = (int(r) for r in arrays[ROUNDS])
        self._evicted, self._evicted_after = [], self._round
        rows = self._arena.find_or_add(_plain(arrays[IDS], np.uint64), self._round)
        w = _plain(arrays[VALUES], np.float32).reshape(-1)
        state = self._blank(len(rows))
        for part, name in zip(state, self._rule.names, strict=True):
            part[:] = arrays[name].reshape(-1)
        self._arena.store(rows, w, state)
        self._arena.set_marks(rows, arrays[TOUCHED], arrays[PUSHES])
        if self._rule.is_lazy:
            clock = self._rule.clock
            clock.alpha, clock.beta, clock.tau = (float(c) for c in arrays[CLOCK])

    def _check_state(self, arrays: Mapping[str, NDArray[Any]]) -> None:
        names = [IDS, TOUCHED, PUSHES, VALUES, *self._rule.names]
        missing = {*names, ROUNDS, *([CLOCK] if self._rule.is_lazy else [])} - set(arrays)
        what = f"lacks {', '.join(sorted(missing))}" if missing else ""
        if not missing:
            count = len(arrays[IDS])
            wrong = [n for n in names if arrays[n].shape != ((count,) if n in names[:3] else (count, self.width))]
            what = f"has a wrong shape for {wrong[0]}" if wrong else ""
        if what:
            raise ModelError(
                f"the saved state of sparse parameter {self._parameter.name} {what}",
                why="its rows cannot continue without it",
                fix="resume with the optimizer and the network that the snapshot was made with",
            )


def warm(parameter: Parameter, optimizer: Optimizer) -> None:
    """Compile what such a table needs, or load it from Numba's cache, before the first round waits for it."""
    one = Table(parameter, optimizer, 0)
    ids = np.arange(2, dtype=np.uint64)
    for round_ in range(2):
        one.apply(ids, np.zeros((2, one.width), np.float32), 0.0, round_)
    one.end_pass(0.0, 2)
    one.read_before(ids)


def _plain(array: NDArray[Any], dtype: type[np.generic]) -> NDArray[Any]:
    """The array itself, or a copy where Numba would have to compile for another kind of it."""
    return np.require(array, dtype, ["C", "A", "W"])


def first_values(parameter: Parameter, seed: int, ids: Ids) -> Floats:
    alike = Parameter(name=parameter.name, shape=parameter.shape, init=parameter.init, rows=Rows())
    return Table(alike, Optimizer(), seed).read(ids)
