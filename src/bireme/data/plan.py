"""The plan of a split, decided before anything is written.

The plan names the files to cut and those to copy, and every request that cannot end well is
refused here, so that the writing in `split` can only fail by the disk.
"""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path

from bireme.core.errors import DataError, OutputExistsError, StorageError, UsageError
from bireme.data import layout
from bireme.data.staging import storage_error


@dataclass(frozen=True, slots=True)
class SplitPlan:
    """Which files will be cut and which copied; paths are relative to `source`."""

    source: Path
    shards: int
    split: tuple[str, ...]
    copied: tuple[str, ...]
    sizes: dict[str, int]

    @property
    def nbytes_to_write(self) -> int:
        return sum(self.sizes[n] for n in self.split) + self.shards * sum(self.sizes[n] for n in self.copied)

    @property
    def nbytes_to_read(self) -> int:
        # Files that are cut are read twice: to count their lines, and to write them.
        return 2 * sum(self.sizes[n] for n in self.split) + sum(self.sizes[n] for n in self.copied)


def plan_split(source: Path, job: Path, shards: int) -> SplitPlan:
    _refuse_bad_request(source, job, shards)
    try:
        names = layout.data_files(source)
        split = _files_to_split(source, names)
        plan = SplitPlan(
            source=source,
            shards=shards,
            split=tuple(split),
            copied=tuple(name for name in names if name not in split),
            sizes={name: (source / name).stat().st_size for name in names},
        )
        _refuse_existing(job)
        _refuse_full_disk(plan, job)
    except OSError as error:
        raise storage_error(error, source) from error
    return plan


def _files_to_split(source: Path, names: list[str]) -> list[str]:
    train_list = source / layout.TRAIN_LIST
    if layout.TRAIN_LIST not in names:
        if layout.TRAIN_FILE not in names:
            fix = f"put the training data there as {layout.TRAIN_FILE}, or name its files in {layout.TRAIN_LIST}"
            raise DataError(f"{source} holds neither {layout.TRAIN_LIST} nor {layout.TRAIN_FILE}", fix=fix)
        return [layout.TRAIN_FILE]
    split: list[str] = []
    for number, entry in layout.list_entries(train_list):
        split.append(_listed_file(f"{train_list}:{number}", entry, names, split))
    if not split:
        raise DataError(f"{train_list} names no files", fix="write one path a line, such as data/train.txt")
    return split


def _listed_file(where: str, entry: str, names: list[str], before: list[str]) -> str:
    name = layout.inside_data(entry)
    if name is None:
        raise DataError(
            f"{where} names {entry}, which is not below data/",
            why="each trainer finds its own shard's files below data/",
            fix=f"write data/{Path(entry).name}",
        )
    if name not in names:
        raise DataError(f"{where} names {entry}, which does not exist", fix="add the file or remove the line")
    if name in before:
        raise DataError(
            f"{where} names {entry} a second time", why="its lines would be read twice", fix="remove the line"
        )
    return name


def _refuse_bad_request(source: Path, job: Path, shards: int) -> None:
    if shards < 1:
        raise UsageError(f"cannot split into {shards} shards", fix="ask for at least one shard")
    if not source.is_dir():
        what = "is not a directory" if source.exists() else "does not exist"
        raise DataError(f"{source} {what}", fix="give the directory that holds train.txt")
    if job.exists() and not job.is_dir():
        raise OutputExistsError(f"{job} is a file", fix="choose a directory for the shards")
    if job.resolve().is_relative_to(source.resolve()):
        raise UsageError(
            f"{job} is inside {source}",
            why="the shards would become part of the data that is being split",
            fix="choose an output directory elsewhere",
        )


def _refuse_existing(job: Path) -> None:
    there = [*layout.shard_directories(job).values()] if job.exists() else []
    if (job / layout.MANIFEST).exists():
        there.append(job / layout.MANIFEST)
    if there:
        raise OutputExistsError(
            f"{there[0]} is already there",
            why="mixing two splits would train on some lines twice and on others never",
            fix="choose another directory, or remove the old shards and shards.json first",
        )


def _refuse_full_disk(plan: SplitPlan, job: Path) -> None:
    existing = next(path for path in (job.absolute(), *job.absolute().parents) if path.exists())
    free = shutil.disk_usage(existing).free
    if free < plan.nbytes_to_write:
        raise StorageError(
            f"{plan.shards} shards need {plan.nbytes_to_write:,} bytes, but {existing} has {free:,} free",
            why=f"every file except {', '.join(plan.split)} is copied to each shard",
            fix="free some space, choose another directory, or ask for fewer shards",
        )
