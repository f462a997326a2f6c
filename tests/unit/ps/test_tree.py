from __future__ import annotations

import numpy as np
import pytest

from bireme.core.errors import SpecError
from bireme.ps.tree import LARGE, Span, children, cover, fold, reduction, share_out, spans_of


def test_the_left_half_is_the_larger_one() -> None:
    assert children(Span(0, 3)) == (Span(0, 2), Span(2, 3))
    assert children(Span(2, 5)) == (Span(2, 4), Span(4, 5))


def test_a_share_of_one_and_a_half_subtrees_is_two_rows() -> None:
    assert cover(Span(0, 3), 4) == [Span(0, 2), Span(2, 3)]
    assert cover(Span(0, 4), 4) == [Span(0, 4)]
    assert cover(Span(1, 3), 4) == [Span(1, 2), Span(2, 3)]


def test_no_shards_have_no_cover() -> None:
    assert cover(Span(0, 0), 0) == []


def test_shares_are_cut_where_fewest_rows_are_sent() -> None:
    # 5 shards split into [0,3) and [3,5): with the large share first both trainers send one row.
    shares = share_out(5, 2)
    assert shares == (Span(0, 3), Span(3, 5))
    assert spans_of(shares, 5) == [Span(0, 3), Span(3, 5)]


def test_very_many_shards_are_shared_out_evenly_in_order() -> None:
    spans = share_out(LARGE, 3_000)
    assert [span.lo for span in spans] == [0, *(span.hi for span in spans[:-1])] and spans[-1].hi == LARGE
    assert {span.hi - span.lo for span in spans} == {6, 7}


def test_more_trainers_than_shards_are_refused_with_two_fixes() -> None:
    with pytest.raises(SpecError, match="4 trainers but only 3 data shards") as caught:
        share_out(3, 4)
    assert "--shards 4" in caught.value.fix
    assert "trainers: 3" in caught.value.fix


def test_an_absent_shards_sibling_passes_with_its_sign() -> None:
    minus_zero = np.array([-0.0], dtype=np.float32)
    total = fold(Span(0, 2), lambda shard: minus_zero if shard == 1 else None, lambda a, b: a + b)
    assert total is not None
    assert np.signbit(total[0])


def test_a_subtree_without_any_contribution_has_no_sum() -> None:
    assert fold(Span(0, 3), lambda shard: None, lambda a, b: a) is None


def test_a_fold_adds_in_the_order_of_the_tree() -> None:
    order = fold(Span(0, 5), lambda shard: str(shard), lambda a, b: f"({a}+{b})")
    assert order == "(((0+1)+2)+(3+4))"


def test_a_reduction_continues_where_the_trainers_stopped() -> None:
    assert reduction((Span(0, 2), Span(2, 3), Span(3, 5)), 5) == (0, ((0, 1), (0, 2)))


def test_rows_that_overlap_are_a_bug() -> None:
    with pytest.raises(AssertionError, match="this is a bug"):
        reduction((Span(0, 2), Span(0, 1)), 2)
    with pytest.raises(AssertionError, match="this is a bug"):
        reduction((Span(1, 3),), 4)
