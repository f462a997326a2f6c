"""The tree over shards: shares cover all shards once, and the sum's bits do not depend on who adds."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from bireme.ps.tree import Span, children, cover, fold, reduction, share_out, spans_of

Leaf = NDArray[np.float32] | None
_NASTY = [-0.0, 0.0, 1e30, -1e30, 3e38, -3e38, 1e-45, -1e-45, 1e-38, 1.0, -1.0, 16777216.0, 0.1, 1 / 3]
_VALUES = st.sampled_from(_NASTY) | st.floats(width=32, allow_nan=False, allow_infinity=False)
_LEAVES = st.lists(
    st.none() | st.lists(_VALUES, min_size=4, max_size=4).map(lambda v: np.array(v, dtype=np.float32)),
    min_size=1,
    max_size=17,
)


def nodes_of(shards: int) -> set[Span]:
    found, waiting = set(), [Span(0, shards)]
    while waiting:
        node = waiting.pop()
        found.add(node)
        if node.hi - node.lo > 1:
            waiting += children(node)
    return found


def add(left: NDArray[np.float32], right: NDArray[np.float32]) -> NDArray[np.float32]:
    with np.errstate(all="ignore"):
        return left + right


def plain_sum(span: Span, leaves: Sequence[Leaf]) -> Leaf:
    """The documented tree, written once more: split with the larger half on the left, None passes through."""
    if span.hi - span.lo == 1:
        return leaves[span.lo]
    mid = span.lo + (span.hi - span.lo + 1) // 2
    left, right = plain_sum(Span(span.lo, mid), leaves), plain_sum(Span(mid, span.hi), leaves)
    if left is None:
        return right
    return left if right is None else add(left, right)


def sum_with(trainers: int, leaves: Sequence[Leaf]) -> Leaf:
    """What a lane computes when that many trainers send the sums of their subtrees."""
    shards = len(leaves)
    rows = {span: fold(span, lambda s: leaves[s], add) for span in spans_of(share_out(shards, trainers), shards)}
    given_rows = {span: row for span, row in rows.items() if row is not None}
    if not given_rows:
        return None
    inbox = list(given_rows.values())
    root, steps = reduction(tuple(given_rows), shards)
    for a, b in steps:
        inbox[a] = add(inbox[a], inbox[b])
    return inbox[root]


def bits(values: Leaf) -> bytes | None:
    return None if values is None else values.tobytes()


@given(leaves=_LEAVES)
def test_every_number_of_trainers_gives_the_same_bits(leaves: list[Leaf]) -> None:
    wanted = bits(plain_sum(Span(0, len(leaves)), leaves))
    assert {bits(sum_with(trainers, leaves)) for trainers in range(1, len(leaves) + 1)} == {wanted}


@given(shards=st.integers(1, 40), data=st.data())
def test_a_cover_is_disjoint_complete_and_made_of_nodes(shards: int, data: st.DataObject) -> None:
    lo = data.draw(st.integers(0, shards))
    hi = data.draw(st.integers(lo, shards))
    found = cover(Span(lo, hi), shards)
    assert [s for span in found for s in span.shards] == list(range(lo, hi))
    assert set(found) <= nodes_of(shards)


@given(shards=st.integers(1, 40), data=st.data())
def test_a_cover_has_no_two_nodes_that_one_parent_could_replace(shards: int, data: st.DataObject) -> None:
    lo = data.draw(st.integers(0, shards - 1))
    hi = data.draw(st.integers(lo + 1, shards))
    found = set(cover(Span(lo, hi), shards))
    parents = [node for node in nodes_of(shards) if node.hi - node.lo > 1]
    assert not any(set(children(node)) <= found for node in parents)


@given(shards=st.integers(1, 60), data=st.data())
def test_shares_cover_all_shards_once_and_are_equal_within_one(shards: int, data: st.DataObject) -> None:
    trainers = data.draw(st.integers(1, shards))
    shares = share_out(shards, trainers)
    assert len(shares) == trainers
    assert [s for share in shares for s in share.shards] == list(range(shards))
    sizes = [share.hi - share.lo for share in shares]
    assert max(sizes) - min(sizes) <= 1


@given(shards=st.integers(1, 40), data=st.data())
def test_a_reduction_adds_every_row_once_into_its_root(shards: int, data: st.DataObject) -> None:
    trainers = data.draw(st.integers(1, shards))
    spans = list(spans_of(share_out(shards, trainers), shards))
    rows = [s for s in spans if data.draw(st.booleans())] or spans[:1]
    root, steps = reduction(tuple(rows), shards)
    counts = [{i} for i in range(len(rows))]
    for a, b in steps:
        assert counts[a].isdisjoint(counts[b])
        counts[a] |= counts[b]
        counts[b] = set()
    assert counts[root] == set(range(len(rows)))
