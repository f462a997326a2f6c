"""The formulas of docs/reference/optimizers.md in plain float64 NumPy: what kernels are held against."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable

import numpy as np
from numpy.typing import NDArray

from bireme.spec.model import Optimizer, Parameter

Doubles = NDArray[np.float64]


def train(opt: Optimizer, par: Parameter, start: Doubles, rounds: Iterable[tuple[Doubles, float]]) -> Doubles:
    """Return the parameters after rounds of (summed gradient, scheduled learning rate)."""
    w, rho, e, b1, b2 = start.copy(), opt.rho, opt.epsilon, opt.beta1, opt.beta2
    m, first, second = np.zeros_like(w), np.zeros_like(w), np.zeros_like(w)
    for t, (gradient, rate) in enumerate(rounds, start=1):
        lr = rate * par.learning_rate
        g = np.clip(gradient, -par.clip, par.clip) if par.clip else gradient
        d = 0.0 if par.l1 else par.l2
        r: Doubles | float = 1.0
        if opt.method in ("adam", "adamax"):
            g = g + d * w
            first = b1 * first + (1 - b1) * g
            if opt.method == "adam":
                second = b2 * second + (1 - b2) * g**2
                w = w - lr * np.sqrt(1 - b2**t) / (1 - b1**t) * first / (np.sqrt(second) + e)
            else:
                second = np.maximum(b2 * second, np.abs(g))
                w = w - lr / (1 - b1**t) * np.divide(first, second, out=np.zeros_like(w), where=second != 0)
        else:
            gain = 1.0 if t == 1 and opt.method in ("rmsprop", "decayed_adagrad") else 1 - rho
            if opt.method == "adagrad":
                second = second + g**2
                r = 1 / np.sqrt(second + e)
            elif opt.method == "adadelta":
                second = rho * second + gain * g**2
                r = np.sqrt((first + e) / (second + e))
                first = rho * first + (1 - rho) * (g * r) ** 2
            elif opt.method in ("rmsprop", "decayed_adagrad"):
                second = rho * second + gain * g**2
                first = rho * first + (1 - rho) * g if opt.method == "rmsprop" else first
                r = 1 / np.sqrt(second - first**2 + e)
            m = par.momentum * m - lr * r * (g + d * w)
            w = w + m
        if par.l1:
            w = np.sign(w) * np.maximum(np.abs(w) - lr * r * par.l1, 0) / (1 + lr * par.l2)
    return w


def scheduled_rate(opt: Optimizer, n: int, p: int) -> float:
    """Return the learning rate that the table of schedules gives for n samples and pass p."""
    if opt.method in ("adagrad", "adam", "adamax"):
        return opt.learning_rate
    lr, a, b = opt.learning_rate, opt.decay_a, opt.decay_b
    if "manual" in opt.schedule:
        pairs = [pair.split(":") for pair in opt.schedule_args.split(",")]
        position = n if opt.schedule == "manual" else p
        return lr * float(next((r for bound, r in pairs if position <= int(bound)), pairs[-1][1]))
    values: dict[str, Callable[[], float]] = {
        "constant": lambda: lr,
        "poly": lambda: lr * math.exp(-b * math.log(1 + a * n)),
        "caffe_poly": lambda: lr * math.pow(max(1 - n / a, 0.0), b),
        "exp": lambda: lr * math.exp(math.log(a) * n / b),
        "discexp": lambda: lr * math.exp(math.log(a) * (n // b)),
        "linear": lambda: max(lr - a * n, b),
    }
    return values[opt.schedule]()
