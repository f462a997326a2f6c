"""The optimizers, one declaration each: formula, state, constants, rows of tables, name in configs, documentation.

A formula is plain Python over the float32 numbers of one element. Its arguments are the summed and clipped gradient,
the value, two numbers of state and the parameter's constants; it returns the step (the value becomes value - step), the
state after it, and the element's own rate, which L1 is scaled with. `kernels.kernel_of` compiles it into the walk over
a slice, so a formula may use arithmetic, comparisons and NumPy's functions. Python literals would be float64 there:
write `ZERO` and `ONE`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

import numpy as np

from bireme.core.errors import SpecError
from bireme.spec.model import Optimizer

F = np.float32
ZERO, ONE = F(0.0), F(1.0)


class Constants(NamedTuple):
    """What a formula reads besides the element: one parameter's numbers in one round."""

    lr: F
    decay: F  # the L2 rate, where L2 is a part of the formula
    epsilon: F
    keep1: F
    add1: F  # first moment = keep1 * itself + add1 * gradient
    keep2: F
    add2: F  # second moment = keep2 * itself + add2 * gradient²
    push_u: np.float64
    push_v: np.float64
    weigh_u: np.float64
    weigh_v: np.float64  # the clock of lazy momentum (`ps/sparse/table_rules.py:Clock`)


Result = tuple[F, F, F, F]  # step, first state, second state, rate
Formula = Callable[[F, F, F, F, Constants], Result]


def _no_correction(_optimizer: Optimizer, _updates: int) -> float:
    return 1.0


@dataclass(frozen=True)
class Method:
    """One optimizer."""

    name: str
    formula: Formula
    state: Mapping[str, str] = field(default_factory=dict)
    """State arrays in the order of the formula, at most two, each with its letter in `update`."""
    update: str = ""
    """The formula for people: a row of docs/reference/optimizers.md, as are `defaults` and `between_touches`."""
    defaults: str = ""
    word: str = ""  # the class that a config calls
    arguments: Mapping[str, float | None] = field(default_factory=dict)
    """Constants of `Optimizer` that the class takes, with its defaults; None where it must be given."""
    moments: tuple[Literal["rho", "beta1"], Literal["rho", "beta2"]] = ("rho", "rho")
    """Which constants keep the first and the second moment."""
    has_momentum: bool = True
    has_rate: bool = False
    """Whether elements have rates of their own; else L1 is not scaled, and the formula returns `ONE`."""
    is_scheduled: bool = True  # False: the learning rate is used as it is, without the schedule
    first_counts_whole: bool = False  # whether the mean square starts from the whole of the first one
    is_folded: bool = False
    """Whether the second state is a recent sum, moved into the first every `FOLD_PERIOD` updates."""
    correction: Callable[[Optimizer, int], float] = _no_correction
    """What the learning rate is multiplied with at an update, counted from 1."""
    rows: Literal["refused", "rest", "fade", "catch up"] = "refused"
    """What happens to a row of a table in rounds that do not touch it: all its state is kept, or fades, or changes."""
    between_touches: str = ""
    gives_value: bool = False
    """Whether the formula returns the new value in place of a step: without momentum, decay or L1."""

    def __hash__(self) -> int:
        return hash(self.name)


def method_of(optimizer: Optimizer) -> Method:
    try:
        return METHODS[optimizer.method]
    except KeyError:
        raise SpecError(f"there is no optimizer {optimizer.method!r}", fix=f"use {', '.join(METHODS)}") from None


def _momentum(g: F, w: F, _first: F, _second: F, k: Constants) -> Result:
    return k.lr * (g + k.decay * w), ZERO, ZERO, ONE


def _catch_up(g: F, w: F, u: F, v: F, k: Constants) -> Result:
    # Sums are float64 and rounded once, as the factors reach a million.
    u = F(u - k.push_u * g)
    v = F(v + k.push_v * g)
    return F(k.weigh_u * u + k.weigh_v * v), u, v, ONE


def _adagrad(g: F, w: F, old: F, recent: F, k: Constants) -> Result:
    recent = recent + g * g
    rate = ONE / np.sqrt(old + recent + k.epsilon)
    return k.lr * rate * (g + k.decay * w), old, recent, rate


def _adadelta(g: F, w: F, square: F, delta: F, k: Constants) -> Result:
    square = k.keep2 * square + k.add2 * (g * g)
    rate = np.sqrt((delta + k.epsilon) / (square + k.epsilon))
    move = g * rate
    delta = k.keep2 * delta + k.add2 * (move * move)
    return k.lr * rate * (g + k.decay * w), square, delta, rate


def _rmsprop(g: F, w: F, square: F, mean: F, k: Constants) -> Result:
    square = k.keep2 * square + k.add2 * (g * g)
    mean = k.keep1 * mean + k.add1 * g
    # A variance is never negative, but the difference of two nearly equal float32 can be:
    # taken as 0, so that the root below is real and the rate at most 1/sqrt(epsilon).
    variance = square - mean * mean
    rate = ONE / np.sqrt((ZERO if variance < ZERO else variance) + k.epsilon)
    return k.lr * rate * (g + k.decay * w), square, mean, rate


def _decayed_adagrad(g: F, w: F, square: F, _second: F, k: Constants) -> Result:
    square = k.keep2 * square + k.add2 * (g * g)
    rate = ONE / np.sqrt(square + k.epsilon)
    return k.lr * rate * (g + k.decay * w), square, ZERO, rate


def _adam(g: F, w: F, mean: F, square: F, k: Constants) -> Result:
    h = g + k.decay * w
    mean = k.keep1 * mean + k.add1 * h
    square = k.keep2 * square + k.add2 * (h * h)
    return k.lr * (mean / (np.sqrt(square) + k.epsilon)), mean, square, ONE


def _adamax(g: F, w: F, mean: F, largest: F, k: Constants) -> Result:
    h = g + k.decay * w
    mean = k.keep1 * mean + k.add1 * h
    faded, now = k.keep2 * largest, np.abs(h)
    largest = faded if now <= faded else now
    # Nothing but zero gradients so far: no step, rather than 0/0.
    return ZERO if largest == ZERO else k.lr * (mean / largest), mean, largest, ONE


_DECLARED = (
    Method(
        "momentum",
        _momentum,
        update="m = mu m − lr (g + d w); w += m",
        defaults="mu 0: plain SGD",
        rows="rest",
        between_touches="nothing happens, a velocity waits; no L1 and L2 where mu > 0",
    ),
    Method(
        "sparse_momentum",
        _momentum,
        update="on dense parameters the same as `momentum`; on rows [see below](#sparse-rows)",
        defaults="mu 0: plain SGD",
        rows="catch up",
        between_touches="what the velocity would have done is made up for on the next touch; no L1 where mu > 0",
    ),
    Method(
        "adagrad",
        _adagrad,
        state={"square_sum_old": "G0", "square_sum": "G1"},
        update="G1 += g²; r = 1/√(G0 + G1 + e); m = mu m − lr r (g + d w); w += m. "
        "Every 16384 updates G0 += G1, G1 = 0",
        defaults="e 1e-6",
        word="AdaGradOptimizer",
        has_rate=True,
        is_scheduled=False,
        is_folded=True,
        rows="rest",
        between_touches="nothing happens",
    ),
    Method(
        "adadelta",
        _adadelta,
        state={"mean_square": "G", "mean_square_step": "D"},
        update="G = ρ G + (1−ρ) g²; r = √((D + e)/(G + e)); D = ρ D + (1−ρ)(g r)²; m = mu m − lr r (g + d w); w += m",
        defaults="ρ 0.95, e 1e-6",
        word="AdaDeltaOptimizer",
        arguments={"rho": 0.95, "epsilon": 1e-6},
        has_rate=True,
    ),
    Method(
        "rmsprop",
        _rmsprop,
        state={"mean_square": "G", "mean": "F"},
        update="G = ρ G + (1−ρ) g², the first time ρ G + g²; F = ρ F + (1−ρ) g; r = 1/√(G − F² + e); "
        "m = mu m − lr r (g + d w); w += m",
        defaults="ρ 0.95, e 1e-6",
        word="RMSPropOptimizer",
        arguments={"rho": 0.95, "epsilon": 1e-6},
        has_rate=True,
        first_counts_whole=True,
        rows="fade",
        between_touches="running means fade: ρᵏ after k rounds in place of ρ",
    ),
    Method(
        "decayed_adagrad",
        _decayed_adagrad,
        state={"mean_square": "G"},
        update="G as in `rmsprop`; r = 1/√(G + e); m = mu m − lr r (g + d w); w += m",
        defaults="ρ 0.95, e 1e-6",
        word="DecayedAdaGradOptimizer",
        arguments={"rho": 0.95, "epsilon": 1e-6},
        has_rate=True,
        first_counts_whole=True,
        rows="fade",
        between_touches="running means fade, as in `rmsprop`",
    ),
    Method(
        "adam",
        _adam,
        state={"mean": "M", "mean_square": "V"},
        update="h = g + d w; M = β1 M + (1−β1) h; V = β2 V + (1−β2) h²; w −= lr √(1−β2ᵗ)/(1−β1ᵗ) · M/(√V + e)",
        defaults="β1 0.9, β2 0.999, e 1e-6 (the original's front end passes 1e-8)",
        word="AdamOptimizer",
        arguments={"beta1": 0.9, "beta2": 0.999, "epsilon": 1e-8},
        moments=("beta1", "beta2"),
        has_momentum=False,
        is_scheduled=False,
        correction=lambda o, t: float(np.sqrt(1.0 - o.beta2**t) / (1.0 - o.beta1**t)),
    ),
    Method(
        "adamax",
        _adamax,
        state={"mean": "M", "largest": "U"},
        update="h and M as in `adam`; U = max(β2 U, \\|h\\|); w −= lr/(1−β1ᵗ) · M/U",
        defaults="β1 0.9, β2 0.999",
        word="AdamaxOptimizer",
        arguments={"beta1": None, "beta2": None},
        moments=("beta1", "beta2"),
        has_momentum=False,
        is_scheduled=False,
        correction=lambda o, t: 1.0 / (1.0 - o.beta1**t),
    ),
)
METHODS: dict[str, Method] = {method.name: method for method in _DECLARED}
LAZY_MOMENTUM = Method("lazy_momentum", _catch_up, state={"u": "u", "v": "v"}, has_momentum=False, gives_value=True)
"""What `sparse_momentum` does to rows with momentum; no optimizer of its own."""
