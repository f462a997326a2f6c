"""The fixed binary tree over shards in which gradients are summed.

Floating-point sums depend on their order, so the order is a property of the job: a node of the
tree is a `Span` [lo, hi) of shards, and its children split it in the middle. A trainer that owns
several shards sends the sums of whole subtrees, and a lane goes on from there, so one trainer or
one per shard add the same numbers in the same order. A shard without a contribution passes its
sibling through (adding zeros would turn -0.0 into +0.0).
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Sequence
from functools import lru_cache
from typing import NamedTuple, TypeVar

from bireme.core.errors import SpecError

T = TypeVar("T")


class Span(NamedTuple):
    """Shards lo … hi - 1, as one node of the tree or as a trainer's share."""

    lo: int
    hi: int

    @property
    def shards(self) -> range:
        """The shards in this span."""
        return range(self.lo, self.hi)


def children(span: Span) -> tuple[Span, Span]:
    """Split a node of at least two shards; the left half is the larger one."""
    mid = (span.lo + span.hi + 1) // 2
    return Span(span.lo, mid), Span(mid, span.hi)


def cover(share: Span, shards: int) -> list[Span]:
    """The fewest nodes of the tree over `shards` that make up `share`, left to right."""

    def walk(node: Span) -> list[Span]:
        if node.hi <= share.lo or node.lo >= share.hi:
            return []
        if share.lo <= node.lo and node.hi <= share.hi:
            return [node]
        left, right = children(node)
        return walk(left) + walk(right)

    return walk(Span(0, shards)) if shards else []


@lru_cache(maxsize=64)
def share_out(shards: int, trainers: int) -> tuple[Span, ...]:
    """Give each trainer a contiguous share: equal within one shard, and among such the one with fewest rows.

    Few rows matter because each is a gradient's worth of bytes on the wire.
    """
    if trainers > shards:
        raise SpecError(
            f"{trainers} trainers but only {shards} data shards",
            why=f"trainers from rank {shards} up would have nothing to read",
            fix=f"split the data again with `bireme data split --shards {trainers}`, or set `trainers: {shards}`",
        )
    small, extra = divmod(shards, trainers)
    # best[(k, e)]: rows and cuts when k trainers are served and e of them got one shard more.
    best: dict[tuple[int, int], tuple[int, tuple[int, ...]]] = {(0, 0): (0, (0,))}
    for k in range(trainers):
        for e in range(min(k, extra) + 1):
            if (k, e) not in best:
                continue
            rows, cuts = best[k, e]
            for more in (1, 0):
                if not (e + more <= extra and extra - e - more <= trainers - k - 1):
                    continue
                hi = cuts[-1] + small + more
                option = (rows + len(cover(Span(cuts[-1], hi), shards)), (*cuts, hi))
                key = (k + 1, e + more)
                if key not in best or option[0] < best[key][0]:
                    best[key] = option
    cuts = best[trainers, extra][1]
    return tuple(Span(lo, hi) for lo, hi in itertools.pairwise(cuts))


def fold(span: Span, leaf: Callable[[int], T | None], add: Callable[[T, T], T]) -> T | None:
    """Sum a subtree's leaves in tree order; `leaf(shard)` is None where the shard has nothing."""
    if span.hi - span.lo == 1:
        return leaf(span.lo)
    left_span, right_span = children(span)
    left = fold(left_span, leaf, add)
    right = fold(right_span, leaf, add)
    if left is None or right is None:
        return right if left is None else left
    return add(left, right)


@lru_cache(maxsize=1024)
def reduction(rows: tuple[Span, ...], shards: int) -> tuple[int, tuple[tuple[int, int], ...]]:
    """The order in which a lane adds its rows: (root, steps), a step (a, b) meaning row a += row b."""
    index = {span: i for i, span in enumerate(rows)}
    steps: list[tuple[int, int]] = []

    def walk(node: Span) -> int | None:
        if node in index:
            return index[node]
        if node.hi - node.lo == 1:
            return None
        left_span, right_span = children(node)
        left, right = walk(left_span), walk(right_span)
        if left is None or right is None:
            return right if left is None else left
        steps.append((left, right))
        return left

    root = walk(Span(0, shards))
    if root is None or len(steps) != len(rows) - 1:
        raise AssertionError(f"rows {rows} are not disjoint nodes of the tree over {shards}: this is a bug")
    return root, tuple(steps)


def spans_of(shares: Iterable[Span], shards: int) -> Sequence[Span]:
    """Every row that a round can have, in the order of shards."""
    return [span for share in shares for span in cover(share, shards)]
