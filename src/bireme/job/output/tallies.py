"""Lanes' counts in a snapshot's parts, compared with each other, the manifest and the ledger.

The ledger has the first lane's counts. Every lane counts by itself the samples whose gradients it has applied, and its
pserver's part of each snapshot has these counts: where all of them agree with the ledger, no update was lost or applied
twice.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from bireme.core.errors import SnapshotError
from bireme.job.output.manifest import Manifest
from bireme.ps.lanes.progress import COUNTS, agreed_counts, unpack_counts
from bireme.ps.lanes.rounds import LaneCounts
from bireme.ps.snapshot.snapshot_files import read_part

Applied = Mapping[int, Mapping[int, int]]
"""Samples by pass and shard, of passes that are in the ledger as a whole."""


def counts_in(place: Path, manifest: Manifest) -> LaneCounts:
    """A snapshot's position and counts; SnapshotError where parts or the manifest disagree."""
    parts = [read_part(place / record.file, sha256=None) for record in manifest.parts]
    agreed = agreed_counts(parts)
    for part in parts[1:]:
        own = unpack_counts(part.meta.get(COUNTS), part.name)
        for shard, totals in agreed.totals.items():
            if shard not in own.totals or own.totals[shard].samples != totals.samples:
                raise SnapshotError(f"{part.name} has not counted as many samples of shard {shard} as {parts[0].name}")
    sealed, counted = ((at.round, at.pass_id, at.samples) for at in (manifest, agreed))
    if sealed != counted:
        words = "its manifest has round {}, pass {} and {:,} samples, its parts have round {}, pass {} and {:,}"
        raise SnapshotError(words.format(*sealed, *counted))
    return agreed


def ledger_differs(manifest: Manifest, counts: LaneCounts, applied: Applied) -> str:
    """How lanes' counts differ from the ledger's; '' where they agree or the ledger has none."""
    ended = manifest.ended
    if ended is not None and ended.pass_id in applied:
        for shard, own in ended.shards.items():
            booked = applied[ended.pass_id].get(shard, 0)
            if booked != own.samples:
                counted = f"lanes had applied {own.samples:,} samples of shard {shard} when pass {ended.pass_id} ended"
                return f"{counted}, the ledger says {booked:,}"
    if any(pass_id not in applied for pass_id in range(counts.pass_id)):
        return ""  # `verify` reports the missing pass, or it was trained into another directory
    before = counts.samples - sum(totals.samples for totals in counts.totals.values())
    wanted = sum(sum(applied[pass_id].values()) for pass_id in range(counts.pass_id))
    if before == wanted:
        return ""
    return f"lanes had applied {before:,} samples before pass {counts.pass_id}, the ledger has {wanted:,}"
