"""`bireme predict` and `bireme test`: a saved model put to use."""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from bireme.spec.job import Job


def _job(model: Path, job_file: Path | None) -> Job:
    from bireme.job.inference import job_of
    from bireme.job.output.model import parameter_names
    from bireme.spec.load import load_job

    parameter_names(model)  # a clear word about a wrong directory, before anything else
    return load_job(job_file, {}) if job_file else job_of(model)


@click.command(epilog="\b\nExample: echo 'a truly wonderful camera' | bireme predict output/pass-00009 -")
@click.argument("model", metavar="PASS_DIR", type=Path)
@click.argument("samples", metavar="[FILE]", required=False)
@click.option("--job", "job_file", type=Path, help="The job, where the model lies apart from its output directory.")
@click.option("--json", "as_json", is_flag=True, help="Print a JSON object.")
def predict(model: Path, samples: str | None, job_file: Path | None, as_json: bool) -> None:
    """Use the model in PASS_DIR on new samples, one line each.

    FILE holds samples as the config's predict provider reads them; `-` reads standard input; left
    out, the config's own data/pred.list is used. Prints one line per sample: the class, a
    semicolon, and the probabilities.
    """
    from bireme.core.errors import DataError
    from bireme.job.inference import predictions

    job = _job(model, job_file)
    with tempfile.NamedTemporaryFile(suffix=".txt") as typed:
        path = Path(samples) if samples else None
        if samples is None:
            click.echo("predicting on the config's own list; give a file, or `-` for standard input", err=True)
        if samples == "-":
            if sys.stdin.isatty():
                click.echo("type one sample a line; Ctrl-D ends the input", err=True)
            typed.write(sys.stdin.buffer.read())
            typed.flush()
            path = Path(typed.name)
        if path is not None and not path.is_file():
            raise DataError(f"there is no file {path}")
        found = [{name: row.tolist() for name, row in sample.items()} for sample in predictions(job, model, path)]
    if as_json:
        click.echo(json.dumps({"model": str(model), "predictions": found}))
        return
    for sample in found:
        click.echo(";".join(_cell(value) for value in sample.values()))


def _cell(value: Any) -> str:
    if isinstance(value, list):
        return " ".join(_cell(v) for v in value)
    return f"{value:g}" if isinstance(value, float) else str(value)


@click.command(epilog="\b\nExample: bireme test output/pass-00009")
@click.argument("model", metavar="PASS_DIR", type=Path)
@click.option("--job", "job_file", type=Path, help="The job, where the model lies apart from its output directory.")
@click.option("--json", "as_json", is_flag=True, help="Print a JSON object.")
def test(model: Path, job_file: Path | None, as_json: bool) -> None:
    """Measure the model in PASS_DIR on the job's test data."""
    from bireme.job.inference import measure

    totals = measure(_job(model, job_file), model)
    n = max(totals.samples, 1)
    told = {
        "model": str(model),
        "samples": totals.samples,
        "cost": totals.cost / n,
        "evals": {name: value / n for name, value in totals.evals.items()},
    }
    if as_json:
        click.echo(json.dumps(told))
        return
    evals = "  ".join(f"{name}={value / n:g}" for name, value in totals.evals.items())
    click.echo(f"Test samples={totals.samples} cost={totals.cost / n:g} Eval: {evals}")
