"""How rows that a round touches are updated: the dense formulas on compact buffers, with each row's own numbers.

A row's numbers depend on how long ago it was touched. Regularisation is not in the formula but comes
after it, for all rounds since it was last done, in one shot: a soft threshold of rate * l1 * rounds, then a
division by 1 + rate * l2 * rounds. Running means fade by rho^rounds. A row without a push
costs nothing. What differs from row to row is done before and after the formula where that gives the same
bits, so that its kernel can walk many rows at once.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from bireme.ps.optim import kernels
from bireme.ps.optim.kernels import Floats, Inbox
from bireme.ps.optim.methods import LAZY_MOMENTUM, method_of
from bireme.ps.optim.optimizers import FOLD_PERIOD, NO_CLOCK, fixed_rules, state_names
from bireme.ps.sparse import table_kernels
from bireme.ps.sparse.table_kernels import Doubles, Flags, Numbers
from bireme.spec.model import Optimizer, Parameter

RESTART_ABOVE = 1e6
"""Where the clock of lazy momentum starts anew: float32 holds no more of a value beside larger factors."""
BLOCK = 32768
"""Floats of each buffer that are updated at a time: few enough to stay in cache from one step to the next."""
_NO_STEPS = np.empty((0, 2), np.int32)


@dataclass(slots=True)
class MomentumClock:
    """What time does to momentum in rows that are not touched: three numbers for the whole table.

    A row keeps u and v with velocity = u / alpha and beta * value = (tau + beta / alpha) * u + v. Between touches
    both stay as they are, while the numbers move on: so a touch finds value and velocity as if every
    round had touched the row with a zero gradient.
    """

    alpha: float = 1.0
    beta: float = 1.0
    tau: float = -1.0
    beta_before: float = 1.0

    def advance(self, momentum: float, decay: float) -> None:
        """One round passes; `decay` is the learning rate times the L2 rate."""
        self.beta_before = self.beta
        self.tau += self.beta / self.alpha
        self.alpha /= momentum
        self.beta *= 1.0 + decay

    def factors(self, rate: float) -> Doubles:
        """What lazy momentum weighs with: gradient into u, gradient into v, u and v into the value."""
        push = self.alpha * rate
        return np.array([push, self.tau * push, self.tau / self.beta + 1.0 / self.alpha, 1.0 / self.beta])


@dataclass(frozen=True, slots=True)
class Push:
    """A round that touches rows, and the marks of these from before it."""

    round: int
    learning_rate: float
    caught_up: int  # the round after which all rows were last regularised
    touched: Numbers  # the round of each row's last push; for a new row the round before this one
    is_first: Flags  # whether this is the first push that changes the row

    def of(self, part: slice) -> Push:
        return Push(self.round, self.learning_rate, self.caught_up, self.touched[part], self.is_first[part])


class RowRule:
    """Updates compact buffers of up to `block_rows` rows of one table; keeps nothing but the clock."""

    def __init__(self, parameter: Parameter, optimizer: Optimizer) -> None:
        self._parameter = parameter
        self._optimizer = optimizer
        self._width = parameter.shape[1]
        moving = [] if parameter.is_static else [parameter]
        method = method_of(optimizer)
        self.is_lazy = method.rows == "catch up" and any(p.momentum != 0 for p in moving)
        self._method = LAZY_MOMENTUM if self.is_lazy else method
        self.names = state_names(self._method, moving) if moving else ()
        self.clock = MomentumClock()
        self.is_regularised = parameter.l1 > 0 or parameter.l2 > 0
        self.block_rows = max(1, BLOCK // self._width)
        self._kernel = kernels.kernel_of(self._method)
        self._fading = len(method.state) if method.rows == "fade" else 0
        self._numbers = fixed_rules(optimizer, [parameter])
        self._numbers[:, kernels.DECAY] = 0.0
        self._numbers[:, [kernels.SHRINK, kernels.KEEP1, kernels.KEEP2]] = 1.0

    def advance(self, learning_rate: float) -> None:
        """A round begins, whether or not it touches a row."""
        if self.is_lazy:
            rate = learning_rate * self._parameter.learning_rate
            self.clock.advance(self._parameter.momentum, rate * self._parameter.l2)

    def restart(self, block: Floats) -> None:
        """A round has ended: start the clock anew before its numbers grow too large, which visits every row."""
        if self.clock.alpha > RESTART_ABOVE:
            _, _, u_factor, v_factor = self.clock.factors(0.0)
            table_kernels.rebase(block, self._width, self.clock.alpha, u_factor, v_factor)
            self.clock = MomentumClock()

    def update(self, push: Push, g: Floats, w: Floats, state: Floats, after: Floats) -> None:
        """Apply one gradient a row: change the state in place and write the new values to `after`."""
        inbox = Inbox(g.reshape(1, -1), _NO_STEPS, 0)
        rate = push.learning_rate * self._parameter.learning_rate
        if self.is_lazy:
            v, values = state[1].reshape(-1, self._width), w.reshape(-1, self._width)
            v[push.is_first] = np.float32(self.clock.beta_before) * values[push.is_first]
            self._move_lazily(inbox, w, after, state, rate)
            return
        if self._method.is_folded:
            table_kernels.fold(state, push.touched < push.round - push.round % FOLD_PERIOD)
        if self._fading:
            ages = push.round - push.touched
            table_kernels.fade(state[: self._fading], table_kernels.powers(self._optimizer.rho, ages))
        rounds = push.round - np.maximum(push.touched, push.caught_up)
        rules, lines = self._rules(rate, rounds, push.is_first)
        rules[:, kernels.LR] = rate
        self._kernel(inbox, w, after, state, table_kernels.cut(lines, self._width), rules, NO_CLOCK)
        self._shrink(after, rate, rounds)

    def catch_up(self, rounds: Numbers, learning_rate: float, w: Floats, state: Floats, after: Floats) -> None:
        inbox = Inbox(np.zeros((1, w.size), np.float32), _NO_STEPS, 0)
        rate = learning_rate * self._parameter.learning_rate
        if self.is_lazy:
            self._move_lazily(inbox, w, after, state, 0.0)
        elif self._parameter.l1 > 0:
            # The formula runs with a zero gradient and a zero step, for the adaptive rate that L1 is scaled with.
            rules, lines = self._rules(rate, rounds, np.zeros(len(rounds), np.bool_))
            rules[:, [kernels.ADD1, kernels.ADD2]] = 0.0
            self._kernel(inbox, w, after, state, table_kernels.cut(lines, self._width), rules, NO_CLOCK)
        else:
            after[:] = w
            self._shrink(after, rate, rounds)

    def _move_lazily(self, inbox: Inbox, w: Floats, after: Floats, state: Floats, rate: float) -> None:
        chunks = table_kernels.cut(np.zeros(w.size // self._width, np.int64), self._width)
        self._kernel(inbox, w, after, state, chunks, self._numbers, self.clock.factors(rate))

    def _rules(self, rate: float, rounds: Numbers, is_first: Flags) -> tuple[Floats, Numbers]:
        """The kernel's table and the line of it that each row goes by; with few lines it walks many rows at once."""
        if self._parameter.l1 > 0:
            rules, lines = np.repeat(self._numbers, len(rounds), axis=0), np.arange(len(rounds))
            rules[:, kernels.THRESHOLD] = rate * self._parameter.l1 * rounds
            rules[:, kernels.SHRINK] = 1.0 + rate * self._parameter.l2 * rounds
            if self._fading:
                rules[is_first, kernels.ADD2] = 1.0
        elif self._fading:
            rules, lines = np.repeat(self._numbers, 2, axis=0), is_first.astype(np.int64)
            rules[1, kernels.ADD2] = 1.0
        else:
            rules, lines = self._numbers.copy(), np.zeros(len(rounds), np.int64)
        return rules, lines

    def _shrink(self, after: Floats, rate: float, rounds: Numbers) -> None:
        """L2 without L1, which is the same for all methods and so need not be in the formulas."""
        if self._parameter.l2 > 0 and self._parameter.l1 == 0:
            divisors = 1.0 + rate * self._parameter.l2 * rounds
            table_kernels.divide(after, divisors.astype(np.float32))
