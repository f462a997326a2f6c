"""Random numbers without a state: element i of a stream is a function of (key, i).

Any part of a stream can be drawn by anyone, in any order, with the same bits: a lane draws just
its slice of a parameter, a reader seeks to any batch. Only integer arithmetic and IEEE
+, -, *, / and sqrt are used, never libm, so the bits do not depend on the machine.
"""

from __future__ import annotations

import hashlib

import numpy as np
from numpy.typing import NDArray

_GAMMA = 0x9E3779B97F4A7C15
_MIX_1 = np.uint64(0xBF58476D1CE4E5B9)
_MIX_2 = np.uint64(0x94D049BB133111EB)


def stream_key(seed: int, *names: str | int) -> int:
    text = "\0".join([str(seed), *map(str, names)])
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "little")


def draw_bits(key: int, begin: int, count: int) -> NDArray[np.uint64]:
    """Elements begin … begin + count - 1 of the stream, 64 random bits each (splitmix64)."""
    start = np.uint64((key + (begin + 1) * _GAMMA) % 2**64)
    with np.errstate(over="ignore"):
        z = start + np.arange(count, dtype=np.uint64) * np.uint64(_GAMMA)
        z = (z ^ (z >> np.uint64(30))) * _MIX_1
        z = (z ^ (z >> np.uint64(27))) * _MIX_2
        return z ^ (z >> np.uint64(31))


def draw_uniform(key: int, begin: int, count: int) -> NDArray[np.float64]:
    """Uniform on the open interval (0, 1): multiples of 2^-52, shifted by half a step."""
    return ((draw_bits(key, begin, count) >> np.uint64(12)).astype(np.float64) + 0.5) * 2.0**-52


def draw_normal(key: int, begin: int, count: int) -> NDArray[np.float64]:
    """Standard normal, by the inverse of the distribution function (error below 1.2e-9)."""
    return _inverse_normal(draw_uniform(key, begin, count))


def draw_permutation(key: int, count: int) -> NDArray[np.int64]:
    """A permutation of 0 … count - 1; ties of the random keys are broken by position."""
    return np.argsort(draw_bits(key, 0, count), kind="stable").astype(np.int64)


# Acklam's rational approximations: one for the middle, one for the two tails.
_MID_NUM = (
    -39.69683028665376,
    220.9460984245205,
    -275.9285104469687,
    138.3577518672690,
    -30.66479806614716,
    2.506628277459239,
)
_MID_DEN = (-54.47609879822406, 161.5858368580409, -155.6989798598866, 66.80131188771972, -13.28068155288572, 1.0)
_TAIL_NUM = (
    -0.007784894002430293,
    -0.3223964580411365,
    -2.400758277161838,
    -2.549732539343734,
    4.374664141464968,
    2.938163982698783,
)
_TAIL_DEN = (0.007784695709041462, 0.3224671290700398, 2.445134137142996, 3.754408661907416, 1.0)
_TAIL = 0.02425


def _horner(coefficients: tuple[float, ...], x: NDArray[np.float64]) -> NDArray[np.float64]:
    total = np.full_like(x, coefficients[0])
    for c in coefficients[1:]:
        total = total * x + c
    return total


def _inverse_normal(u: NDArray[np.float64]) -> NDArray[np.float64]:
    out = np.empty_like(u)
    side = np.minimum(u, 1.0 - u)
    middle = side >= _TAIL
    q = u[middle] - 0.5
    r = q * q
    out[middle] = _horner(_MID_NUM, r) * q / _horner(_MID_DEN, r)
    tail = ~middle
    t = np.sqrt(-2.0 * _log(side[tail]))
    z = _horner(_TAIL_NUM, t) / _horner(_TAIL_DEN, t)
    out[tail] = np.where(u[tail] < 0.5, z, -z)
    return out


def _log(x: NDArray[np.float64]) -> NDArray[np.float64]:
    """Natural logarithm from exact operations only: 2 atanh((m-1)/(m+1)) + e ln 2."""
    mantissa, exponent = np.frexp(x)
    s = (mantissa - 1.0) / (mantissa + 1.0)
    s2 = s * s
    total = np.zeros_like(s)
    for k in range(41, 0, -2):  # |s| <= 1/3: the next term is below 1e-20
        total = total * s2 + 1.0 / k
    return 2.0 * s * total + exponent * 0.6931471805599453
