"""Check the shards of a job before training on them.

Every file is read once, line by line; shards are then compared with each other and with the split's manifest, by their
counts and hashes. Problems are collected rather than raised, so that one run reports all; each
names its file, line and fix. A file that is the same in several shards is reported once.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from bireme.core.errors import DataError
from bireme.data import layout
from bireme.data.scan import (
    LineCheck,
    Problem,
    Severity,
    check_dictionary,
    check_label_list,
    check_samples,
    looks_labelled,
    scan_file,
)
from bireme.data.staging import Progress, storage_error

_TEST_LIST = "test.list"
_PROGRESS_BYTES = 1 << 20
_FactsByShard = Mapping[int, Mapping[str, layout.FileFacts]]
"""For each shard, its files by path within the shard (`data/train.txt`)."""


@dataclass(frozen=True, slots=True)
class ShardFacts:
    """The size of one shard."""

    shard: int
    lines: int
    """Training lines."""
    nbytes: int
    files: int


@dataclass(frozen=True, slots=True)
class CheckReport:
    """The result of a check."""

    job: Path
    shards: tuple[ShardFacts, ...]
    problems: tuple[Problem, ...]

    @property
    def errors(self) -> int:
        """Also those that are counted but not listed."""
        return sum(1 + problem.more for problem in self.problems if problem.severity == "error")

    @property
    def warnings(self) -> int:
        return sum(1 + problem.more for problem in self.problems if problem.severity == "warning")


def check_job(job: Path, *, on_progress: Progress | None = None) -> CheckReport:
    """Check every shard of `job`; `on_progress` is called with (bytes read, bytes to read).

    Raises DataError only where there is nothing to check.
    """
    if not job.is_dir():
        raise DataError(f"{job} is not a directory", fix="give the directory that `bireme data split` made")
    shards = layout.shard_directories(job)
    if not shards:
        raise DataError(
            f"{job} holds no shards",
            why="a shard is a directory named 0, 1, 2 …",
            fix=f"make them with `bireme data split SOURCE --shards 3 --out {job}`",
        )
    try:
        return _Check(job, shards, on_progress).run()
    except OSError as error:
        raise storage_error(error, job) from error


class _Check:
    """One walk over all shards, gathering facts and problems."""

    def __init__(self, job: Path, shards: dict[int, Path], on_progress: Progress | None) -> None:
        self._job = job
        self._shards = shards
        self._on_progress = on_progress
        self._files = {shard: layout.data_files(path / "data") for shard, path in shards.items()}
        self._total = sum((shards[s] / "data" / n).stat().st_size for s, ns in self._files.items() for n in ns)
        self._done = self._shown = 0
        self._problems: list[Problem] = []
        self._facts: dict[int, dict[str, layout.FileFacts]] = {}
        self._reported: set[tuple[str, str]] = set()
        self._train: set[str] = set()
        self._test: set[str] = set()

    def run(self) -> CheckReport:
        missing = sorted(set(range(max(self._shards) + 1)) - self._shards.keys())
        for shard in missing:
            self._add("error", str(shard), None, f"shard {shard} is missing", "split the data again")
        lines = {shard: self._check_shard(shard) for shard in self._shards}
        self._problems += _find_empty(lines)
        self._problems += _find_differences(self._facts, self._train, self._test)
        self._check_manifest()
        return CheckReport(
            job=self._job,
            shards=tuple(self._shard_facts(shard, count) for shard, count in lines.items()),
            problems=tuple(sorted(self._problems, key=lambda problem: problem.severity)),
        )

    def _check_shard(self, shard: int) -> int:
        """Scan all files of a shard; returns how many training lines it has."""
        self._facts[shard] = {}
        if not (self._shards[shard] / "data").is_dir():
            self._add("error", f"{shard}/data", None, "there is no data directory", "split the data again")
            return 0
        train, test = self._roles(shard)
        self._train |= {f"data/{name}" for name in train}
        self._test |= {f"data/{name}" for name in test}
        labels = self._read_labels(shard)
        for name in self._files[shard]:
            if name != layout.LABELS_LIST:
                self._scan(shard, name, self._line_check(shard, name, name in train | test, labels))
        return sum(self._facts[shard][f"data/{name}"].lines for name in train)

    def _roles(self, shard: int) -> tuple[set[str], set[str]]:
        """Read the list files: the shard's training files and its test files, as far as they exist."""
        lists = [name for name in self._files[shard] if name.endswith(".list") and name != layout.LABELS_LIST]
        targets = {name: self._targets(shard, name) for name in lists}
        if layout.TRAIN_LIST not in targets:
            targets[layout.TRAIN_LIST] = {layout.TRAIN_FILE} & set(self._files[shard])
            if not targets[layout.TRAIN_LIST]:
                fix = f"add {layout.TRAIN_FILE}, or name the training files in {layout.TRAIN_LIST}"
                self._add("error", f"{shard}/data/{layout.TRAIN_FILE}", None, "there is no training data", fix)
        return targets[layout.TRAIN_LIST], targets.get(_TEST_LIST, set())

    def _targets(self, shard: int, name: str) -> set[str]:
        file = f"{shard}/data/{name}"
        found: set[str] = set()
        try:
            entries = layout.list_entries(self._job / file)
        except DataError:
            return found  # the scan of the file reports it, with its line
        for number, entry in entries:
            target = layout.inside_data(entry)
            if target is None:
                what, fix = f"{entry} is not below data/", f"write data/{Path(entry).name}"
            elif target not in self._files[shard]:
                what, fix = f"{entry} does not exist", "restore the file, or correct this line"
            else:
                found.add(target)
                continue
            self._add("error" if name in (layout.TRAIN_LIST, _TEST_LIST) else "warning", file, number, what, fix)
        return found

    def _read_labels(self, shard: int) -> frozenset[int] | None:
        if layout.LABELS_LIST not in self._files[shard]:
            return None
        labels: set[int] = set()
        self._scan(shard, layout.LABELS_LIST, check_label_list(labels))
        return frozenset(labels) or None

    def _line_check(self, shard: int, name: str, has_samples: bool, labels: frozenset[int] | None) -> LineCheck | None:
        if name == layout.DICTIONARY:
            return check_dictionary()
        is_labelled = has_samples and looks_labelled(self._shards[shard] / "data" / name, labels)
        return check_samples(labels) if is_labelled else None

    def _scan(self, shard: int, name: str, check: LineCheck | None) -> None:
        scan = scan_file(self._shards[shard] / "data" / name, f"{shard}/data/{name}", check, self._advance)
        self._facts[shard][f"data/{name}"] = layout.FileFacts(
            path=f"data/{name}", lines=scan.lines, bytes=scan.nbytes, sha256=scan.sha256
        )
        if (name, scan.sha256) not in self._reported:
            self._reported.add((name, scan.sha256))
            self._problems += scan.problems()

    def _check_manifest(self) -> None:
        path = self._job / layout.MANIFEST
        if not path.exists():
            what = "there is none, so changes since the split cannot be noticed"
            self._add("warning", layout.MANIFEST, None, what, "make the shards with `bireme data split`")
            return
        try:
            self._problems += _find_changes(layout.read_manifest(path), self._facts)
        except DataError as error:
            self._add("error", layout.MANIFEST, None, error.what, error.fix)

    def _shard_facts(self, shard: int, lines: int) -> ShardFacts:
        files = self._facts[shard].values()
        return ShardFacts(shard=shard, lines=lines, nbytes=sum(f.bytes for f in files), files=len(files))

    def _add(self, severity: Severity, file: str, line: int | None, what: str, fix: str) -> None:
        self._problems.append(Problem(severity, file, line, what, fix))

    def _advance(self, nbytes: int) -> None:
        self._done += nbytes
        # A call for every line would cost more than the check itself.
        if self._on_progress is not None and (self._done - self._shown >= _PROGRESS_BYTES or self._done >= self._total):
            self._shown = self._done
            self._on_progress(self._done, self._total)


def _find_empty(lines: Mapping[int, int]) -> Iterator[Problem]:
    """A shard without training lines is legal, but rarely meant; a job without any is not."""
    empty = [shard for shard, count in lines.items() if count == 0]
    if len(empty) == len(lines):
        yield Problem("error", "", None, "no shard has a training line", "split the data again")
        return
    for shard in empty:
        what = "the shard has no training lines, so its trainer has nothing to do"
        yield Problem("warning", str(shard), None, what, "split into fewer shards if that is not meant")


def _find_differences(facts: _FactsByShard, split: set[str], test: set[str]) -> Iterator[Problem]:
    """Files that are not split must be the same in every shard."""
    names = sorted({name for files in facts.values() for name in files} - split)
    for name in names:
        typical = layout.find_typical({shard: files[name].sha256 for shard, files in facts.items() if name in files})
        is_dictionary = name == f"data/{layout.DICTIONARY}"
        severity: Severity = "error" if is_dictionary or name.endswith(".list") or name in test else "warning"
        consequence = ": the same word would have different ids" if is_dictionary else ""
        fix = layout.RESTORE if name in test else f"copy it from shard {typical}, or split the data again"
        for shard, files in facts.items():
            file = f"{shard}/{name}"
            if name not in files:
                what = f"missing here, but shard {typical} has it"
                yield Problem(severity, file, None, what, fix)
            elif files[name].sha256 != facts[typical][name].sha256:
                what = f"differs from shard {typical}'s{consequence}"
                yield Problem(severity, file, None, what, fix)


def _find_changes(manifest: layout.SplitManifest, facts: _FactsByShard) -> Iterator[Problem]:
    """The files of the split must be unchanged, byte for byte."""
    if manifest.shards != len(facts):
        what = f"the split made {manifest.shards} shards, but {len(facts)} are here"
        yield Problem("error", "shards.json", None, what, "split the data again")
    for entry in manifest.contents:
        if entry.shard not in facts:
            continue  # reported as a gap, or by the count above
        now = facts[entry.shard]
        for then in entry.files:
            yield from _changes_of(f"{entry.shard}/{then.path}", then, now.get(then.path))
        for name in sorted(now.keys() - {then.path for then in entry.files}):
            what = "was not there when the data was split"
            yield Problem("warning", f"{entry.shard}/{name}", None, what, "remove it, or split again with it")


def _changes_of(file: str, then: layout.FileFacts, now: layout.FileFacts | None) -> Iterator[Problem]:
    if now is None:
        yield Problem("error", file, None, "is gone since the split", "split the data again")
    elif now.sha256 != then.sha256:
        detail = f"{then.bytes:,} bytes then, {now.bytes:,} now"
        if now.lines != then.lines:
            detail = f"{then.lines:,} lines then, {now.lines:,} now"
        what = f"changed since the split ({detail})"
        yield Problem("error", file, None, what, "split the data again, or restore the old file")
