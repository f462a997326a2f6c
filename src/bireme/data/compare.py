"""Compare shards with each other and with the split's manifest.

Pure functions from counts and hashes to problems.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from bireme.data.layout import DICTIONARY, FileFacts, SplitManifest
from bireme.data.scan import Problem, Severity

FactsByShard = Mapping[int, Mapping[str, FileFacts]]
"""For each shard, its files by path within the shard (`data/train.txt`)."""


def find_gaps(shards: list[int]) -> Iterator[Problem]:
    """Shards must be numbered 0, 1, 2 … without holes."""
    for missing in sorted(set(range(max(shards) + 1)) - set(shards)):
        yield Problem("error", str(missing), None, f"shard {missing} is missing", "split the data again")


def find_empty(lines: Mapping[int, int]) -> Iterator[Problem]:
    """A shard without training lines is legal, but rarely meant; a job without any is not."""
    empty = [shard for shard, count in lines.items() if count == 0]
    if len(empty) == len(lines):
        yield Problem("error", "", None, "no shard has a training line", "split the data again")
        return
    for shard in empty:
        what = "the shard has no training lines, so its trainer has nothing to do"
        yield Problem("warning", str(shard), None, what, "split into fewer shards if that is not meant")


def find_differences(facts: FactsByShard, split: set[str], test: set[str]) -> Iterator[Problem]:
    """Files that are not split must be the same in every shard."""
    names = sorted({name for files in facts.values() for name in files} - split)
    for name in names:
        first = next(shard for shard, files in facts.items() if name in files)
        is_dictionary = name == f"data/{DICTIONARY}"
        severity: Severity = "error" if is_dictionary or name.endswith(".list") or name in test else "warning"
        consequence = ": the same word would have different ids" if is_dictionary else ""
        for shard, files in facts.items():
            file = f"{shard}/{name}"
            if name not in files:
                what = f"missing here, but shard {first} has it"
                yield Problem(severity, file, None, what, f"copy it from shard {first}")
            elif files[name].sha256 != facts[first][name].sha256:
                what = f"differs from shard {first}'s{consequence}"
                yield Problem(severity, file, None, what, f"copy it from shard {first}, or split again")


def find_changes(manifest: SplitManifest, facts: FactsByShard) -> Iterator[Problem]:
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


def _changes_of(file: str, then: FileFacts, now: FileFacts | None) -> Iterator[Problem]:
    if now is None:
        yield Problem("error", file, None, "is gone since the split", "split the data again")
    elif now.sha256 != then.sha256:
        detail = f"{then.bytes:,} bytes then, {now.bytes:,} now"
        if now.lines != then.lines:
            detail = f"{then.lines:,} lines then, {now.lines:,} now"
        what = f"changed since the split ({detail})"
        yield Problem("error", file, None, what, "split the data again, or restore the old file")
