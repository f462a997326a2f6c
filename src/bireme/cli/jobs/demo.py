"""`bireme demo`: the quick-start job from nothing to a model."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import msgspec

from bireme.cli.options import json_option, shown
from bireme.cli.output import emit
from bireme.core.errors import UsageError
from bireme.spec.load import command_name, load_job

if TYPE_CHECKING:
    from bireme.api.foreground import Finished


@click.command(epilog="\b\nExample: bireme demo --prepare first-job && bireme train first-job/job.yaml")
@click.option(
    "--prepare",
    "prepare_dir",
    type=Path,
    metavar="DIR",
    help="Only write the demo's directory, to be changed and trained later.",
)
@shown("--dir", "directory", type=Path, default=Path("bireme-demo"), help="Where to run.")
@shown("--passes", type=click.IntRange(1), default=10, help="Passes over the data.")
@json_option
def demo(prepare_dir: Path | None, directory: Path, passes: int, as_json: bool) -> None:
    """Train a sentiment classifier with 3 pservers and 3 trainers on this machine.

    The reviews are synthetic: a seeded grammar writes them, and 5 % of the labels are wrong on
    purpose, so the best possible error is known.
    """
    target = prepare_dir or directory
    job_file = target / "job.yaml"
    begun = time.monotonic()
    if prepare_dir is not None or not job_file.is_file():
        _prepare(target, as_json=as_json)
    if prepare_dir is not None:
        ready = f"ready: change what you like, then `{command_name()} train {job_file}`"
        emit({"job": str(job_file), "shards": 3}, ready, as_json=as_json)
        return
    output = _free_output(target)
    job = load_job(job_file, {"output": output, "passes": passes})
    if not as_json:
        counts = f"{job.pservers} pservers and {job.trainers} trainers, {passes} passes"
        click.echo(f"training: {counts}, output in {output}")
    from bireme.api.foreground import run_to_end

    done = run_to_end(job, str(job_file), is_silent=as_json)
    summary = _summary(done, time.monotonic() - begun)
    emit(summary, _describe(summary, target), as_json=as_json)


def _prepare(target: Path, *, as_json: bool) -> None:
    from bireme.demo.prepare import prepare

    if as_json:
        prepare(target)
        return
    click.echo(
        "synthetic data: reviews from a seeded grammar, 5 % of the labels wrong on purpose (the best possible error)"
    )
    begun = time.monotonic()
    shows = sys.stderr.isatty()

    def progress(done: int, total: int) -> None:
        if shows:
            click.echo(f"\r  writing reviews {done:,} of {total:,}", nl=False, err=True)

    facts = prepare(target, on_progress=progress)
    if shows:
        click.echo("\r" + " " * 60 + "\r", nl=False, err=True)
    written = f"{facts.train:,} training and {facts.test:,} test reviews, {facts.words:,} words"
    click.echo(f"  {written}, in 3 shards under {target}/ ({time.monotonic() - begun:.1f} s)")


def _free_output(target: Path) -> Path:
    """The first of output, output-2, output-3 … that no run has used."""
    for name in ("output", *(f"output-{number}" for number in range(2, 1000))):
        if not (target / name).exists():
            return target / name
    raise UsageError(f"{target} holds a thousand runs", fix="remove some of its output directories")


def _summary(done: Finished, seconds: float) -> dict[str, Any]:
    passes = done.status.passes_done
    samples, busy = sum(p.samples for p in passes), sum(p.seconds for p in passes)
    return {
        "passes": msgspec.to_builtins(passes),
        "best_error": 0.05,
        "test_error": passes[-1].test_error,
        "samples_per_s": round(samples / busy, 1) if busy else 0.0,
        "seconds": round(seconds, 1),
        "model": str(done.model),
        "hash": done.hash,
    }


def _describe(summary: Mapping[str, Any], target: Path) -> Iterator[str]:
    from bireme.api.foreground import best_pass_lines
    from bireme.view.plain import percent

    me, model = command_name(), summary["model"]
    yield ""
    yield from best_pass_lines(Path(model).parent)
    speed = f"{summary['samples_per_s']:,.0f} samples/s, {summary['seconds']} s in all"
    yield f"test error {percent(summary['test_error'])} (best possible: 5.00 %), {speed}"
    yield f"model: {model}"
    yield f"hash:  {summary['hash']}"
    yield ""
    yield "try next:"
    yield f"  {me} predict {model}        # what it thinks of new reviews"
    yield f"  {me} train {target}/job.yaml --trainers 1 --pservers 2 --output {target}/again   # same hash"
    yield f"  {me} model show {model}"
