"""What can be known to fail before a process is started: the program is loaded once and its rules are tried.

A mistake in a config is told in a second, with nothing written and nothing to clean up.
"""

from __future__ import annotations

from pathlib import Path

from bireme.core.errors import DataError, SpecError
from bireme.job.workdir import borrowed_workdir
from bireme.programs.config import load_config
from bireme.programs.program import Program
from bireme.ps.optimizers import check_rules
from bireme.ps.plan import Layout
from bireme.ps.schedules import check_schedule
from bireme.spec.job import Job


def check_program(job: Job) -> Program:
    """Load the program and refuse what cannot be trained; reads no sample."""
    with borrowed_workdir(job) as workdir:
        program = load_config(Path(job.config), workdir, job.config_args)
        if not program.parameters:
            raise SpecError(f"{program.name} defines nothing to train: no layer has a parameter")
        Layout(program.parameters)
        check_schedule(program.optimizer)
        check_rules(program.parameters)
        source = program.source("train")
        if source is None:
            raise DataError(f"{program.name} defines no training data", fix="give define_py_data_sources2 a train_list")
        source.facts(workdir)
    return program
