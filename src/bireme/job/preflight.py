"""Checks before a process is started: the program is loaded once and its rules are tried.

A mistake in a config is reported within a second, with nothing written and nothing to clean up.
"""

from __future__ import annotations

from bireme.core.errors import DataError, SpecError
from bireme.job.workdir import borrowed_workdir
from bireme.programs.loading import ProgramSpec, load_program
from bireme.programs.program import Program
from bireme.ps.optim.optimizers import check_rules
from bireme.ps.optim.schedules import check_schedule
from bireme.ps.plan import check_names
from bireme.spec.job import Job
from bireme.spec.model import Updates, Wire


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
        raise SpecError(
            f"{program.name} has a sparse parameter, {tables[0]}, and pservers have no sparse lane",
            fix="set `lanes.ports_num_for_sparse` (by hand: --ports_num_for_sparse, on pservers too) to 1 or more",
        )


def check_stop(program: Program, stop_after: int) -> None:
    if stop_after and program.source("test") is None:
        fix = "give define_py_data_sources2 a test_list, or leave `stop_when` out"
        raise SpecError(f"`stop_when` is about the test cost, and {program.name} defines no test data", fix=fix)


def check_program(job: Job) -> Program:
    """Load the program and refuse what cannot be trained; reads no sample."""
    with borrowed_workdir(job) as workdir:
        program = load_program(ProgramSpec(job.config, workdir, job.config_args))
        if not program.parameters:
            raise SpecError(f"{program.name} defines nothing to train: no layer has a parameter")
        check_names(program.parameters)
        updates_of(program, job.updates, job.wire)
        check_lanes(program, job.ports_num_for_sparse)
        check_schedule(program.optimizer)
        check_rules(program.parameters)
        source = program.source("train")
        if source is None:
            raise DataError(f"{program.name} defines no training data", fix="give define_py_data_sources2 a train_list")
        source.facts(workdir)
        check_stop(program, job.stop_after)
    return program
