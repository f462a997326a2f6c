"""Checks before a process is started: the program is loaded once, its rules are tried, shards are compared.

A mistake in a config is reported within a second, with nothing written and nothing to clean up. Shards are compared by
the lengths and hashes of their files. Trainers would find some differences later, and name a trainer rather than the
file. Others would go unnoticed: where a shard lacks a file, its trainer reads the one beside the program.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from bireme.core.errors import DataError, SpecError
from bireme.core.text import first_of
from bireme.data.layout import DICTIONARY, RESTORE, TRAIN_LIST, find_typical, inside_data, list_entries
from bireme.job.workdir import borrowed_workdir
from bireme.programs.loading import ProgramSpec, load_program
from bireme.programs.program import Program
from bireme.ps.optim.optimizers import check_rules
from bireme.ps.optim.schedules import check_schedule
from bireme.ps.plan import check_names
from bireme.spec.job import Job
from bireme.spec.model import Updates, Wire

Files = Mapping[str, tuple[int, str]]
"""A shard's files with lengths and hashes."""
_TEST_LIST = "test.list"


def updates_of(program: Program, asked: Updates | None, wire: Wire) -> Updates:
    """How this program is updated: as the job says, else as the program does; refuses what cannot go together."""
    updates = asked or Updates(mode="async" if program.wants_async else "sync")
    tables = [p.name for p in program.parameters if p.is_sparse]
    if updates.mode == "local" and tables:
        raise SpecError(
            f"`mode: local` cannot train the sparse parameter {tables[0]}",
            why="each shard would need a copy of the whole table",
            fix="use `mode: sync`, `bounded` or `async`, or leave sparse_update out",
        )
    if updates.mode == "local" and not wire.is_exact:
        raise SpecError(
            f"`mode: local` cannot send {wire.gradients}",
            why="what is sent there are differences of parameters, not gradients",
            fix="leave `wire` out: `local.every` saves more bytes than any coding",
        )
    return updates


def check_lanes(program: Program, sparse_lanes: int) -> None:
    tables = [p.name for p in program.parameters if p.is_sparse]
    if tables and not sparse_lanes:
        fix = "set `lanes.ports_num_for_sparse` (by hand: --ports_num_for_sparse, on pservers too) to 1 or more"
        what = f"{program.name} has a sparse parameter, {tables[0]}, and pservers have no sparse lane"
        raise SpecError(what, fix=fix)


def check_parameters(program: Program, job: Job) -> Updates:
    """Refuse parameters that cannot be trained as the job says; returns how they are updated."""
    if not program.parameters:
        raise SpecError(f"{program.name} defines nothing to train: no layer has a parameter")
    check_names(program.parameters)
    check_lanes(program, job.ports_num_for_sparse)
    return updates_of(program, job.updates, job.wire)


def check_stop(program: Program, stop_after: int) -> None:
    if stop_after and program.source("test") is None:
        fix = "give define_py_data_sources2 a test_list, or leave `stop_when` out"
        raise SpecError(f"`stop_when` is about the test cost, and {program.name} defines no test data", fix=fix)


def check_program(job: Job) -> Program:
    """Load the program and refuse what cannot be trained; reads no sample."""
    with borrowed_workdir(job) as workdir:
        program = load_program(ProgramSpec.of_job(job, workdir))
        check_parameters(program, job)
        check_schedule(program.optimizer)
        check_rules(program.parameters)
        source = program.source("train")
        if source is None:
            raise DataError(f"{program.name} defines no training data", fix="give define_py_data_sources2 a train_list")
        source.facts(workdir)
        check_stop(program, job.stop_after)
    return program


def check_alike(job: Job, program: Program, shards: Sequence[Files]) -> None:
    """Refuse shards of which one lacks a file, or has another dictionary; `shards` has the files of each."""
    data, used = Path(job.data), shards[: job.shards]
    for shard, name, other in _missing(data, used):
        is_shared = name == DICTIONARY or name.endswith(".list")
        raise _refusal(data, f"shard {shard} has no {name}, shard {other} has one", other if is_shared else None)
    for shard, name, other in _different(used):
        what = f"shard {shard}'s {name} differs from shard {other}'s"
        if name == DICTIONARY:
            raise _refusal(data, what, other, "the same word would have different ids")
        if not _is_listed(data, shard, name) and _makes_another_program(job, program, shard):
            raise _refusal(data, what, other, f"{program.name} makes another program of it")


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


def _refusal(data: Path, what: str, copy_from: int | None, why: str = "") -> DataError:
    fix = RESTORE if copy_from is None else f"copy it from shard {copy_from}, or split the data again"
    return DataError(what, why=why, fix=f"{fix}; `bireme data check {data}` finds all such files")


def _missing(data: Path, shards: Sequence[Files]) -> Iterator[tuple[int, str, int]]:
    """Files that a shard needs and lacks: the shard, the file, and a shard that has it."""
    for shard, files in enumerate(shards):
        needed = {DICTIONARY, TRAIN_LIST, _TEST_LIST}
        for name in (TRAIN_LIST, _TEST_LIST):
            needed |= set(_entries(data, shard, name) if name in files else ())
        for name in sorted(needed - files.keys()):
            has = next((other for other, theirs in enumerate(shards) if name in theirs), None)
            if has is not None:
                yield shard, name, has


def _different(shards: Sequence[Files]) -> Iterator[tuple[int, str, int]]:
    """Files that differ from those of most shards: the shard, the file, and a shard with the common one."""
    for name in sorted(set.intersection(*(set(files) for files in shards))):
        typical = find_typical({shard: files[name] for shard, files in enumerate(shards)})
        for shard, files in enumerate(shards):
            if files[name] != shards[typical][name]:
                yield shard, name, typical


def _is_listed(data: Path, shard: int, name: str) -> bool:
    return name.endswith(".list") or any(name in _entries(data, shard, each) for each in (TRAIN_LIST, _TEST_LIST))


def _entries(data: Path, shard: int, name: str) -> list[str]:
    path = data / str(shard) / "data" / name
    entries = list_entries(path) if path.is_file() else []
    return [inner for _, entry in entries if (inner := inside_data(entry)) is not None]


def _makes_another_program(job: Job, program: Program, shard: int) -> bool:
    with borrowed_workdir(job, shard) as workdir:
        other = load_program(ProgramSpec.of_job(job, workdir))
        return other.fingerprint != program.fingerprint
