"""The fixed binary tree over shards in which gradients are summed.

Floating-point sums depend on their order, so the order is a property of the job: a node of the
tree is a `Span` [lo, hi) of shards, and its children split it in the middle. A trainer that owns
several shards sends the sums of whole subtrees, and a lane continues from there, so one trainer or
one per shard add the same numbers in the same order. A shard without a contribution passes its
sibling through (adding zeros would turn -0.0 into +0.0).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import lru_cache
from itertools import pairwise
from typing import NamedTuple, TypeVar

from bireme.core.errors import SpecError

T = TypeVar("T")
LARGE = 20_000  # above this many steps, finding the shares with fewest rows would take longer than it saves


class Span(NamedTuple):
    """Shards lo … hi - 1, as one node of the tree or as a trainer's share."""

    lo: int
    hi: int

    @property
    def shards(self) -> range:
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
    if trainers * (extra + 1) > LARGE:
        cuts = [shards * t // trainers for t in range(trainers + 1)]
        return tuple(Span(lo, hi) for lo, hi in pairwise(cuts))
    # rows[k, e]: the fewest rows when k trainers are served and e of them got one shard more; so the
    # next shard is k * small + e, and what the last trainer got can be read off backwards.
    rows = {(0, 0): 0}
    got: dict[tuple[int, int], int] = {}
    for k in range(trainers):
        for e in range(min(k, extra) + 1):
            for more in (1, 0):
                if (k, e) not in rows or e + more > extra or extra - e - more > trainers - k - 1:
                    continue
                lo = k * small + e
                count = rows[k, e] + len(cover(Span(lo, lo + small + more), shards))
                key = (k + 1, e + more)
                if count < rows.get(key, count + 1):
                    rows[key], got[key] = count, more
    spans, e = [], extra
    for k in range(trainers, 0, -1):
        more = got[k, e]
        hi = k * small + e
        spans.append(Span(hi - small - more, hi))
        e -= more
    return tuple(reversed(spans))


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


def rows_of(share: Span, shards: int, *, is_apart: bool = False) -> list[Span]:
    """What a trainer sends in a round: sums of whole subtrees, or where that must not be, each shard by itself."""
    return [Span(s, s + 1) for s in share.shards] if is_apart else cover(share, shards)


def spans_of(shares: Iterable[Span], shards: int, *, is_apart: bool = False) -> Sequence[Span]:
    return [span for share in shares for span in rows_of(share, shards, is_apart=is_apart)]
