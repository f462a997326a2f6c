from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from bireme.core.errors import DataError
from bireme.ps.sparse.row_sums import combine, gather, is_ascending, lane_of, scatter, split, unique
from bireme.ps.tree import Span, cover, fold, reduction

Ids = NDArray[np.uint64]
Floats = NDArray[np.float32]
EXTREMES = [0, 1, 2**31, 2**63 - 1, 2**63, 2**64 - 1]


@pytest.mark.parametrize("dtype", [np.int32, np.int64, np.uint64])
@pytest.mark.parametrize("high", [1, 50, 2**31 - 1])
def test_unique_agrees_with_numpy(dtype: type[np.generic], high: int) -> None:
    ids = np.random.default_rng(high).integers(0, high, 5000).astype(dtype)
    found, positions = unique(ids)
    expected, inverse = np.unique(ids, return_inverse=True)
    assert found.dtype == np.uint64 and positions.dtype == np.int32
    assert np.array_equal(found, expected.astype(np.uint64)) and np.array_equal(positions, inverse)


def test_unique_of_nothing_is_nothing() -> None:
    found, positions = unique(np.empty(0, np.int32))
    assert len(found) == len(positions) == 0


def test_unique_orders_ids_by_all_64_bits() -> None:
    found, positions = unique(np.array([*EXTREMES[::-1], *EXTREMES], np.uint64))
    assert found.tolist() == EXTREMES
    assert positions.tolist() == [5, 4, 3, 2, 1, 0, 0, 1, 2, 3, 4, 5]


def test_a_negative_id_is_refused() -> None:
    with pytest.raises(DataError, match="a row id of -3"):
        unique(np.array([1, -3], np.int64))


def test_an_id_keeps_its_lane_for_ever() -> None:
    """Snapshots rely on it: a change of the hash must fail here."""
    assert lane_of(np.array(EXTREMES, np.uint64), 5).tolist() == [0, 1, 4, 1, 0, 3]


@pytest.mark.parametrize("lanes", [1, 2, 3, 7])
def test_neighbouring_ids_spread_evenly_over_lanes(lanes: int) -> None:
    counts = np.bincount(lane_of(np.arange(70_000, dtype=np.uint64), lanes), minlength=lanes)
    assert counts.min() > 0.95 * 70_000 / lanes


@pytest.mark.parametrize("lanes", [1, 3])
def test_split_groups_by_lane_and_keeps_the_order_within(lanes: int) -> None:
    ids = np.arange(0, 3000, 3, dtype=np.uint64)
    order, counts = split(ids, lanes)
    lane = lane_of(ids, lanes)
    assert np.array_equal(order, np.argsort(lane, kind="stable"))
    assert np.array_equal(counts, np.bincount(lane, minlength=lanes))


def test_split_of_nothing_names_every_lane() -> None:
    order, counts = split(np.empty(0, np.uint64), 3)
    assert len(order) == 0 and counts.tolist() == [0, 0, 0]


@pytest.mark.parametrize("width", [1, 16, 37])
def test_gather_and_scatter_copy_rows(width: int) -> None:
    source = np.random.default_rng(0).standard_normal((90, width), np.float32)
    picks = np.random.default_rng(1).permutation(90)[:60]
    out = np.zeros((60, width), np.float32)
    gather(source, picks, out)
    assert np.array_equal(out, source[picks])
    back = np.zeros_like(source)
    scatter(out, picks, back)
    assert np.array_equal(back[picks], source[picks]) and np.count_nonzero(back) == 60 * width


@pytest.mark.parametrize(("ids", "expected"), [([], True), ([5], True), ([0, 2**64 - 1], True), ([1, 1], False)])
def test_ascending_means_strictly(ids: list[int], expected: bool) -> None:
    assert is_ascending(np.array(ids, np.uint64)) is expected


NASTY = [-0.0, 0.0, 1e30, -1e30, 3e38, 1e-45, 1.0, -1.0, 16777216.0, 0.1, 1 / 3]
SHARD = st.dictionaries(
    st.sampled_from(EXTREMES), st.lists(st.sampled_from(NASTY), min_size=2, max_size=2), max_size=len(EXTREMES)
)


def part_of(rows: dict[int, Floats]) -> tuple[Ids, Floats]:
    ids = sorted(rows)
    return np.array(ids, np.uint64), np.array([rows[i] for i in ids], np.float32).reshape(len(ids), 2)


def add(left: Floats, right: Floats) -> Floats:
    with np.errstate(all="ignore"):
        return left + right


def sums_of(span: Span, shards: list[dict[int, Floats]]) -> dict[int, Floats]:
    """Fold the tree of each id by itself; a shard without the id passes its sibling through."""
    found = {i: fold(span, lambda s, i=i: shards[s].get(i), add) for i in EXTREMES}  # type: ignore[misc]
    return {i: row for i, row in found.items() if row is not None}


@given(st.lists(SHARD, min_size=1, max_size=12), st.data())
def test_combined_contributions_have_the_bits_of_each_ids_tree(
    given_rows: list[dict[int, list[float]]], data: st.DataObject
) -> None:
    shards = [{i: np.array(row, np.float32) for i, row in rows.items()} for rows in given_rows]
    cut = data.draw(st.integers(0, len(shards)))
    spans = [span for share in (Span(0, cut), Span(cut, len(shards))) for span in cover(share, len(shards))]
    parts = [part_of(sums_of(span, shards)) for span in spans]
    copies = [(ids.copy(), rows.copy()) for ids, rows in parts]
    root, steps = reduction(tuple(spans), len(shards))
    ids, rows = combine(parts, root, steps)
    expected_ids, expected = part_of(sums_of(Span(0, len(shards)), shards))
    assert np.array_equal(ids, expected_ids)
    assert np.array_equal(rows.view(np.uint32), expected.view(np.uint32))
    for (ids, rows), (same_ids, same_rows) in zip(parts, copies, strict=True):
        assert np.array_equal(ids, same_ids) and np.array_equal(rows.view(np.uint32), same_rows.view(np.uint32))


def test_a_row_of_one_side_keeps_its_negative_zero() -> None:
    one = (np.array([7], np.uint64), np.array([[-0.0]], np.float32))
    other = (np.array([9], np.uint64), np.array([[-0.0]], np.float32))
    ids, rows = combine([one, other], 0, [(0, 1)])
    assert ids.tolist() == [7, 9] and np.signbit(rows).all()


def test_kernels_are_compiled_for_one_set_of_types_only() -> None:
    from bireme.ps.sparse import row_sums

    for dtype in (np.int32, np.int64, np.uint64):
        unique(np.arange(5, dtype=dtype))
    kernels: list[Any] = [row_sums._unique, row_sums._merge, row_sums.split, row_sums.lane_of]
    assert all(len(kernel.signatures) <= 1 for kernel in kernels)
