"""A saved model, from Python."""

from __future__ import annotations

import tempfile
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from bireme.core.errors import ModelError

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from bireme.spec.job import Job


class Measured(msgspec.Struct, frozen=True, kw_only=True):
    """A model on test data."""

    samples: int
    cost: float
    evals: dict[str, float]


class Model:
    """The model of one pass: a directory `pass-00009`."""

    def __init__(self, path: str | Path, job: str | Path | None = None) -> None:
        from bireme.job.output.model import parameter_names

        self.path = Path(path)
        self._job_file = None if job is None else Path(job)
        self.names = tuple(parameter_names(self.path))  # a wrong directory is refused at once

    def __repr__(self) -> str:
        return f"<bireme model {self.path}: {', '.join(self.names)}>"

    @property
    def hash(self) -> str:
        """One sha256 over all values: equal hash, equal bits."""
        from bireme.job.output.model import model_hash

        return model_hash(self.path)

    def parameters(self) -> Mapping[str, NDArray[np.float32] | NDArray[np.uint64]]:
        """Every parameter's values, flat, by name; of an unbounded table its ids too."""
        from bireme.job.output.model import load_values

        return load_values(self.path)

    def predict(self, samples: Iterable[str] | Path | None = None) -> list[dict[str, NDArray[np.float32]]]:
        """The outputs for samples: lines as the config's predict provider reads them, a file of them, or its own."""
        from bireme.job.inference import predictions

        if samples is None or isinstance(samples, Path):
            return list(predictions(self._job(), self.path, samples))
        if isinstance(samples, str):
            raise ModelError("samples is one string", fix="give a list of lines, or a Path")
        with tempfile.NamedTemporaryFile("w", suffix=".txt", encoding="utf-8") as file:
            file.writelines(f"{line}\n" for line in samples)
            file.flush()
            return list(predictions(self._job(), self.path, Path(file.name)))

    def test(self) -> Measured:
        from bireme.job.inference import measure

        totals = measure(self._job(), self.path)
        n = max(totals.samples, 1)
        evals = {name: value / n for name, value in totals.evals.items()}
        return Measured(samples=totals.samples, cost=totals.cost / n, evals=evals)

    def _job(self) -> Job:
        from bireme.job.inference import job_of
        from bireme.spec.load import load_job

        return load_job(self._job_file, {}) if self._job_file else job_of(self.path)


def model(path: str | Path, job: str | Path | None = None) -> Model:
    """The model in a directory such as `output/pass-00009`; `job` is its job.yaml where they lie apart."""
    return Model(path, job)
