from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray

from bireme.core.errors import FrameError
from bireme.ps.optim.kernels import CHUNK
from bireme.ps.wire import codec
from bireme.ps.wire.codec import Floats, Half, Picks, Residual
from bireme.spec.model import Coding

HALVES: tuple[Half, ...] = ("float16", "bfloat16")


def floats(*values: float) -> Floats:
    return np.array(values, np.float32)


def there_and_back(coding: Half, values: Floats) -> tuple[Floats, int]:
    coded, decoded = np.empty(values.size, np.uint16), np.empty(values.size, np.float32)
    overflows = codec.encode(coding, values, coded)
    codec.decode(coding, coded, decoded)
    return decoded, overflows


def payload(positions: list[int], values: list[float]) -> NDArray[np.uint8]:
    return np.concatenate((np.array(positions, "<u4").view(np.uint8), np.array(values, "<f4").view(np.uint8)))


@pytest.mark.parametrize("coding", HALVES)
def test_every_half_comes_back_as_it_was(coding: Half) -> None:
    every = np.arange(1 << 16, dtype=np.uint16)
    decoded, again = np.empty(every.size, np.float32), np.empty_like(every)
    codec.decode(coding, every, decoded)
    assert codec.encode(coding, decoded, again) == 0
    is_number = ~np.isnan(decoded)
    assert np.array_equal(again[is_number], every[is_number])
    codec.decode(coding, again, decoded)
    assert np.array_equal(is_number, ~np.isnan(decoded))


def test_float16_decodes_as_numpy_does() -> None:
    every = np.arange(1 << 16, dtype=np.uint16)
    decoded = np.empty(every.size, np.float32)
    codec.decode("float16", every, decoded)
    wanted = every.view(np.float16).astype(np.float32)
    assert np.array_equal(decoded, wanted, equal_nan=True)
    assert np.array_equal(np.signbit(decoded), np.signbit(wanted))


@pytest.mark.parametrize("coding", HALVES)
def test_halves_round_to_the_nearest_and_ties_to_even(coding: Half) -> None:
    top = 0x7BFF if coding == "float16" else 0x7F7F
    halves = np.arange(top, dtype=np.uint16)
    lower, upper = np.empty(top, np.float32), np.empty(top, np.float32)
    codec.decode(coding, halves, lower)
    codec.decode(coding, halves + np.uint16(1), upper)
    middle = ((lower.astype(np.float64) + upper) / 2).astype(np.float32)
    coded = np.empty(top, np.uint16)
    codec.encode(coding, middle, coded)
    assert np.array_equal(coded, halves + (halves & 1))
    codec.encode(coding, np.nextafter(middle, floats(0.0)), coded)
    assert np.array_equal(coded, halves)
    codec.encode(coding, np.nextafter(middle, floats(np.inf)), coded)
    assert np.array_equal(coded, halves + 1)


def test_finite_values_beyond_the_range_of_float16_are_counted() -> None:
    values = floats(65504.0, 65519.996, 65520.0, -1e30, np.inf, np.nan, 0.0)
    decoded, overflows = there_and_back("float16", values)
    assert overflows == 2
    assert np.array_equal(decoded, floats(65504.0, 65504.0, np.inf, -np.inf, np.inf, np.nan, 0.0), equal_nan=True)


def test_finite_values_beyond_the_range_of_bfloat16_are_counted() -> None:
    largest = float(np.finfo(np.float32).max)
    decoded, overflows = there_and_back("bfloat16", floats(3.3895314e38, largest, -largest, -np.inf))
    assert overflows == 2
    assert np.array_equal(decoded, floats(3.3895314e38, np.inf, -np.inf, -np.inf))


@pytest.mark.parametrize("coding", HALVES)
def test_every_nan_stays_nan(coding: Half) -> None:
    bits = np.array([0x7F800001, 0x7FFFFFFF, 0xFF800001, 0xFFFFFFFF, 0x7FC00000], np.uint32)
    decoded, overflows = there_and_back(coding, bits.view(np.float32))
    assert np.isnan(decoded).all()
    assert overflows == 0


@pytest.mark.parametrize("coding", HALVES)
def test_overflows_are_counted_in_every_chunk(coding: Half) -> None:
    values = np.ones(3 * CHUNK + 5, np.float32)
    values[[0, CHUNK, values.size - 1]] = np.finfo(np.float32).max
    assert there_and_back(coding, values)[1] == 3


def test_payload_sizes_are_known_but_for_top_k() -> None:
    codings: tuple[Coding, ...] = ("float32", "float16", "bfloat16", "top_k")
    assert [codec.payload_nbytes(c, 10) for c in codings] == [40, 20, 20, None]


def test_lengths_that_differ_are_a_bug() -> None:
    with pytest.raises(AssertionError, match="this is a bug"):
        codec.encode("float16", floats(1.0, 2.0), np.empty(1, np.uint16))


def test_the_largest_are_picked_and_the_rest_waits() -> None:
    residual = Residual(4)
    picks = residual.pick(floats(1.0, -5.0, 2.0, 3.0), 2)
    assert picks.positions.tolist() == [1, 3]
    assert picks.values.tolist() == [-5.0, 3.0]
    picks = residual.pick(floats(2.5, 0.5, 0.5, 0.5), 1)
    assert (picks.positions.tolist(), picks.values.tolist()) == ([0], [3.5])
    assert residual._left.tolist() == [0.0, 0.5, 2.5, 0.5]


def test_among_equals_the_lower_positions_are_picked() -> None:
    picks = Residual(6).pick(floats(1.0, -2.0, 2.0, 3.0, -2.0, 2.0), 3)
    assert picks.positions.tolist() == [1, 2, 3]


def test_picking_none_keeps_all_and_picking_too_many_takes_all() -> None:
    residual = Residual(3)
    assert residual.pick(floats(1.0, 2.0, 3.0), 0).positions.size == 0
    picks = residual.pick(floats(1.0, 1.0, 0.0), 9)
    assert (picks.positions.tolist(), picks.values.tolist()) == ([0, 1, 2], [2.0, 3.0, 3.0])
    assert residual.error(picks) == 0.0


def test_a_vector_of_nothing_has_nothing_to_pick() -> None:
    assert Residual(0).pick(floats(), 3).positions.size == 0


def test_nan_and_infinity_are_sent_and_not_kept() -> None:
    residual = Residual(4)
    residual.pick(floats(np.inf, 1e38, 0.0, 1.0), 0)
    picks = residual.pick(floats(-np.inf, 1e38, np.inf, 1.0), 2)
    assert picks.positions.tolist() == [0, 2]
    assert np.isnan(picks.values[0])
    assert np.isfinite(residual._left).all()


def test_large_values_outside_the_sample_are_picked_too() -> None:
    gradient = np.ones(3 * codec.SAMPLE, np.float32)
    gradient[::3] = 9.0  # the sample sees only these
    gradient[1] = 10.0
    picks = Residual(gradient.size).pick(gradient, codec.SAMPLE + 2)
    wanted = sorted([*range(0, gradient.size, 3), 1, 2])
    assert picks.positions.tolist() == wanted


def test_the_error_of_picks_is_the_share_that_stays_behind() -> None:
    residual = Residual(3)
    picks = residual.pick(floats(3.0, 4.0, 0.0), 1)
    assert residual.error(picks) == pytest.approx(0.6)


def test_a_lane_gets_the_picks_of_its_slice_only() -> None:
    picks = Picks(np.array([1, 4, 5, 9]), floats(1.0, 2.0, 3.0, 4.0))
    target = np.full(5, 7.0, np.float32)
    codec.decode_picks(codec.encode_picks(picks, 4, 9), target)
    assert target.tolist() == [2.0, 3.0, 0.0, 0.0, 0.0]


def test_a_lane_without_picks_gets_an_empty_payload() -> None:
    coded = codec.encode_picks(Picks(np.array([1]), floats(1.0)), 2, 4)
    target = np.full(2, 7.0, np.float32)
    codec.decode_picks(coded, target)
    assert coded.nbytes == 0
    assert target.tolist() == [0.0, 0.0]


@pytest.mark.parametrize(
    ("coded", "message"),
    [
        (payload([0, 0], [1.0, 2.0]), "do not ascend"),
        (payload([2, 1], [1.0, 2.0]), "do not ascend"),
        (payload([0, 3], [1.0, 2.0]), "position 3 for a slice of 3 floats"),
        (payload([2**32 - 1], [1.0]), "position 4294967295"),
        (np.zeros(12, np.uint8), "multiple of 8"),
    ],
)
def test_picks_that_make_no_sense_change_nothing(coded: NDArray[np.uint8], message: str) -> None:
    target = np.full(3, 7.0, np.float32)
    with pytest.raises(FrameError, match=message):
        codec.decode_picks(coded, target)
    assert target.tolist() == [7.0, 7.0, 7.0]


def test_the_error_is_relative_to_the_original() -> None:
    assert codec.error_of(floats(3.0, 4.0), floats(3.0, 4.0)) == 0.0
    assert codec.error_of(floats(3.0, 4.0), floats(0.0, 4.0)) == pytest.approx(0.6)
    assert codec.error_of(floats(0.0), floats(0.0)) == 0.0
    assert codec.error_of(floats(0.0), floats(1.0)) == float("inf")
