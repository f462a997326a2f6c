"""The layout of a data directory and of a job: list files, shards, and the manifest.

A shard is `<job>/<i>/`, a working directory whose `data/` holds the files; list files name these relative to the shard,
as `data/train.txt`. `<job>/shards.json` is written last by a split and records the content of every shard.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from pathlib import Path, PurePosixPath

import msgspec

from bireme.core.errors import DataError
from bireme.data.staging import UNFINISHED
from bireme.spec.load import is_shard_name

MANIFEST = "shards.json"
FORMAT_VERSION = 1
TRAIN_LIST = "train.list"
TRAIN_FILE = "train.txt"
LABELS_LIST = "labels.list"
DICTIONARY = "dict.txt"
RESTORE = "restore it, or split the data again"
"""The fix for a file that a list names: another shard's file of that name has other samples."""


class FileFacts(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One file of a shard as the split wrote it; `path` is relative to the shard."""

    path: str
    lines: int
    bytes: int
    sha256: str


class ShardManifest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The files of one shard."""

    shard: int
    files: tuple[FileFacts, ...]


class SplitManifest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The content of `shards.json`."""

    version: int
    shards: int
    split: tuple[str, ...]
    """The files that were cut by lines; all others are the same in every shard."""
    contents: tuple[ShardManifest, ...]


def read_manifest(path: Path) -> SplitManifest:
    try:
        manifest = msgspec.json.decode(path.read_bytes(), type=SplitManifest)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        fix = "split the data again, or remove the file if you no longer want the check"
        raise DataError(f"{path} is not a shard manifest: {error}", fix=fix) from error
    if manifest.version != FORMAT_VERSION:
        what = f"{path} has format version {manifest.version}, but this bireme reads version {FORMAT_VERSION}"
        raise DataError(what, fix="split the data again with this bireme, or use the one that made it")
    return manifest


def shard_directories(job: Path) -> dict[int, Path]:
    found = {int(path.name): path for path in job.iterdir() if is_shard_name(path.name) and path.is_dir()}
    return dict(sorted(found.items()))


def data_files(directory: Path) -> list[str]:
    """List every file below `directory` as a relative path with slashes, in order."""
    found: list[str] = []
    for path in directory.rglob("*"):
        name = path.relative_to(directory).as_posix()
        if name.startswith(UNFINISHED):
            continue
        if path.is_symlink() and not path.is_file():
            raise DataError(
                f"{path} is a link to {'a directory' if path.is_dir() else 'nothing'}",
                why="only files and plain directories can be copied to the shards",
                fix="replace it by a regular file or directory, or remove it",
            )
        if path.is_file():
            found.append(name)
    return sorted(found)


def find_typical(hashes: Mapping[int, object]) -> int:
    """The first shard whose content of a file is that of most shards."""
    common = Counter(hashes.values()).most_common(1)[0][0]
    return next(shard for shard, content in hashes.items() if content == common)


def list_entries(path: Path) -> list[tuple[int, str]]:
    """Read a list file: (line number, entry) for every line that is not blank."""
    try:
        lines = path.read_bytes().decode("utf-8").split("\n")
    except UnicodeDecodeError as error:
        raise DataError(f"{path} is not UTF-8 text", fix="save the list as plain UTF-8 text") from error
    return [(number, line.strip()) for number, line in enumerate(lines, start=1) if line.strip()]


def inside_data(entry: str) -> str | None:
    """Return an entry's path below `data/`, or None where it points anywhere else."""
    path = PurePosixPath(entry)
    parts = [part for part in path.parts if part != "."]
    if path.is_absolute() or ".." in parts or len(parts) < 2 or parts[0] != "data":
        return None
    return "/".join(parts[1:])
