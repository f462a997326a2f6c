"""The plan holds every element of every parameter exactly once, on lanes of equal size."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from bireme.ps.plan import BORDER, UNIT, Layout, aligned_zeros
from bireme.spec.model import Parameter

_SHAPES = st.lists(st.lists(st.integers(1, 40), max_size=3).map(tuple), max_size=8)
_LANES = st.integers(1, 70)


def layout_of(shapes: list[tuple[int, ...]]) -> Layout:
    return Layout([Parameter(name=f"p{i}", shape=shape) for i, shape in enumerate(shapes)])


@given(shapes=_SHAPES, lanes=_LANES)
def test_every_element_of_every_parameter_is_on_exactly_one_lane(shapes: list[tuple[int, ...]], lanes: int) -> None:
    layout = layout_of(shapes)
    held = {p.name: np.zeros(p.size, dtype=np.int64) for p in layout.parameters}
    for part in layout.slices(lanes):
        for piece in layout.pieces(part):
            assert 0 <= piece.begin < piece.end <= len(part)
            held[piece.parameter.name][piece.offset : piece.offset + piece.end - piece.begin] += 1
            start = layout.offsets[piece.parameter.name] + piece.offset
            assert part.begin + piece.begin == start
    assert all((count == 1).all() for count in held.values())


@given(shapes=_SHAPES, lanes=_LANES)
def test_slices_are_contiguous_and_equal_within_one_page(shapes: list[tuple[int, ...]], lanes: int) -> None:
    layout = layout_of(shapes)
    slices = layout.slices(lanes)
    assert len(slices) == lanes
    assert [s.begin for s in slices] == [0, *(s.end for s in slices[:-1])]
    assert slices[-1].end == layout.size
    assert all(s.begin % BORDER == s.end % BORDER == 0 for s in slices)
    assert max(map(len, slices)) - min(map(len, slices)) <= BORDER


@given(shapes=_SHAPES)
def test_parameters_are_packed_to_64_bytes(shapes: list[tuple[int, ...]]) -> None:
    layout = layout_of(shapes)
    ends = [layout.offsets[p.name] + -(-p.size // UNIT) * UNIT for p in layout.parameters]
    assert list(layout.offsets.values()) == [0, *ends][: len(ends)]
    assert layout.size % BORDER == 0
    assert 0 <= layout.size - max(ends, default=0) < BORDER


@given(shapes=_SHAPES)
def test_views_share_the_flat_vectors_memory_on_borders(shapes: list[tuple[int, ...]]) -> None:
    layout = layout_of(shapes)
    flat = aligned_zeros(layout.size)
    views = layout.views(flat)
    for number, p in enumerate(layout.parameters, start=1):
        view = views[p.name]
        assert view.shape == p.shape
        assert view.ctypes.data == flat.ctypes.data + 4 * layout.offsets[p.name]
        assert view.ctypes.data % 64 == 0
        view[...] = number
    assert flat.sum() == sum(number * p.size for number, p in enumerate(layout.parameters, start=1))


@given(shapes=_SHAPES.filter(len))
def test_an_element_is_named_after_its_parameter(shapes: list[tuple[int, ...]]) -> None:
    layout = layout_of(shapes)
    for p in layout.parameters:
        start = layout.offsets[p.name]
        assert {layout.name_at(start), layout.name_at(start + p.size - 1)} == {p.name}


@given(count=st.integers(0, 1000))
def test_aligned_zeros_are_zero_and_aligned(count: int) -> None:
    found = aligned_zeros(count)
    assert found.shape == (count,)
    assert found.ctypes.data % 64 == 0 or count == 0
    assert not found.any()
