"""Update rules as machine code: sum the inbox, clip, decay and step in one walk over memory.

A slice is walked in chunks that stay in cache. For each chunk a kernel sums the inbox rows in the
order of `steps`, works out the step, and takes it: three or four plain loops that the
compiler turns into vector instructions. Everything is float32 and elementwise, without fused or reordered
arithmetic, so neither the cutting into chunks and slices nor the processor changes a bit.
Python literals would be float64 here: constants are spelled out as `ZERO` and `ONE`.
Rows and `w` are only read; `w_next` and the state are written. NaN is never hidden.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, TypeVar

import numba
import numpy as np
from numpy.typing import NDArray

CHUNK = 4096
"""Floats in a chunk: 16 KiB of every array at a time."""

ZERO = np.float32(0.0)
ONE = np.float32(1.0)

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
_F = TypeVar("_F", bound=Callable[..., object])


class Inbox(NamedTuple):
    """One round's gradients: add row b to row a for each (a, b) of `steps`; row `root` is then the sum."""

    rows: Floats
    steps: NDArray[np.int32]
    root: int


def jit(function: _F) -> _F:
    """Compile on first call and keep the result on disk; where no disk can be written, keep it in memory."""
    # error_model: IEEE division, which can be vectorised, instead of a Python exception per element.
    try:
        compiled: _F = numba.njit(cache=True, nogil=True, error_model="numpy")(function)
    except RuntimeError:  # Numba found no place for its cache
        compiled = numba.njit(nogil=True, error_model="numpy")(function)
    return compiled


@jit
def _work_space(rows: int) -> Floats:
    work = np.empty((SUMS + rows, CHUNK), np.float32)
    work[RATE, :] = ONE  # methods without an adaptive rate leave it so
    return work


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
def _is_plain(rule: Floats) -> bool:
    """Whether the new value is the old one minus the step, and nothing else."""
    return bool(rule[MOMENTUM] == ZERO and rule[THRESHOLD] == ZERO and rule[SHRINK] == ONE)


@jit
def _target(w_next: Floats, chunk: Ints, rule: Floats, work: Floats) -> tuple[bool, Floats]:
    """Where a kernel's loop writes to: new values at once where they are plain, else steps for `_move`.

    One walk less over the chunk; the compiler makes two loops of the one.
    """
    if _is_plain(rule):
        return True, w_next[chunk[0] : chunk[1]]
    return False, work[STEP, : chunk[1] - chunk[0]]


@jit
def _move(w: Floats, w_next: Floats, state: Floats, chunk: Ints, rule: Floats, work: Floats) -> None:
    """Take the step that the work space holds, where the rule has momentum or L1; a plain one has been taken."""
    if _is_plain(rule):
        return
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


@jit
def momentum(inbox: Inbox, w: Floats, w_next: Floats, state: Floats, chunks: Ints, rules: Floats) -> None:
    """Plain SGD, or with momentum: state is [velocity] or nothing."""
    work, is_summed = _work_space(inbox.rows.shape[0]), np.empty(inbox.rows.shape[0], np.bool_)
    for c in range(chunks.shape[0]):
        chunk, rule = chunks[c], rules[chunks[c, 2]]
        left, right, is_pair = _gather(inbox, chunk, rule[CLIP], work, is_summed)
        size, x = chunk[1] - chunk[0], w[chunk[0] : chunk[1]]
        is_plain, out = _target(w_next, chunk, rule, work)
        lr, decay = rule[LR], rule[DECAY]
        for i in range(size):
            g = left[i] + right[i] if is_pair else left[i]
            step = lr * (g + decay * x[i])
            out[i] = x[i] - step if is_plain else step
        _move(w, w_next, state, chunk, rule, work)


sparse_momentum = momentum
"""On dense parameters, where every element is touched in every round, it is the same thing."""


@jit
def adagrad(inbox: Inbox, w: Floats, w_next: Floats, state: Floats, chunks: Ints, rules: Floats) -> None:
    """Rate from the sum of squares: state is [old sum, recent sum, velocity if any]."""
    work, is_summed = _work_space(inbox.rows.shape[0]), np.empty(inbox.rows.shape[0], np.bool_)
    for c in range(chunks.shape[0]):
        chunk, rule = chunks[c], rules[chunks[c, 2]]
        left, right, is_pair = _gather(inbox, chunk, rule[CLIP], work, is_summed)
        size, x = chunk[1] - chunk[0], w[chunk[0] : chunk[1]]
        (is_plain, out), rate = _target(w_next, chunk, rule, work), work[RATE, :size]
        old, recent = state[0, chunk[0] : chunk[1]], state[1, chunk[0] : chunk[1]]
        lr, decay, eps = rule[LR], rule[DECAY], rule[EPSILON]
        for i in range(size):
            g = left[i] + right[i] if is_pair else left[i]
            recent[i] += g * g
            rate[i] = ONE / np.sqrt(old[i] + recent[i] + eps)
            step = lr * rate[i] * (g + decay * x[i])
            out[i] = x[i] - step if is_plain else step
        _move(w, w_next, state, chunk, rule, work)


@jit
def adadelta(inbox: Inbox, w: Floats, w_next: Floats, state: Floats, chunks: Ints, rules: Floats) -> None:
    """Rate from two means: state is [mean square, mean square step, velocity if any]."""
    work, is_summed = _work_space(inbox.rows.shape[0]), np.empty(inbox.rows.shape[0], np.bool_)
    for c in range(chunks.shape[0]):
        chunk, rule = chunks[c], rules[chunks[c, 2]]
        left, right, is_pair = _gather(inbox, chunk, rule[CLIP], work, is_summed)
        size, x = chunk[1] - chunk[0], w[chunk[0] : chunk[1]]
        (is_plain, out), rate = _target(w_next, chunk, rule, work), work[RATE, :size]
        square, delta = state[0, chunk[0] : chunk[1]], state[1, chunk[0] : chunk[1]]
        lr, decay, eps, keep, add = rule[LR], rule[DECAY], rule[EPSILON], rule[KEEP2], rule[ADD2]
        for i in range(size):
            g = left[i] + right[i] if is_pair else left[i]
            square[i] = keep * square[i] + add * (g * g)
            rate[i] = np.sqrt((delta[i] + eps) / (square[i] + eps))
            move = g * rate[i]
            delta[i] = keep * delta[i] + add * (move * move)
            step = lr * rate[i] * (g + decay * x[i])
            out[i] = x[i] - step if is_plain else step
        _move(w, w_next, state, chunk, rule, work)


@jit
def rmsprop(inbox: Inbox, w: Floats, w_next: Floats, state: Floats, chunks: Ints, rules: Floats) -> None:
    """Rate from the variance: state is [mean square, mean, velocity if any]."""
    work, is_summed = _work_space(inbox.rows.shape[0]), np.empty(inbox.rows.shape[0], np.bool_)
    for c in range(chunks.shape[0]):
        chunk, rule = chunks[c], rules[chunks[c, 2]]
        left, right, is_pair = _gather(inbox, chunk, rule[CLIP], work, is_summed)
        size, x = chunk[1] - chunk[0], w[chunk[0] : chunk[1]]
        (is_plain, out), rate = _target(w_next, chunk, rule, work), work[RATE, :size]
        square, mean = state[0, chunk[0] : chunk[1]], state[1, chunk[0] : chunk[1]]
        keep1, add1, keep2, add2 = rule[KEEP1], rule[ADD1], rule[KEEP2], rule[ADD2]
        lr, decay, eps = rule[LR], rule[DECAY], rule[EPSILON]
        for i in range(size):
            g = left[i] + right[i] if is_pair else left[i]
            square[i] = keep2 * square[i] + add2 * (g * g)
            mean[i] = keep1 * mean[i] + add1 * g
            # A variance is never negative, but the difference of two nearly equal float32 can be:
            # taken as 0, so that the root below is real and the rate at most 1/sqrt(epsilon).
            variance = square[i] - mean[i] * mean[i]
            rate[i] = ONE / np.sqrt((ZERO if variance < ZERO else variance) + eps)
            step = lr * rate[i] * (g + decay * x[i])
            out[i] = x[i] - step if is_plain else step
        _move(w, w_next, state, chunk, rule, work)


@jit
def decayed_adagrad(inbox: Inbox, w: Floats, w_next: Floats, state: Floats, chunks: Ints, rules: Floats) -> None:
    """Rate from the mean square: state is [mean square, velocity if any]."""
    work, is_summed = _work_space(inbox.rows.shape[0]), np.empty(inbox.rows.shape[0], np.bool_)
    for c in range(chunks.shape[0]):
        chunk, rule = chunks[c], rules[chunks[c, 2]]
        left, right, is_pair = _gather(inbox, chunk, rule[CLIP], work, is_summed)
        size, x, square = chunk[1] - chunk[0], w[chunk[0] : chunk[1]], state[0, chunk[0] : chunk[1]]
        (is_plain, out), rate = _target(w_next, chunk, rule, work), work[RATE, :size]
        lr, decay, eps, keep, add = rule[LR], rule[DECAY], rule[EPSILON], rule[KEEP2], rule[ADD2]
        for i in range(size):
            g = left[i] + right[i] if is_pair else left[i]
            square[i] = keep * square[i] + add * (g * g)
            rate[i] = ONE / np.sqrt(square[i] + eps)
            step = lr * rate[i] * (g + decay * x[i])
            out[i] = x[i] - step if is_plain else step
        _move(w, w_next, state, chunk, rule, work)


@jit
def adam(inbox: Inbox, w: Floats, w_next: Floats, state: Floats, chunks: Ints, rules: Floats) -> None:
    """State is [mean, mean square]; the rule's learning rate holds the bias correction."""
    work, is_summed = _work_space(inbox.rows.shape[0]), np.empty(inbox.rows.shape[0], np.bool_)
    for c in range(chunks.shape[0]):
        chunk, rule = chunks[c], rules[chunks[c, 2]]
        left, right, is_pair = _gather(inbox, chunk, rule[CLIP], work, is_summed)
        size, x = chunk[1] - chunk[0], w[chunk[0] : chunk[1]]
        is_plain, out = _target(w_next, chunk, rule, work)
        mean, square = state[0, chunk[0] : chunk[1]], state[1, chunk[0] : chunk[1]]
        keep1, add1, keep2, add2 = rule[KEEP1], rule[ADD1], rule[KEEP2], rule[ADD2]
        lr, decay, eps = rule[LR], rule[DECAY], rule[EPSILON]
        for i in range(size):
            g = left[i] + right[i] if is_pair else left[i]
            h = g + decay * x[i]
            mean[i] = keep1 * mean[i] + add1 * h
            square[i] = keep2 * square[i] + add2 * (h * h)
            step = lr * (mean[i] / (np.sqrt(square[i]) + eps))
            out[i] = x[i] - step if is_plain else step
        _move(w, w_next, state, chunk, rule, work)


@jit
def adamax(inbox: Inbox, w: Floats, w_next: Floats, state: Floats, chunks: Ints, rules: Floats) -> None:
    """State is [mean, largest]; the rule's learning rate holds the bias correction."""
    work, is_summed = _work_space(inbox.rows.shape[0]), np.empty(inbox.rows.shape[0], np.bool_)
    for c in range(chunks.shape[0]):
        chunk, rule = chunks[c], rules[chunks[c, 2]]
        left, right, is_pair = _gather(inbox, chunk, rule[CLIP], work, is_summed)
        size, x = chunk[1] - chunk[0], w[chunk[0] : chunk[1]]
        is_plain, out = _target(w_next, chunk, rule, work)
        mean, largest = state[0, chunk[0] : chunk[1]], state[1, chunk[0] : chunk[1]]
        lr, decay, keep1, add1, keep2 = rule[LR], rule[DECAY], rule[KEEP1], rule[ADD1], rule[KEEP2]
        for i in range(size):
            g = left[i] + right[i] if is_pair else left[i]
            h = g + decay * x[i]
            mean[i] = keep1 * mean[i] + add1 * h
            faded, now = keep2 * largest[i], np.abs(h)
            largest[i] = faded if now <= faded else now
            # Nothing but zero gradients so far: no step, rather than 0/0.
            step = ZERO if largest[i] == ZERO else lr * (mean[i] / largest[i])
            out[i] = x[i] - step if is_plain else step
        _move(w, w_next, state, chunk, rule, work)


@jit
def lazy_momentum(
    inbox: Inbox,
    w: Floats,
    w_next: Floats,
    state: Floats,
    chunks: Ints,
    rules: Floats,
    factors: NDArray[np.float64],
) -> None:
    """Momentum that rows catch up with when touched: state is [u, v], `factors` weigh them (see `Clock`).

    Sums are rounded to float32 once, as the factors reach a million.
    """
    work, is_summed = _work_space(inbox.rows.shape[0]), np.empty(inbox.rows.shape[0], np.bool_)
    for c in range(chunks.shape[0]):
        chunk, rule = chunks[c], rules[chunks[c, 2]]
        left, right, is_pair = _gather(inbox, chunk, rule[CLIP], work, is_summed)
        after = w_next[chunk[0] : chunk[1]]
        u, v = state[0, chunk[0] : chunk[1]], state[1, chunk[0] : chunk[1]]
        for i in range(chunk[1] - chunk[0]):
            g = left[i] + right[i] if is_pair else left[i]
            u[i] = u[i] - factors[0] * g
            v[i] = v[i] + factors[1] * g
            after[i] = factors[2] * u[i] + factors[3] * v[i]
