"""`bireme predict` and `bireme test`: a saved model put to use."""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path
from typing import Any

import click

from bireme.cli.options import json_option
from bireme.cli.output import emit, note

_pass_dir = click.argument("directory", metavar="PASS_DIR", type=Path)
_job_option = click.option(
    "--job", "job_file", type=Path, help="The job, where the model lies apart from its output directory."
)


@click.command(epilog="\b\nExample: echo 'a truly wonderful camera' | bireme predict output/pass-00009 -")
@_pass_dir
@click.argument("samples", metavar="[FILE]", required=False)
@_job_option
@json_option
def predict(directory: Path, samples: str | None, job_file: Path | None, as_json: bool) -> None:
    """Use the model in PASS_DIR on new samples, one line each.

    FILE holds samples as the config's predict provider reads them; `-` reads standard input; left
    out, the config's own data/pred.list is used. Prints one line per sample: the class, a
    semicolon, and the probabilities.
    """
    from bireme.api.models import Model
    from bireme.core.errors import DataError

    model = Model(directory, job_file)
    with tempfile.NamedTemporaryFile(suffix=".txt") as typed:
        path = Path(samples) if samples else None
        if samples is None:
            note("predicting on the config's own list; give a file, or `-` for standard input")
        if samples == "-":
            if sys.stdin.isatty():
                note("type one sample a line; Ctrl-D ends the input")
            typed.write(sys.stdin.buffer.read())
            typed.flush()
            path = Path(typed.name)
        if path is not None and not path.is_file():
            raise DataError(f"there is no file {path}")
        rows = [{name: row.tolist() for name, row in sample.items()} for sample in model.predict(path)]
    lines = (";".join(_cell(value) for value in row.values()) for row in rows)
    emit({"model": str(directory), "predictions": rows}, lines, as_json=as_json)


def _cell(value: Any) -> str:
    if isinstance(value, list):
        return " ".join(_cell(v) for v in value)
    return f"{value:g}" if isinstance(value, float) else str(value)


@click.command(epilog="\b\nExample: bireme test output/pass-00009")
@_pass_dir
@_job_option
@json_option
def test(directory: Path, job_file: Path | None, as_json: bool) -> None:
    """Measure the model in PASS_DIR on the job's test data."""
    from bireme.api.models import Model

    result = Model(directory, job_file).test()
    evals = "  ".join(f"{name}={value:g}" for name, value in result.evals.items())
    value = {"model": str(directory), "samples": result.samples, "cost": result.cost, "evals": result.evals}
    emit(value, f"Test samples={result.samples} cost={result.cost:g} Eval: {evals}", as_json=as_json)
