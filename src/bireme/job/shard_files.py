"""Checks before a start that a job's shards agree, from the lengths and hashes of their files.

Trainers would find some differences later, and name a trainer rather than the file. Others would go unnoticed: where a
shard lacks a file, its trainer reads the one beside the program.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from bireme.core.errors import DataError
from bireme.core.text import first_of
from bireme.data.layout import DICTIONARY, TRAIN_LIST, find_typical, inside_data, list_entries
from bireme.job.workdir import borrowed_workdir
from bireme.programs.loading import ProgramSpec, load_program
from bireme.programs.program import Program
from bireme.spec.job import Job

Files = Mapping[str, tuple[int, str]]
"""A shard's files with lengths and hashes."""
_TEST_LIST = "test.list"


def check_alike(job: Job, program: Program, shards: Sequence[Files]) -> None:
    """Refuse shards of which one lacks a file, or has another dictionary; `shards` has the files of each."""
    data, used = Path(job.data), shards[: job.shards]
    for problem in _missing(data, used):
        raise _refusal(data, problem)
    for shard, name, other in _different(used):
        if name == DICTIONARY:
            what = f"shard {shard}'s {name} differs from shard {other}'s"
            raise _refusal(data, what, "the same word would have different ids")
        if not _is_listed(data, shard, name) and _makes_another_program(job, program, shard):
            what = f"shard {shard}'s {name} differs from shard {other}'s"
            raise _refusal(data, what, f"{program.name} makes another program of it")


def empty_shards(job: Job, shards: Sequence[Files]) -> str:
    """A warning about shards without training data; '' if there are none, or no others."""
    data, used = Path(job.data), shards[: job.shards]
    named = [_entries(data, shard, TRAIN_LIST) for shard in range(len(used))]
    empty = [s for s, names in enumerate(named) if names and not any(used[s].get(n, (1,))[0] for n in names)]
    if not empty or len(empty) == len(used):
        return ""
    which = first_of(empty, 5)
    one = len(empty) == 1
    return (
        f"warning: {'shard' if one else 'shards'} {which} {'has' if one else 'have'} no training data, so there is "
        "nothing to train on there; split into fewer shards if that is not meant"
    )


def _refusal(data: Path, what: str, why: str = "") -> DataError:
    fix = f"copy it from the other shard, or split the data again; `bireme data check {data}` finds all such files"
    return DataError(what, why=why, fix=fix)


def _missing(data: Path, shards: Sequence[Files]) -> Iterator[str]:
    """Describe files that one shard has, and another needs and lacks."""
    for shard, files in enumerate(shards):
        needed = {DICTIONARY, TRAIN_LIST, _TEST_LIST}
        for name in (TRAIN_LIST, _TEST_LIST):
            needed |= set(_entries(data, shard, name) if name in files else ())
        for name in sorted(needed - files.keys()):
            has = next((other for other, theirs in enumerate(shards) if name in theirs), None)
            if has is not None:
                yield f"shard {shard} has no {name}, shard {has} has one"


def _different(shards: Sequence[Files]) -> Iterator[tuple[int, str, int]]:
    """Files that differ from those of most shards: the shard, the file, and a shard with the common one."""
    for name in sorted(set.intersection(*(set(files) for files in shards))):
        typical = find_typical({shard: files[name] for shard, files in enumerate(shards)})
        for shard, files in enumerate(shards):
            if files[name] != shards[typical][name]:
                yield shard, name, typical


def _is_listed(data: Path, shard: int, name: str) -> bool:
    """Whether a file is a list or named in one: these may differ from shard to shard."""
    return name.endswith(".list") or any(name in _entries(data, shard, each) for each in (TRAIN_LIST, _TEST_LIST))


def _entries(data: Path, shard: int, name: str) -> list[str]:
    """The files of a shard that one of its lists names."""
    path = data / str(shard) / "data" / name
    entries = list_entries(path) if path.is_file() else []
    return [inner for _, entry in entries if (inner := inside_data(entry)) is not None]


def _makes_another_program(job: Job, program: Program, shard: int) -> bool:
    with borrowed_workdir(job, shard) as workdir:
        other = load_program(ProgramSpec(job.config, workdir, job.config_args))
        return other.fingerprint != program.fingerprint
