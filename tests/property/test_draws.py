"""Any part of a stream, drawn by anyone in any order, has the same bits."""

from __future__ import annotations

from itertools import pairwise
from statistics import NormalDist

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from bireme.core.draws import draw_bits, draw_normal, draw_permutation, draw_uniform, stream_key

_KEYS = st.integers(0, 2**64 - 1)
_BEGINS = st.integers(0, 2**40) | st.integers(0, 100)
_MASK = 2**64 - 1


def splitmix64(key: int, index: int) -> int:
    """The published generator in plain integers."""
    z = (key + (index + 1) * 0x9E3779B97F4A7C15) & _MASK
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & _MASK
    return z ^ (z >> 31)


@given(key=_KEYS, begin=_BEGINS, count=st.integers(0, 40))
def test_bits_are_those_of_splitmix64(key: int, begin: int, count: int) -> None:
    assert draw_bits(key, begin, count).tolist() == [splitmix64(key, begin + i) for i in range(count)]


@given(key=_KEYS, begin=_BEGINS, cuts=st.lists(st.integers(0, 60), max_size=5))
def test_a_part_of_a_stream_equals_the_same_part_of_the_whole(key: int, begin: int, cuts: list[int]) -> None:
    edges = [0, *sorted(cuts), 60]
    for draw in (draw_uniform, draw_normal):
        whole = draw(key, begin, 60)
        parts = [draw(key, begin + a, b - a) for a, b in pairwise(edges)]
        assert np.concatenate(parts).tobytes() == whole.tobytes()


@given(key=_KEYS, begin=_BEGINS)
def test_uniform_draws_are_strictly_between_zero_and_one(key: int, begin: int) -> None:
    found = draw_uniform(key, begin, 200)
    assert found.min() > 0.0
    assert found.max() < 1.0


@given(key=_KEYS, begin=_BEGINS)
def test_normal_draws_are_the_inverse_of_the_distribution(key: int, begin: int) -> None:
    inverse = NormalDist().inv_cdf
    wanted = np.array([inverse(u) for u in draw_uniform(key, begin, 50).tolist()])
    np.testing.assert_allclose(draw_normal(key, begin, 50), wanted, rtol=1.2e-9, atol=1.2e-9)


@given(key=_KEYS, count=st.integers(0, 300))
def test_a_permutation_has_every_element_once(key: int, count: int) -> None:
    assert sorted(draw_permutation(key, count).tolist()) == list(range(count))


@given(
    seed=st.integers(0, 2**53),
    names=st.lists(st.text(max_size=5) | st.integers(), max_size=4),
    other=st.text(max_size=5),
)
def test_a_longer_name_is_another_stream(seed: int, names: list[str | int], other: str) -> None:
    assert stream_key(seed, *names) == stream_key(seed, *names) < 2**64
    assert stream_key(seed, *names) != stream_key(seed, *names, other)
    assert stream_key(seed, *names) != stream_key(seed + 1, *names)
