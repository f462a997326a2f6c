"""The directory `output/snapshots`: which snapshots are committed, which of them are whole, and which may go.

    <round>-<view>/part-0.bin …    written by pservers, each by rename
    <round>-<view>/manifest.json   written last: its rename alone is the commit

A directory without manifest is no snapshot yet, or no longer one. A committed snapshot is never written to; it
is removed manifest first, and before the snapshots that it builds on, so that a crash at any step leaves only
whole ones. Loading checks every file against its hash.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import NamedTuple

from bireme.core import faults
from bireme.core.errors import SnapshotError, StorageError
from bireme.core.files import storage_errors, sync_directory, volume, write_atomic
from bireme.job.coordination.effects import Base, Load
from bireme.job.output.journal import JournalSummary
from bireme.job.output.manifest import MANIFEST, Inputs, Manifest, PartRecord, differences, seal, unseal
from bireme.ps.lanes.progress import COUNTS, agreed_counts, unpack_counts
from bireme.ps.lanes.rounds import LaneCounts
from bireme.ps.snapshot.snapshot_files import hash_of, read_part
from bireme.spec.terms import Facts

_NAME = re.compile(r"([0-9]{12})-([0-9a-f]{16})")
Applied = Mapping[int, Mapping[int, int]]
"""Samples by pass and shard, of passes that are in the ledger as a whole."""


class BadSnapshot(NamedTuple):
    """Why a snapshot cannot be used."""

    name: str
    what: str

    def __str__(self) -> str:
        return f"{self.name}: {self.what}"


def commit(directory: Path, manifest: Manifest) -> None:
    """Commit a cut by the rename of its manifest; all its parts must be there. Idempotent."""
    place = directory / manifest.name
    data = seal(manifest)
    for record in manifest.parts:
        wrong = _wrong_size(place / record.file, record)
        if wrong:
            raise SnapshotError(f"{manifest.name} cannot be committed: {wrong}")
    for name in manifest.base:
        if not (directory / name / MANIFEST).is_file():
            raise SnapshotError(f"{manifest.name} cannot be committed: it builds on {name}, which is not there")
    with storage_errors(str(place / MANIFEST)):
        if (place / MANIFEST).is_file() and (place / MANIFEST).read_bytes() != data:
            raise SnapshotError(f"{place} was committed before, with another manifest")
        # Before the manifest: a power cut must not take the directory that a committed one is in.
        sync_directory(directory)
        sync_directory(directory.parent)
    faults.at("snapshot.commit")
    write_atomic(place / MANIFEST, data)


def candidates(directory: Path) -> tuple[list[Manifest], list[BadSnapshot]]:
    """Committed snapshots, newest first, by round and then view; and those whose manifest cannot be read.

    Both are empty where a job has not committed anything yet. Parts are not looked at.
    """
    manifests, problems = [], []
    for name in _names(directory):
        try:
            manifests.append(unseal((directory / name / MANIFEST).read_bytes(), name))
        except FileNotFoundError:
            continue
        except SnapshotError as e:
            problems.append(BadSnapshot(name, e.what))
        except OSError as e:
            problems.append(BadSnapshot(name, f"its manifest cannot be read: {e.strerror or e}"))
    return manifests, problems


def _later_ones(directory: Path, newer_than: int) -> tuple[list[Manifest], list[BadSnapshot]]:
    """Candidates of later incarnations; of an unreadable manifest only the directory's name says which."""
    manifests, problems = candidates(directory)
    later = [problem for problem in problems if not newer_than or _age(problem.name)[0] >> 32 > newer_than]
    return [manifest for manifest in manifests if manifest.incarnation > newer_than], later


def load_newest(directory: Path, inputs: Inputs | None, newer_than: int = 0) -> tuple[Manifest, list[BadSnapshot]]:
    """The newest snapshot all of whose files, and those of its bases, are as they were committed.

    Also returns the problems of newer ones. Refuses a snapshot of other inputs; None accepts any. Skips those of
    incarnations up to `newer_than`, which belong to an earlier run in the same directory.
    """
    manifests, problems = _later_ones(directory, newer_than)
    check = _Check(directory, manifests)
    for manifest in manifests:
        wrong = check.snapshot(manifest)
        if not wrong:
            if inputs is not None and (changes := differences(manifest, inputs)):
                raise SnapshotError(
                    f"the snapshot {manifest.name} was made from other inputs",
                    why="; ".join(changes),
                    fix="put back what was changed, or resume all the same with --accept-changes",
                )
            return manifest, sorted((p for p in problems if p.name > manifest.name), reverse=True)
        problems.append(BadSnapshot(manifest.name, wrong))
    if not problems:
        raise SnapshotError(f"there is no snapshot in {directory}", fix="train from the beginning")
    raise SnapshotError(
        f"no snapshot in {directory} can be used",
        why="; ".join(map(str, sorted(problems, reverse=True))),
        fix="bring the files back from a copy, or train again into another output directory",
    )


def find_base(past: JournalSummary, directory: Path | None, facts: Facts, load: Load) -> tuple[Base, list[BadSnapshot]]:
    """The state that a job with this past resumes from; also the problems of newer snapshots.

    Without a snapshot, a run that has not committed one yet starts from the beginning. If it has, and none can be used,
    the job fails: an operator should look at a volume that damages them all before everything is computed again.
    """
    if directory is None or not (facts.is_resumed or any(_later_ones(directory, load.newer_than))):
        return Base(None, (), past), []
    manifest, problems = load_newest(directory, load.inputs, load.newer_than)
    with storage_errors(str(directory / manifest.name)):
        # The committing process may have died between rename and sync: the resumed job's files must not outlive it.
        sync_directory(directory / manifest.name)
    return Base(manifest, files_of(directory, manifest), past), problems


def files_of(directory: Path, manifest: Manifest) -> tuple[tuple[str, ...], ...]:
    """Paths of a good snapshot's parts, after those of the snapshots that it builds on."""
    by_name = {m.name: m for m in candidates(directory)[0]}
    chain = [*(by_name[name] for name in manifest.base), manifest]
    return tuple(tuple(str(directory / one.name / part.file) for part in one.parts) for one in chain)


def check_all(directory: Path) -> tuple[list[Manifest], list[BadSnapshot]]:
    """Every committed snapshot that is whole, and every problem: for reports, not to resume."""
    manifests, problems = candidates(directory)
    check = _Check(directory, manifests)
    wrong = {manifest.name: check.snapshot(manifest) for manifest in manifests}
    problems += [BadSnapshot(name, what) for name, what in wrong.items() if what]
    return [m for m in manifests if not wrong[m.name]], sorted(problems, reverse=True)


class _Check:
    """Compares manifests with the files on disk, reading each file once."""

    def __init__(self, directory: Path, manifests: Iterable[Manifest]) -> None:
        self._directory = directory
        self._manifests = {m.name: m for m in manifests}
        self._known = {r.sha256: (f"{m.name}/{r.file}", r.nbytes) for m in manifests for r in m.parts}
        self._wrong: dict[str, str] = {}

    def snapshot(self, manifest: Manifest) -> str:
        """What is wrong with a snapshot or one that it builds on; '' if nothing is."""
        wrong = self._files(manifest)
        if wrong:
            return wrong
        for name in sorted(_needed([manifest], self._manifests) - {manifest.name}):
            base = self._manifests.get(name)
            wrong = "it is not committed or its manifest is broken" if base is None else self._files(base)
            if wrong:
                return f"it builds on {name}: {wrong}"
        return ""

    def _files(self, manifest: Manifest) -> str:
        if manifest.name not in self._wrong:
            place = self._directory / manifest.name
            results = (self._file(place / record.file, record) for record in manifest.parts)
            self._wrong[manifest.name] = next((wrong for wrong in results if wrong), "")
        return self._wrong[manifest.name]

    def _file(self, path: Path, record: PartRecord) -> str:
        wrong = _wrong_size(path, record)
        try:
            if wrong and path.stat().st_size not in {nbytes for _, nbytes in self._known.values()}:
                return wrong
            with path.open("rb") as f:
                digest = hash_of(f)
        except OSError as e:
            return wrong or f"{record.file} cannot be read: {e.strerror or e}"
        if digest == record.sha256:
            return ""
        if digest in self._known:
            return f"{record.file} is in fact {self._known[digest][0]}"
        return wrong or f"{record.file} has flipped bits: it does not have its hash"


def _wrong_size(path: Path, record: PartRecord) -> str:
    try:
        nbytes = path.stat().st_size
    except FileNotFoundError:
        return f"{record.file} is missing"
    except OSError as e:
        return f"{record.file} cannot be read: {e.strerror or e}"
    return "" if nbytes == record.nbytes else f"{record.file} is torn: {nbytes} bytes of {record.nbytes}"


def keep(directory: Path, count: int) -> list[str]:
    """Remove all but the newest `count` snapshots, at least one, and their bases; returns the removed names.

    Uncommitted ones are removed once a newer one is committed. "Newest" is by round and also by view: after a rewind
    past a broken snapshot, rounds restart below it, and neither it nor the newer ones may crowd out the other.
    """
    manifests, _ = candidates(directory)
    if not manifests:
        return []
    count = max(count, 1)
    later = sorted(manifests, key=lambda m: (m.view, m.round), reverse=True)
    kept = _needed([*manifests[:count], *later[:count]], {m.name: m for m in manifests})
    oldest = min(_age(name) for name in kept)
    gone = {m.name for m in manifests} - kept
    for name in set(_names(directory)) - gone - kept:
        # Pservers may still be writing an uncommitted one unless a newer one is committed; a broken manifest may be
        # of a newer bireme, so it stays until all others of its time are removed.
        with storage_errors(f"{directory / name} (it might have been removed)"):
            is_committed = (directory / name / MANIFEST).exists()
        if _age(name) < (oldest if is_committed else _age(later[0].name)):
            gone.add(name)
    victims = sorted(gone, key=_age, reverse=True)
    for name in victims:
        _remove(directory / name)
    return victims


def _needed(manifests: Iterable[Manifest], known: Mapping[str, Manifest]) -> set[str]:
    """Names of these snapshots and of all that they build on."""
    names: set[str] = set()
    waiting = [m.name for m in manifests]
    while waiting:
        name = waiting.pop()
        if name not in names:
            names.add(name)
            waiting += known[name].base if name in known else ()
    return names


def _names(directory: Path) -> list[str]:
    """All names of snapshots here, newest first; names sort by round and then view."""
    try:
        names = [p.name for p in directory.iterdir()]
    except (FileNotFoundError, NotADirectoryError):
        return []
    except OSError as e:  # a network volume may be unavailable for a moment: that is not an empty directory
        raise StorageError(f"cannot look into {directory}: {e.strerror or e}") from e
    return sorted(filter(_NAME.fullmatch, names), reverse=True)


def _age(name: str) -> tuple[int, int]:
    """Sort key by creation: views only grow."""
    round_, _, view = name.partition("-")
    return int(view, 16), int(round_)


def _remove(place: Path) -> None:
    """Remove a snapshot, manifest first: a crash must not leave a committed one with missing parts."""
    with storage_errors(f"{place} (it was to be removed)"):
        if not place.is_dir():
            return
        if (place / MANIFEST).exists():
            (place / MANIFEST).unlink()
            sync_directory(place)
        volume().remove_tree(place)
        sync_directory(place.parent)


def counts_in(place: Path, manifest: Manifest) -> LaneCounts:
    """A snapshot's position and counts; SnapshotError where parts or the manifest disagree.

    Every lane counts by itself the samples whose gradients it has applied, and its pserver's part has these counts.
    """
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
    """How lanes' counts differ from the ledger's; '' where they agree or the ledger has none.

    The ledger has the first lane's counts: where all agree with it, no update was lost or applied twice.
    """
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
