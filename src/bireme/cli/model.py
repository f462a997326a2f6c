"""`bireme model | predict | test`: look into, hash, compare, export and use saved models."""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import click

from bireme.cli.options import json_option
from bireme.cli.output import emit, note
from bireme.core.errors import DataError, ModelError, OutputExistsError, UsageError
from bireme.core.files import storage_errors
from bireme.view.plain import count, pass_line

_pass_dir = click.argument("directory", metavar="PASS_DIR", type=Path)
_job_option = click.option(
    "--job", "job_file", type=Path, help="The job, where the model lies apart from its output directory."
)


@click.group()
def model() -> None:
    """Look into, hash, compare and export saved models."""


@model.command(epilog="\b\nExample: bireme model show output/pass-00009")
@_pass_dir
@json_option
def show(directory: Path, as_json: bool) -> None:
    """List a model's parameters with their sizes and spread, and what its pass came to."""
    import msgspec
    import numpy as np

    from bireme.job.output.model import config_name, load_values

    values, tables = _split(load_values(directory))
    rows: list[dict[str, Any]] = [
        {
            "name": n,
            "values": v.size,
            "mean": float(v.mean()) if v.size else 0.0,
            "std": float(v.std()) if v.size else 0.0,
            "largest": float(np.abs(v).max(initial=0)),
            **({"rows": tables[n]} if n in tables else {}),
        }
        for n, v in values.items()
    ]
    path = directory / "metrics.json"
    metrics: Any = msgspec.json.decode(path.read_bytes()) if path.is_file() else {}
    value = {"model": str(directory), "config": config_name(directory), "parameters": rows, "metrics": metrics}
    emit(value, _describe(value), as_json=as_json)


def _describe(shown: Mapping[str, Any]) -> Iterator[str]:
    from bireme.job.output.kept import summary_of

    rows = shown["parameters"]
    yield f"{shown['model']}: {shown['config']}, {count(sum(row['values'] for row in rows), 'value')}"
    for row in rows:
        size = _rows_of(row["values"], row["rows"]) if "rows" in row else f"{row['values']:,}"
        spread = f"mean {row['mean']:+.3e}  std {row['std']:.3e}  largest {row['largest']:.3e}"
        yield f"  {row['name']:<32} {size:>10}  {spread}"
    if (summary := summary_of(Path(shown["model"]))) is not None:
        yield pass_line(summary)


def _split(values: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, int]]:
    """The parameters, without arrays of ids; and of each unbounded table the number of rows, by its ids."""
    from bireme.ps.plan import IDS

    ids = {n.removesuffix(IDS): v for n, v in values.items() if n.endswith(IDS) and v.dtype == "uint64"}
    tables = {n: v.size for n, v in ids.items() if n in values}
    return {n: v for n, v in values.items() if n in tables or n.removesuffix(IDS) not in tables}, tables


def _rows_of(values: int, rows: int) -> str:
    return f"{count(rows, 'row')} of {values // rows}" if rows else "no rows"


@model.command("hash", epilog="\b\nExample: bireme model hash output/pass-00009")
@_pass_dir
@json_option
def hash_(directory: Path, as_json: bool) -> None:
    """Print one sha256 over all values: equal models have equal hashes, wherever they were trained."""
    from bireme.job.output.model import model_hash

    digest = model_hash(directory)
    emit({"model": str(directory), "hash": digest}, digest, as_json=as_json)


@model.command(epilog="\b\nExample: bireme model diff output/pass-00008 output/pass-00009")
@click.argument("first", metavar="PASS_DIR", type=Path)
@click.argument("second", metavar="PASS_DIR", type=Path)
@json_option
def diff(first: Path, second: Path, as_json: bool) -> None:
    """Compare two models value by value; exits with 1 when they differ."""
    from bireme.job.output.model import load_values

    a, b = load_values(first), load_values(second)
    rows = [_difference(name, a.get(name), b.get(name)) for name in sorted({*a, *b}, key=str.encode)]
    is_equal = all(row["different"] == 0 for row in rows)
    lines = (f"{r['name']:<32} {r['words'] if r['different'] else 'equal, bit for bit'}" for r in rows)
    emit({"equal": is_equal, "parameters": rows}, lines, as_json=as_json)
    if not is_equal:
        raise SystemExit(1)


def _difference(name: str, a: Any, b: Any) -> dict[str, Any]:
    import numpy as np

    if a is None or b is None or (a.size, a.dtype) != (b.size, b.dtype):
        sizes = " and ".join("absent" if v is None else f"{v.size:,} values" for v in (a, b))
        return {"name": name, "different": -1, "words": f"cannot be compared: {sizes}"}
    bits = f"u{a.itemsize}"  # so that NaN equals itself, and -0.0 is not 0.0
    different = int((a.view(bits) != b.view(bits)).sum())
    largest = float(np.abs(a.astype(np.float64) - b).max()) if a.size else 0.0
    words = f"{different:,} of {a.size:,} values differ, by at most {largest:.3e}"
    return {"name": name, "different": different, "largest": largest, "words": words}


@model.command(epilog="\b\nExample: bireme model export output/pass-00009 model.npz")
@_pass_dir
@click.argument("target", metavar="FILE", type=Path)
@json_option
def export(directory: Path, target: Path, as_json: bool) -> None:
    """Write a model as one file: .safetensors or .npz, with the shapes that the program gave them."""
    from bireme.job.output.model import load_values

    values, tables = _split(load_values(directory))
    if target.exists():
        raise OutputExistsError(f"{target} exists", fix="choose another name")
    source = directory / "model.safetensors"
    if not source.is_file():
        raise ModelError(f"{directory} has no model.safetensors to take the shapes from")
    if target.suffix not in (".safetensors", ".npz"):
        raise UsageError(f"cannot export to {target.name}", fix="end the name in .safetensors or .npz")
    with storage_errors(str(target)):
        if target.suffix == ".safetensors":
            target.write_bytes(source.read_bytes())
        else:
            import numpy as np
            from safetensors.numpy import load_file

            np.savez(target, **load_file(source))  # type: ignore[arg-type]
    lines = [f"wrote {count(len(values), 'parameter')} to {target}"]
    lines += [f"  {n}: {_rows_of(values[n].size, rows)}, by the ids in {n}.ids" for n, rows in tables.items()]
    emit({"model": str(directory), "file": str(target), "parameters": list(values)}, lines, as_json=as_json)


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

    used = Model(directory, job_file)
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
        rows = [{name: row.tolist() for name, row in sample.items()} for sample in used.predict(path)]
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
