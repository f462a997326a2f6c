"""A saved model put to use: measured on test data, or asked about new samples."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from bireme.core.errors import DataError, SpecError
from bireme.job.entry import read_job
from bireme.job.model import load_into
from bireme.job.workdir import borrowed_workdir
from bireme.programs.config import load_config
from bireme.programs.program import Computation, Program
from bireme.ps.plan import Layout, aligned_zeros
from bireme.spec.job import Job
from bireme.train.loop import Running
from bireme.train.reader import ShardReader


def job_of(model: Path) -> Job:
    """The job that a model came from, written beside its pass directories."""
    path = model.resolve().parent / "job.json"
    if not path.is_file():
        raise SpecError(
            f"there is no {path} that tells where the model's config and data are",
            fix="name the job with --job JOB.yaml",
        )
    return read_job(path)


@contextmanager
def program_with(
    job: Job, model: Path, args: Mapping[str, str], *, instead: Path | None = None
) -> Iterator[tuple[Program, Computation, Path]]:
    """Load a job's program with a model's values; `instead` replaces what data/pred.list names."""
    with borrowed_workdir(job) as workdir:
        if instead is not None:
            listed = workdir / "data" / "pred.list"
            listed.unlink(missing_ok=True)
            listed.write_text(f"{instead.resolve()}\n", encoding="utf-8")
        program = load_config(Path(job.config), workdir, {**job.config_args, **args})
        layout = Layout(program.parameters)
        values = aligned_zeros(layout.size)
        load_into(model, program.parameters, layout.views(values))
        yield program, program.bind(layout.views(values), layout.views(aligned_zeros(layout.size))), workdir


def measure(job: Job, model: Path) -> Running:
    """Sums over the test data of shard 0."""
    with program_with(job, model, {}) as (program, bound, workdir):
        source = program.source("test")
        if source is None:
            raise DataError(f"{program.name} defines no test data", fix="give define_py_data_sources2 a test_list")
        reader = ShardReader(source, workdir, 0, seed=job.seed, batch_size=program.batch_size, cache=None)
        totals = Running()
        for index in range(reader.batches(0)):
            totals.add(bound.evaluate(reader.batch(0, index)))
        return totals


def predictions(job: Job, model: Path, samples: Path | None) -> Iterator[dict[str, NDArray[np.float32]]]:
    """One set of outputs per sample, in order. The config is loaded with is_predict=1."""
    with program_with(job, model, {"is_predict": "1"}, instead=samples) as (program, bound, workdir):
        source = program.source("predict")
        if source is None:
            raise DataError(
                f"{program.name} has no data source for prediction",
                fix="let the config define one when get_config_arg('is_predict', bool) is true",
            )
        read = source.facts(workdir).files
        if samples is not None and read != (str(samples.resolve()),):
            raise DataError(
                f"{program.name} predicts on {', '.join(read) or 'nothing'} and does not read data/pred.list",
                why="a file can be given only to configs that name data/pred.list as their test_list",
                fix="leave FILE out, or let the config read data/pred.list when is_predict is true",
            )
        reader = ShardReader(source, workdir, 0, seed=job.seed, batch_size=128, cache=None)
        for index in range(reader.batches(0)):
            found = bound.predict(reader.batch(0, index))
            for row in range(len(next(iter(found.values())))):
                yield {name: array[row] for name, array in found.items()}
