"""What lanes have counted, read from a snapshot's parts: held against each other, the manifest and the ledger.

The ledger is written from what the first lane told. Every lane counts by itself the samples whose gradients it has
applied, and its pserver's part of each snapshot says how many: where all of them agree with the ledger, no update was
lost or applied twice.
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
    """Where a snapshot was taken and what was counted up to there; refused where parts or the manifest disagree."""
    parts = [read_part(place / record.file, sha256=None) for record in manifest.parts]
    agreed = agreed_counts(parts)
    for part in parts[1:]:
        own = unpack_counts(part.meta.get(COUNTS), part.name)
        for shard, totals in agreed.totals.items():
            if shard not in own.totals or own.totals[shard].samples != totals.samples:
                raise SnapshotError(f"{part.name} has not counted as many samples of shard {shard} as {parts[0].name}")
    told, found = (manifest.round, manifest.pass_id, manifest.samples), (agreed.round, agreed.pass_id, agreed.samples)
    if told != found:
        raise SnapshotError(
            "its manifest tells of round {}, pass {} and {:,} samples, its parts of round {}, pass {} and {:,}".format(
                *told, *found
            )
        )
    return agreed


def ledger_differs(manifest: Manifest, counts: LaneCounts, applied: Applied) -> str:
    """In words, what lanes have counted otherwise than the ledger says; '' where they agree or it does not say."""
    ended = manifest.ended
    if ended is not None and ended.pass_id in applied:
        for shard, own in ended.shards.items():
            told = applied[ended.pass_id].get(shard, 0)
            if told != own.samples:
                counted = f"lanes had applied {own.samples:,} samples of shard {shard} when pass {ended.pass_id} ended"
                return f"{counted}, the ledger says {told:,}"
    if any(pass_id not in applied for pass_id in range(counts.pass_id)):
        return ""  # it is missed elsewhere, or was trained elsewhere
    before = counts.samples - sum(totals.samples for totals in counts.totals.values())
    wanted = sum(sum(applied[pass_id].values()) for pass_id in range(counts.pass_id))
    if before == wanted:
        return ""
    return f"lanes had applied {before:,} samples before pass {counts.pass_id}, the ledger has {wanted:,}"
