"""A saved model put to use: measured on test data, or asked about new samples."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from bireme.core.errors import DataError, SpecError
from bireme.job.node.entry import read_job
from bireme.job.output.model import check_copy, load_into, load_rows
from bireme.job.workdir import borrowed_workdir
from bireme.programs.loading import ProgramSpec, load_program
from bireme.programs.lookups import RowIds
from bireme.programs.program import Batch, Computation, Program
from bireme.ps.plan import Layout, aligned_zeros
from bireme.ps.wire.row_frames import Block
from bireme.spec.job import Job
from bireme.spec.model import Parameter
from bireme.train.worker import Running


def job_of(model: Path) -> Job:
    """The job that a model came from, written beside its pass directories."""
    path = model.resolve().parent / "job.json"
    if not path.is_file():
        what = f"there is no {path} that names the model's config and data"
        raise SpecError(what, fix="name the job with --job JOB.yaml")
    job = read_job(path)
    needed = (Path(job.config), Path(job.data) / "0" / "data")
    missing = [each for each in needed if not each.exists()]
    if job.hosts and missing:  # it ran on a cluster, where its program and its data are still
        raise SpecError(
            f"the model comes from a cluster, and there is no {missing[0]} on this machine",
            why=f"{path} says where the program and the data are in the job's pods",
            fix="give `--job JOB.yaml`, the job's file here, which says where they are on this machine",
        )
    return job


class SavedModel:
    """A program with a saved model's values. Of sparse parameters, each batch gets just the rows that it needs."""

    def __init__(self, program: Program, model: Path, seed: int) -> None:
        self._program = program
        self._seed = seed
        layout = Layout([p for p in program.parameters if not p.is_sparse])
        self._values = layout.views(aligned_zeros(layout.size))
        self._grads = layout.views(aligned_zeros(layout.size))
        check_copy(model)
        load_into(model, layout.parameters, self._values)
        self._tables = [(p, load_rows(model, p)) for p in program.parameters if p.is_sparse]

    def bind(self, batch: Batch) -> tuple[Computation[Batch], Batch]:
        """A computation over the model's values, and the batch in the form that it takes."""
        part = batch.compact(self._program.lookups)
        values, grads = dict(self._values), dict(self._grads)
        for parameter, saved in self._tables:
            lookups = zip(self._program.lookups, part.ids, strict=True)
            ids = next(ids for lookup, ids in lookups if parameter.name in lookup.parameters)
            rows = self._rows(parameter, saved, ids)
            values[parameter.name], grads[parameter.name] = rows, np.zeros_like(rows)
        return self._program.bind(values, grads), part.batch

    def _rows(self, parameter: Parameter, saved: Block, ids: RowIds) -> NDArray[np.float32]:
        """Saved rows; one that was never trained has its first values, as it had while training."""
        from bireme.ps.sparse.table import first_values

        if not len(ids):
            return np.zeros((1, parameter.shape[1]), np.float32)
        place = np.minimum(np.searchsorted(saved.ids, ids), max(len(saved.ids) - 1, 0))
        is_there = saved.ids[place] == ids if len(saved.ids) else np.zeros(len(ids), np.bool_)
        rows = first_values(parameter, self._seed, ids)
        rows[is_there] = saved.rows[place[is_there]]
        return rows


@contextmanager
def program_with(
    job: Job, model: Path, args: Mapping[str, str], *, instead: Path | None = None
) -> Iterator[tuple[Program, SavedModel, Path]]:
    """Load a job's program with a model's values; `instead` replaces what data/pred.list names."""
    with borrowed_workdir(job) as workdir:
        if instead is not None:
            listed = workdir / "data" / "pred.list"
            listed.unlink(missing_ok=True)
            listed.write_text(f"{instead.resolve()}\n", encoding="utf-8")
        program = load_program(ProgramSpec.of_job(job, workdir, args))
        yield program, SavedModel(program, model, job.seed), workdir


def measure(job: Job, model: Path) -> Running:
    """Sums over the test data of shard 0."""
    with program_with(job, model, {}) as (program, saved, workdir):
        source = program.source("test")
        if source is None:
            raise DataError(f"{program.name} defines no test data", fix="give define_py_data_sources2 a test_list")
        reader = source.reader(workdir, 0, seed=job.seed, batch_size=program.batch_size, cache=None)
        totals = Running()
        for index in range(reader.batches(0)):
            computation, batch = saved.bind(reader.batch(0, index))
            totals.add(computation.evaluate(batch))
        return totals


def predictions(job: Job, model: Path, samples: Path | None) -> Iterator[dict[str, NDArray[np.float32]]]:
    """One set of outputs per sample, in order. The config is loaded with is_predict=1."""
    with program_with(job, model, {"is_predict": "1"}, instead=samples) as (program, saved, workdir):
        source = program.source("predict")
        if source is None:
            fix = "let the config define one when get_config_arg('is_predict', bool) is true"
            raise DataError(f"{program.name} has no data source for prediction", fix=fix)
        try:
            read = source.facts(workdir).files
        except DataError as e:
            if samples is not None:
                raise
            why = "without FILE, `bireme predict` reads the list that the config names"
            raise DataError(e.what, why=why, fix="give a file with one sample a line, or `-` for standard input") from e
        if samples is not None and read != (str(samples.resolve()),):
            raise DataError(
                f"{program.name} predicts on {', '.join(read) or 'nothing'} and does not read data/pred.list",
                why="a file can be given only to configs that name data/pred.list as their test_list",
                fix="leave FILE out, or let the config read data/pred.list when is_predict is true",
            )
        reader = source.reader(workdir, 0, seed=job.seed, batch_size=128, cache=None)
        for index in range(reader.batches(0)):
            computation, batch = saved.bind(reader.batch(0, index))
            predicted = computation.predict(batch)
            for row in range(len(next(iter(predicted.values())))):
                yield {name: array[row] for name, array in predicted.items()}
