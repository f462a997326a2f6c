"""Update rules as machine code: sum the inbox, clip, decay and step in one walk over memory.

A slice is walked in chunks that stay in cache. For each chunk a kernel sums the inbox rows in the
order of `steps`, works out the step, and takes it: three or four plain loops that the
compiler turns into vector instructions. Everything is float32 and elementwise, without fused or reordered
arithmetic, so neither the cutting into chunks and slices nor the processor changes a bit.
The formulas are in `methods`. Python literals would be float64 here: write `ZERO` and `ONE`.
Rows and `w` are only read; `w_next` and the state are written. NaN is never hidden.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable
from functools import cache
from typing import Any, NamedTuple, TypeVar

import numba
import numpy as np
from numba.extending import register_jitable
from numpy.typing import NDArray

from bireme.ps.optim.methods import ONE, ZERO, Constants, Method

CHUNK = 4096  # floats in a chunk: 16 KiB of every array at a time

# Columns of `rules`, one row for each segment.
LR = 0
MOMENTUM = 1
DECAY = 2  # L2 rate within the formula
THRESHOLD = 3  # learning rate times L1 rate; 0 means no L1
SHRINK = 4  # divisor after the soft threshold
CLIP = 5  # infinity means none
EPSILON = 6
KEEP1, ADD1 = 7, 8  # first moment = KEEP1 * itself + ADD1 * g
KEEP2, ADD2 = 9, 10  # second moment = KEEP2 * itself + ADD2 * g^2
RULE_COLUMNS = 11

# Rows of the work space before the partial sums.
GRADIENT, STEP, RATE = 0, 1, 2
SUMS = 3

Floats = NDArray[np.float32]
Ints = NDArray[np.int64]
Doubles = NDArray[np.float64]
_F = TypeVar("_F", bound=Callable[..., object])


class Inbox(NamedTuple):
    """One round's gradients: add row b to row a for each (a, b) of `steps`; row `root` is then the sum."""

    rows: Floats
    steps: NDArray[np.int32]
    root: int


# Lanes close rounds on different threads: with `nogil` their kernels run at the same time. IEEE division ("numpy") can
# be vectorised; a Python exception per element could not.
_OPTIONS: dict[str, Any] = {"nogil": True, "error_model": "numpy"}


def jit(function: _F) -> _F:
    """Compile on first call and keep the result on disk; where no disk can be written, keep it in memory."""
    try:
        compiled: _F = numba.njit(cache=True, **_OPTIONS)(function)
    except RuntimeError:  # Numba found no place for its cache
        compiled = numba.njit(**_OPTIONS)(function)
    return compiled


@jit
def _work_space(rows: int) -> Floats:
    work = np.empty((SUMS + rows, CHUNK), np.float32)
    work[RATE, :] = ONE  # methods without an adaptive rate leave it so
    return work


def load() -> None:
    """Load what all kernels need of Numba, by calling a small one: children forked later start with it."""
    _work_space(1)


@jit
def _gather(
    inbox: Inbox, chunk: Ints, clip: np.float32, work: Floats, is_summed: NDArray[np.bool_]
) -> tuple[Floats, Floats, bool]:
    """The clipped sum of the chunk's rows as two terms, which the caller adds; one term where the third is false.

    The last addition is left to the loop that needs it: one walk less over the chunk. Callers must not write to them.
    """
    begin, end = chunk[0], chunk[1]
    size = end - begin
    is_summed[:] = False
    last = inbox.steps.shape[0] - 1
    for k in range(last + 1):
        a, b = inbox.steps[k, 0], inbox.steps[k, 1]
        # Partial sums live in the work space: rows stay clean, so that they are not written back to memory.
        left = work[SUMS + a, :size] if is_summed[a] else inbox.rows[a, begin:end]
        right = work[SUMS + b, :size] if is_summed[b] else inbox.rows[b, begin:end]
        if k == last and clip == np.inf:
            return left, right, True
        total = work[SUMS + a, :size]
        for i in range(size):
            total[i] = left[i] + right[i]
        is_summed[a] = True
    root = inbox.root
    source = work[SUMS + root, :size] if is_summed[root] else inbox.rows[root, begin:end]
    if clip == np.inf:
        return source, source, False
    g = work[GRADIENT, :size]
    for i in range(size):
        value = source[i]
        value = clip if value > clip else value
        g[i] = -clip if value < -clip else value
    return g, g, False


@jit
def _constants(rule: Floats, factors: Doubles) -> Constants:
    return Constants(
        rule[LR],
        rule[DECAY],
        rule[EPSILON],
        rule[KEEP1],
        rule[ADD1],
        rule[KEEP2],
        rule[ADD2],
        factors[0],
        factors[1],
        factors[2],
        factors[3],
    )


@jit
def _is_plain(rule: Floats) -> bool:
    """Whether the new value is the old one minus the step, and nothing else."""
    return bool(rule[MOMENTUM] == ZERO and rule[THRESHOLD] == ZERO and rule[SHRINK] == ONE)


@jit
def _move(w: Floats, w_next: Floats, state: Floats, chunk: Ints, rule: Floats, work: Floats) -> None:
    begin, end = chunk[0], chunk[1]
    before, after, step = w[begin:end], w_next[begin:end], work[STEP, : end - begin]
    mu = rule[MOMENTUM]
    if mu == ZERO:
        for i in range(end - begin):
            after[i] = before[i] - step[i]
    else:
        velocity = state[state.shape[0] - 1, begin:end]
        for i in range(end - begin):
            velocity[i] = mu * velocity[i] - step[i]
            after[i] = before[i] + velocity[i]
    if rule[THRESHOLD] > ZERO:
        _soften(after, work[RATE, : end - begin], rule[THRESHOLD], rule[SHRINK])


@jit
def _soften(after: Floats, rate: Floats, threshold: np.float32, shrink: np.float32) -> None:
    """Pull towards zero by at most `threshold * rate`, then divide by `shrink`."""
    for i in range(after.size):
        bound = threshold * rate[i]
        value = after[i]
        if value > bound:
            value = value - bound
        elif value < -bound:
            value = value + bound
        elif value == value:  # NaN falls through and stays
            value = ZERO
        after[i] = value / shrink


@cache
def kernel_of(method: Method) -> Callable[..., None]:
    """Compile the walk over a slice with this optimizer's formula.

    The kernel sums the inbox, clips, and applies the formula, chunk by chunk; `factors` are the clock of lazy momentum.
    """
    formula = register_jitable(**_OPTIONS)(method.formula)
    # Constants of the machine code: it has no branches for what another method would do.
    states, has_rate, gives_value = len(method.state), method.has_rate, method.gives_value

    def walk(
        inbox: Inbox, w: Floats, w_next: Floats, state: Floats, chunks: Ints, rules: Floats, factors: Doubles
    ) -> None:
        # Anew in each call: kernels of several lanes run at once, so no space can be shared between them.
        work, is_summed = _work_space(inbox.rows.shape[0]), np.empty(inbox.rows.shape[0], np.bool_)
        for c in range(chunks.shape[0]):
            chunk, rule = chunks[c], rules[chunks[c, 2]]
            left, right, is_pair = _gather(inbox, chunk, rule[CLIP], work, is_summed)
            begin, end = chunk[0], chunk[1]
            x, rate, k = w[begin:end], work[RATE, : end - begin], _constants(rule, factors)
            # Plain steps are taken at once, which is one walk less; the compiler makes two loops of the one.
            is_plain = gives_value or _is_plain(rule)
            out = w_next[begin:end] if is_plain else work[STEP, : end - begin]
            first = state[0, begin:end] if states > 0 else rate
            second = state[1, begin:end] if states > 1 else rate
            for i in range(end - begin):
                g = left[i] + right[i] if is_pair else left[i]
                a, b = first[i] if states > 0 else ZERO, second[i] if states > 1 else ZERO
                step, a, b, r = formula(g, x[i], a, b, k)
                if states > 0:
                    first[i] = a
                if states > 1:
                    second[i] = b
                if has_rate:
                    rate[i] = r
                out[i] = x[i] - step if is_plain and not gives_value else step
            if not is_plain:
                _move(w, w_next, state, chunk, rule, work)

    # Numba finds the cache by this file's stamp and the function's name, bytecode and closure. The formula is in
    # another file, and in the closure only its name counts: our name has its code, or an old kernel might be loaded.
    code = method.formula.__code__
    mark = zlib.crc32(repr((code.co_code, code.co_consts, code.co_names)).encode())
    walk.__name__ = walk.__qualname__ = f"{method.formula.__name__.lstrip('_')}_{mark:08x}"
    return jit(walk)
