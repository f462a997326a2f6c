"""Lanes' values in a part of a simulated snapshot."""

from __future__ import annotations

from collections.abc import Iterable

from bireme.ps.lanes.progress import COUNTS
from bireme.ps.snapshot.snapshot_files import SnapshotFile

VALUES = "values"
"""The key in a part's meta under which lanes' values are."""


def meta_of(lanes: dict[int, int], counts: object) -> dict[str, object]:
    """What a part of a cut holds."""
    return {COUNTS: counts, VALUES: {str(number): str(value) for number, value in lanes.items()}}


def values_of(parts: Iterable[SnapshotFile]) -> dict[int, int]:
    """What parts of a cut hold, by lane."""
    return {int(lane): int(value) for part in parts for lane, value in part.meta[VALUES].items()}
