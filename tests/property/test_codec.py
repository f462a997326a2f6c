"""Halves are the nearest there are, and top_k picks what a sort would, loses nothing, and knows no lanes."""

from __future__ import annotations

import itertools

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from bireme.core.errors import FrameError
from bireme.ps.wire import codec
from bireme.ps.wire.codec import Floats, Half, Picks, Residual

_BITS = hnp.arrays(np.uint32, st.integers(0, 300), elements=st.integers(0, 2**32 - 1))
_FEW_VALUES = st.sampled_from([0.0, -0.0, 1.0, -1.0, 1.0000001, 1e-40, -3.0, 1e30])
_VALUES = _FEW_VALUES | st.floats(-1e6, 1e6, width=32)
_GRADIENT = hnp.arrays(np.float32, st.integers(0, 120), elements=_VALUES)


@given(bits=_BITS)
def test_float16_is_what_numpy_makes_of_it(bits: codec.Bits) -> None:
    values = bits.view(np.float32)
    with np.errstate(all="ignore"):
        wanted = values.astype(np.float16)
    coded = np.empty(values.size, np.uint16)
    overflows = codec.encode("float16", values, coded)
    is_number = ~np.isnan(values)
    assert np.array_equal(coded[is_number], wanted.view(np.uint16)[is_number])
    assert np.isnan(coded.view(np.float16)[~is_number]).all()
    assert overflows == np.count_nonzero(np.isinf(wanted) & np.isfinite(values))


@given(bits=_BITS)
def test_bfloat16_is_off_by_at_most_half_a_step(bits: codec.Bits) -> None:
    values = bits.view(np.float32)
    coded, decoded = np.empty(values.size, np.uint16), np.empty(values.size, np.float32)
    overflows = codec.encode("bfloat16", values, coded)
    codec.decode("bfloat16", coded, decoded)
    assert np.array_equal(np.isnan(decoded), np.isnan(values))
    assert overflows == np.count_nonzero(np.isinf(decoded) & np.isfinite(values))
    kept = np.isfinite(decoded)
    # Bits of finite floats are in the order of their sizes, and 2^16 of them lie between two halves.
    away = np.abs(decoded[kept].view(np.uint32).astype(np.int64) - bits[kept].astype(np.int64))
    assert away.max(initial=0) <= 1 << 15


@given(values=_GRADIENT, cut=st.integers(0, 120), coding=st.sampled_from(("float16", "bfloat16")))
def test_cutting_a_vector_anywhere_gives_the_same_halves(values: Floats, cut: int, coding: Half) -> None:
    whole, parts = np.empty(values.size, np.uint16), np.empty(values.size, np.uint16)
    overflows = codec.encode(coding, values, whole)
    in_parts = codec.encode(coding, values[:cut], parts[:cut]) + codec.encode(coding, values[cut:], parts[cut:])
    assert np.array_equal(whole, parts)
    assert overflows == in_parts


@given(gradient=_GRADIENT, count=st.integers(0, 130))
def test_picks_are_the_first_of_a_stable_sort_by_size(gradient: Floats, count: int) -> None:
    residual = Residual(gradient.size)
    picks = residual.pick(gradient, count)
    order = np.argsort(-np.abs(gradient), kind="stable")[:count]
    assert np.array_equal(picks.positions, np.sort(order))
    assert np.array_equal(picks.values, gradient[picks.positions])
    left = gradient.copy()
    left[picks.positions] = 0.0
    assert np.array_equal(residual._left, left)


@given(data=st.data(), size=st.integers(1, 60), counts=st.lists(st.integers(0, 60), max_size=8))
def test_what_is_sent_and_what_is_left_make_up_what_was_given(
    data: st.DataObject, size: int, counts: list[int]
) -> None:
    whole_numbers = hnp.arrays(np.float32, size, elements=st.integers(-1000, 1000).map(float))
    residual, given_, sent = Residual(size), np.zeros(size), np.zeros(size)
    for count in counts:
        gradient = data.draw(whole_numbers)
        picks = residual.pick(gradient, count)
        assert picks.positions.size == min(count, size)
        given_ += gradient
        sent[picks.positions] += picks.values
    assert np.array_equal(sent + residual._left, given_)


@given(gradient=_GRADIENT, count=st.integers(0, 130), cuts=st.lists(st.integers(0, 120), max_size=5))
def test_however_the_vector_is_cut_lanes_receive_the_same_picks(gradient: Floats, count: int, cuts: list[int]) -> None:
    picks = Residual(gradient.size).pick(gradient, count)
    wanted = np.zeros(gradient.size, np.float32)
    wanted[picks.positions] = picks.values
    target = np.full(gradient.size, np.nan, np.float32)
    borders = sorted({0, gradient.size, *(cut for cut in cuts if cut < gradient.size)})
    nbytes = 0
    for begin, end in itertools.pairwise(borders):
        payload = codec.encode_picks(picks, begin, end)
        codec.decode_picks(payload, target[begin:end])
        nbytes += payload.nbytes
    assert np.array_equal(target.view(np.uint32), wanted.view(np.uint32))
    assert nbytes == codec.PICK_NBYTES * picks.positions.size


@given(junk=st.binary(max_size=64), size=st.integers(0, 40))
def test_junk_is_refused_whole_or_is_a_payload(junk: bytes, size: int) -> None:
    target = np.full(size, 7.0, np.float32)
    payload = np.frombuffer(junk, np.uint8)
    try:
        codec.decode_picks(payload, target)
    except FrameError:
        assert (target == 7.0).all()
        return
    count = payload.size // codec.PICK_NBYTES
    positions = payload[: 4 * count].view("<u4").astype(np.int64)
    again = codec.encode_picks(Picks(positions, target[positions]), 0, size)
    assert again.tobytes() == junk
