"""The learning rate of a round, from the samples trained so far and the pass.

All schedules are pure functions of numbers that every process agrees on, so every lane computes
the same rate without asking. Per-parameter multipliers come later, in the optimizer.
"""

from __future__ import annotations

import math
from functools import lru_cache

from bireme.core.errors import NumericError, SpecError
from bireme.ps.optim.methods import method_of
from bireme.spec.model import Optimizer

_EXAMPLE = 'write it as "1000:1.0,2000:0.5": up to 1000 the full rate, up to 2000 and after it half of that'


def learning_rate(opt: Optimizer, samples: int, pass_id: int) -> float:
    """Return the rate for a round; `samples` counts all trainers' samples, this round's included."""
    check_schedule(opt)
    if not method_of(opt).is_scheduled:
        return opt.learning_rate
    try:
        return _scheduled(opt, samples, pass_id)
    except OverflowError as e:
        raise NumericError(
            f"the learning rate schedule {opt.schedule} grows beyond all numbers after {samples} samples",
            fix="choose decays that lower the rate: see docs/reference/optimizers.md",
        ) from e


def _scheduled(opt: Optimizer, samples: int, pass_id: int) -> float:
    rate, a, b = opt.learning_rate, opt.decay_a, opt.decay_b
    match opt.schedule:
        case "constant":
            return rate
        case "poly":
            return rate * math.pow(1.0 + a * samples, -b)
        case "caffe_poly":
            return 0.0 if samples > a else rate * math.pow(1.0 - samples / a, b)
        case "exp":
            return rate * math.pow(a, samples / b)
        case "discexp":
            return rate * math.pow(a, math.floor(samples / b))
        case "linear":
            return max(rate - a * samples, b)
        case "manual":
            return rate * _pick(parse_rates(opt.schedule_args), samples)
        case "pass_manual":
            return rate * _pick(parse_rates(opt.schedule_args), pass_id)


@lru_cache(maxsize=64)
def check_schedule(opt: Optimizer) -> None:
    """Refuse a schedule that has no value for some round, before the first round needs it."""
    if not method_of(opt).is_scheduled:
        return
    a, b = opt.decay_a, opt.decay_b
    if not (math.isfinite(a) and math.isfinite(b)):
        raise _bad_decay(opt, "both must be finite")
    match opt.schedule:
        case "poly" if a < 0:
            raise _bad_decay(opt, "(1 + a n)^(-b) needs learning_rate_decay_a of 0 or more")
        case "caffe_poly" if a <= 0 or b < 0:
            raise _bad_decay(opt, "(1 - n/a)^b needs learning_rate_decay_a above 0 and decay_b of 0 or more")
        case "exp" | "discexp" if a <= 0 or b <= 0:
            raise _bad_decay(opt, "a^(n/b) needs both above 0")
        case "manual" | "pass_manual":
            parse_rates(opt.schedule_args)


@lru_cache(maxsize=64)
def parse_rates(args: str) -> tuple[tuple[int, float], ...]:
    """Read "n1:r1,n2:r2,…" into (upper bound, factor) pairs, bounds rising; refuse anything else."""
    pairs: list[tuple[int, float]] = []
    for piece in args.split(","):
        bound, factor = _parse_pair(piece, args)
        if pairs and bound <= pairs[-1][0]:
            raise _bad_rates(args, f"{bound} does not come after {pairs[-1][0]}, and bounds must rise")
        pairs.append((bound, factor))
    return tuple(pairs)


def _parse_pair(piece: str, args: str) -> tuple[int, float]:
    left, colon, right = piece.partition(":")
    try:
        bound, factor = int(left), float(right)
    except ValueError as error:
        raise _bad_rates(args, f'"{piece.strip()}" is not a number, a colon and a factor') from error
    if not colon or bound < 0 or not math.isfinite(factor) or factor < 0:
        raise _bad_rates(args, f'"{piece.strip()}" needs a bound and a finite factor of 0 or more')
    return bound, factor


def _pick(rates: tuple[tuple[int, float], ...], position: int) -> float:
    for bound, factor in rates:
        if position <= bound:
            return factor
    return rates[-1][1]


def _bad_rates(args: str, why: str) -> SpecError:
    return SpecError(f'learning_rate_args "{args}" cannot be read', why=why, fix=_EXAMPLE)


def _bad_decay(opt: Optimizer, why: str) -> SpecError:
    values = f"decay_a = {opt.decay_a:g}, decay_b = {opt.decay_b:g}"
    return SpecError(
        f"learning_rate_schedule {opt.schedule} cannot use {values}",
        why=why,
        fix='change the two values, or use learning_rate_schedule="constant"',
    )
