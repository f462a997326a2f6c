from __future__ import annotations

import numpy as np

from bireme.core.draws import draw_bits, draw_normal, draw_permutation, draw_uniform, stream_key


def test_the_stream_of_a_seed_never_changes() -> None:
    # Saved models and recorded hashes rest on these numbers: a change here breaks every resumed job.
    assert stream_key(1, "init", "w") == 0x09C9681C3D03D1CB
    assert draw_bits(0, 0, 3).tolist() == [0xE220A8397B1DCDAF, 0x6E789E6AA1B965F4, 0x06C45D188009454F]


def test_uniform_draws_spread_evenly() -> None:
    found = draw_uniform(stream_key(1, "test"), 0, 100_000)
    counts, _ = np.histogram(found, bins=10, range=(0.0, 1.0))
    assert abs(counts - 10_000).max() < 500


def test_normal_draws_have_mean_zero_and_deviation_one() -> None:
    found = draw_normal(stream_key(1, "test"), 0, 100_000)
    assert abs(found.mean()) < 0.02
    assert abs(found.std() - 1.0) < 0.02


def test_permutations_of_two_keys_differ() -> None:
    first, second = (draw_permutation(stream_key(1, name), 100) for name in ("a", "b"))
    assert first.tolist() != second.tolist() != list(range(100))


def test_names_are_kept_apart() -> None:
    assert stream_key(1, "ab", "c") != stream_key(1, "a", "bc")
    assert stream_key(1, "a", 1) == stream_key(1, "a", "1")
