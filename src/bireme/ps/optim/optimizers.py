"""The optimizer of one contiguous slice of the dense parameters: its state, and one round's update.

A slice is cut into segments, one for each parameter that reaches into it. Each segment has a row of
numbers (learning rate, clip, decay …) that the kernel reads, so one call updates the whole slice.
All rules are elementwise: however the parameters are cut into slices, the bits are the same.
The only counter is the number of updates: bias correction, the first update's weight and the
folding of Adagrad's sums all follow from it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from bireme.core.errors import ModelError, SpecError
from bireme.ps.optim.methods import METHODS, Method, method_of
from bireme.spec.model import Optimizer, Parameter

Floats = NDArray[np.float32]
State = dict[str, NDArray[np.float32] | NDArray[np.int64]]

FOLD_PERIOD = 16384
"""Updates after which Adagrad's recent sum is moved into the old one, lest small squares be rounded away."""

VELOCITY = "velocity"
UPDATES = "updates"
ROW_METHODS = tuple(name for name, method in METHODS.items() if method.rows != "refused")
NO_CLOCK = np.zeros(4, np.float64)  # what kernels get where no row has to catch up


@dataclass(frozen=True, slots=True)
class Segment:
    """Where (a part of) one parameter lies within a slice."""

    parameter: Parameter
    begin: int
    end: int


class SliceOptimizer:
    """Keeps the optimizer state of one slice and applies rounds to it.

    State arrays exist only where the method needs them. Not for use by two threads at once.
    """

    def __init__(self, optimizer: Optimizer, segments: Sequence[Segment]) -> None:
        from bireme.ps.optim import kernels  # here: Numba takes half a second to import

        _check_segments(segments)
        self._optimizer = optimizer
        self._method = method_of(optimizer)
        self._size = segments[-1].end if segments else 0
        self._still = [s for s in segments if s.parameter.is_static]
        self._gaps = _gaps(segments)
        moving = [s for s in segments if not s.parameter.is_static]
        self._names = state_names(self._method, [s.parameter for s in moving])
        self._state = np.zeros((len(self._names), self._size), np.float32)
        self._updates = 0
        self._kernel = kernels.kernel_of(self._method)
        self._chunks = cut_chunks(moving)
        self._rules = fixed_rules(optimizer, [s.parameter for s in moving])
        self._multipliers = np.array([s.parameter.learning_rate for s in moving], np.float64)
        self._l1 = np.array([s.parameter.l1 for s in moving], np.float64)
        # With L1 the decay is a division after the soft threshold; without, it is part of the formula.
        self._late_l2 = np.array([s.parameter.l2 if s.parameter.l1 > 0 else 0.0 for s in moving], np.float64)

    def apply(
        self, rows: Floats, root: int, steps: NDArray[np.int32], w: Floats, w_next: Floats, learning_rate: float
    ) -> None:
        """Sum the rows as `steps` say, and write the parameters after this round to `w_next`.

        `learning_rate` is the scheduled one. Rows and `w` are only read. Padding in `w_next` becomes zero.
        """
        from bireme.ps.optim.kernels import Inbox

        self._check_arrays(rows, root, steps, w, w_next)
        for still in self._still:
            w_next[still.begin : still.end] = w[still.begin : still.end]
        for begin, end in self._gaps:
            w_next[begin:end] = 0.0
        w_next[self._size :] = 0.0
        self._updates += 1
        self._set_rates(learning_rate)
        self._kernel(Inbox(rows, steps, int(root)), w, w_next, self._state, self._chunks, self._rules, NO_CLOCK)
        if self._method.is_folded and self._updates % FOLD_PERIOD == 0:
            self._state[0] += self._state[1]
            self._state[1] = 0.0

    def state(self) -> State:
        """All that the next round depends on, by name: whole-slice arrays where they lie, and `updates`."""
        arrays: State = dict(zip(self._names, self._state, strict=True))
        arrays[UPDATES] = np.array([self._updates], np.int64)
        return arrays

    def load_state(self, arrays: Mapping[str, NDArray[np.float32] | NDArray[np.int64]]) -> None:
        """Continue from what `state` returned, here or in another slice cut at the same positions.

        A missing velocity means zeros: the slice that it comes from may have had no use for one.
        """
        missing = {*self._names, UPDATES} - {VELOCITY} - set(arrays)
        wrong = [name for name in self._names if name in arrays and arrays[name].shape != (self._size,)]
        if missing or wrong:
            what = f"lacks {', '.join(sorted(missing))}" if missing else f"has a wrong length for {wrong[0]}"
            raise ModelError(
                f"the saved optimizer state {what}",
                why=f"{self._optimizer.method} cannot continue on {self._size} parameters without it",
                fix="resume with the optimizer and the network that the snapshot was made with",
            )
        for row, name in zip(self._state, self._names, strict=True):
            row[:] = arrays.get(name, 0.0)
        self._updates = int(arrays[UPDATES][0])

    def _set_rates(self, learning_rate: float) -> None:
        """Fill in the columns that change from round to round; float64 until the last rounding."""
        from bireme.ps.optim import kernels

        rates = learning_rate * self._multipliers
        self._rules[:, kernels.LR] = rates * self._method.correction(self._optimizer, self._updates)
        self._rules[:, kernels.THRESHOLD] = rates * self._l1
        self._rules[:, kernels.SHRINK] = 1.0 + rates * self._late_l2
        if self._method.first_counts_whole:
            self._rules[:, kernels.ADD2] = 1.0 if self._updates == 1 else 1.0 - self._optimizer.rho

    def _check_arrays(self, rows: Floats, root: int, steps: NDArray[np.int32], w: Floats, w_next: Floats) -> None:
        """Catch callers that would read out of bounds, or make Numba compile for other types."""
        size = self._size
        fits = rows.ndim == 2 and w.size == w_next.size == rows.shape[1] >= size
        is_plain = all(a.dtype == np.float32 and a.flags.carray for a in (rows, w, w_next))
        if not (fits and is_plain and steps.dtype == np.int32 and steps.flags.carray):
            raise AssertionError("apply needs plain writable float32 arrays of one length; this is a bug")
        in_range = steps.size == 0 or (steps.min() >= 0 and steps.max() < len(rows))
        if not in_range or not 0 <= root < len(rows) or np.may_share_memory(w, w_next):
            raise AssertionError("apply was given steps outside the inbox, or w as w_next; this is a bug")


def warm(optimizer: Optimizer) -> None:
    """Compile this method's kernel, or load it from Numba's cache, before the first round waits for it."""
    one = SliceOptimizer(optimizer, [Segment(Parameter(name="warm", shape=(1,)), 0, 1)])
    rows, w = np.zeros((1, 1), np.float32), np.zeros(1, np.float32)
    one.apply(rows, 0, np.empty((0, 2), np.int32), w, np.zeros_like(w), 0.0)


def check_rules(parameters: Iterable[Parameter]) -> None:
    """Refuse rules that no kernel can follow."""
    for parameter in parameters:
        if parameter.l1 > 0 and parameter.momentum != 0:
            raise SpecError(
                f"parameter {parameter.name} has L1 {parameter.l1:g} and momentum {parameter.momentum:g}",
                why="the velocity would carry weights past the zero that L1 holds them at",
                fix="set its momentum to 0 or its l1_rate to 0",
            )


def check_sparse(parameters: Iterable[Parameter], optimizer: Optimizer) -> None:
    """Refuse sparse parameters that a table cannot keep, or that this optimizer cannot update row by row."""
    for p in parameters:
        if not p.is_sparse:
            continue
        if len(p.shape) != 2:
            raise SpecError(
                f"sparse parameter {p.name} has shape {list(p.shape)}",
                why="a table has rows of one width: two dimensions",
                fix="take sparse_update from this parameter",
            )
        if p.is_static:
            continue
        if optimizer.method not in ROW_METHODS:
            raise SpecError(
                f"{optimizer.method} cannot update sparse parameter {p.name}",
                why="every round changes every row's state in this method, touched or not",
                fix=f"use {', '.join(ROW_METHODS[:-1])} or {ROW_METHODS[-1]}, or take sparse_update from the parameter",
            )
        _check_momentum(p, optimizer)


def _check_momentum(p: Parameter, optimizer: Optimizer) -> None:
    catches_up = method_of(optimizer).rows == "catch up"
    if catches_up and not 0 <= p.momentum < 1:
        raise SpecError(
            f"sparse parameter {p.name} has momentum {p.momentum:g}",
            why="what rows catch up with would grow without bound",
            fix="set its momentum to at least 0 and below 1",
        )
    can_decay = catches_up and p.l1 == 0
    if p.momentum != 0 and (p.l1 > 0 or p.l2 > 0) and not can_decay:
        raise SpecError(
            f"sparse parameter {p.name} has momentum {p.momentum:g} and regularisation",
            why="rows are regularised for many rounds at once, which a velocity would undo",
            fix="set its momentum to 0 or its decay to 0"
            + ("" if p.l1 > 0 else ", or use MomentumOptimizer(sparse=True)"),
        )


def _check_segments(segments: Sequence[Segment]) -> None:
    position = 0
    for segment in segments:
        if not position <= segment.begin < segment.end:
            raise AssertionError(f"segment {segment} overlaps or is empty; this is a bug")
        position = segment.end
    check_rules(segment.parameter for segment in segments)


def _gaps(segments: Sequence[Segment]) -> list[tuple[int, int]]:
    ends = [0, *(s.end for s in segments)]
    return [(end, s.begin) for end, s in zip(ends, segments, strict=False) if end < s.begin]


def state_names(method: Method, parameters: Iterable[Parameter]) -> tuple[str, ...]:
    """Name the state rows in the order that kernels expect; velocity, if any, comes last."""
    needs_velocity = method.has_momentum and any(p.momentum != 0 for p in parameters)
    return tuple(method.state) + ((VELOCITY,) if needs_velocity else ())


def cut_chunks(moving: Sequence[Segment]) -> NDArray[np.int64]:
    """Cut segments into pieces of cache size: rows of (begin, end, segment number)."""
    from bireme.ps.optim.kernels import CHUNK

    pieces = [
        (begin, min(begin + CHUNK, segment.end), number)
        for number, segment in enumerate(moving)
        for begin in range(segment.begin, segment.end, CHUNK)
    ]
    return np.array(pieces, np.int64).reshape(len(pieces), 3)


def fixed_rules(optimizer: Optimizer, parameters: Sequence[Parameter]) -> Floats:
    """Fill in what never changes of the kernel's table, one row for each parameter."""
    from bireme.ps.optim import kernels

    method = method_of(optimizer)
    # Constants of `Optimizer` that a formula does not read have their defaults and change nothing.
    keep1, keep2 = (getattr(optimizer, name) for name in method.moments)
    rules = np.zeros((len(parameters), kernels.RULE_COLUMNS), np.float32)
    for row, parameter in zip(rules, parameters, strict=True):
        row[kernels.MOMENTUM] = parameter.momentum if method.has_momentum else 0.0
        row[kernels.DECAY] = 0.0 if parameter.l1 > 0 else parameter.l2
        row[kernels.CLIP] = parameter.clip if parameter.clip > 0 else np.inf
        row[kernels.EPSILON] = optimizer.epsilon
        row[kernels.KEEP1], row[kernels.ADD1] = keep1, 1.0 - keep1
        row[kernels.KEEP2], row[kernels.ADD2] = keep2, 1.0 - keep2
    return rules
