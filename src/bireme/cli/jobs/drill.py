"""`bireme drill`: disturb a job on purpose, and report what that cost and whether the result is the same."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import click

from bireme.cli.options import job_file_argument, json_option, shown
from bireme.cli.output import emit
from bireme.spec.load import load_job

_EXAMPLE = """\b
Examples:
  bireme drill job.yaml --kill pserver:1@round=300 --pause trainer:0@round=450,10s
  bireme drill job.yaml --kill trainer:1@round=100,point=push.after --kill pserver:0@recovery
  bireme drill job.yaml --cut trainer:0-pserver:1@round=200 --kill all@after=12s
  bireme drill job.yaml --random --mtbf 60s --seed 7

\b
WHO is trainer:N, pserver:N, node:N, coordinator or all; a cut is between a trainer and a pserver. WHEN is one of
  round=N      when that round is reached (with point=NAME: at that very point of the code); rounds of all passes
               count, and in bounded and async mode, where there are none, updates of all shards
  after=12s    seconds after training began
  recovery     while the fault before this one is being recovered from (trainers and pservers only)
  point=NAME   at a named point (trainers and pservers only); `bireme drill --points` lists them"""


def _print_points(context: click.Context, _: click.Parameter, is_wanted: bool) -> None:
    if not is_wanted:
        return
    from bireme.core.faults import POINTS

    for name, (who, what) in POINTS.items():
        click.echo(f"{name:<16} {who.replace('pserver:0', 'coordinator'):<12} {what}")
    context.exit()


@click.command(epilog=_EXAMPLE)
@job_file_argument
@click.option("--kill", multiple=True, metavar="WHO@WHEN", help="Kill a process (SIGKILL). May be given several times.")
@click.option("--pause", multiple=True, metavar="WHO@WHEN[,10s]", help="Stop a process for a while (SIGSTOP).")
@click.option("--cut", multiple=True, metavar="trainer:N-pserver:M@WHEN", help="Cut the connections between two.")
@click.option("--random", "is_random", is_flag=True, help="Faults of any process at any moment.")
@shown("--mtbf", default="60s", help="With --random: mean time between two faults.")
@shown("--seed", type=int, default=1, help="With --random: the same seed, the same faults.")
@click.option("--faults", "count", type=click.IntRange(1), default=1000, help="With --random: at most so many.")
@click.option("--passes", type=int, help="Passes over the data instead of those in the file.")
@click.option("--output", type=Path, help="Where both runs go.  [default: drill-N beside JOB.yaml]")
@click.option("--no-reference", is_flag=True, help="Do not run the job undisturbed first, to compare with.")
@click.option("--points", is_flag=True, is_eager=True, callback=_print_points, expose_value=False, help="List points.")
@json_option
def drill(
    job_file: Path, passes: int | None, output: Path | None, no_reference: bool, as_json: bool, **faults: Any
) -> None:
    """Run a job under faults, and report what each cost and whether the result has the same bits.

    The job is run twice, undisturbed and disturbed, into a directory of its own.
    """
    from bireme.api.drills import FaultOptions, free_directory, run_drill

    job = load_job(job_file, {"passes": passes})
    place = (output or free_directory(job_file.absolute().parent)).absolute()
    show = (lambda text: None) if as_json else _say
    report, error = run_drill(job, job_file, FaultOptions(**faults), place, show, has_reference=not no_reference)
    kind = {"error": type(error).__name__, **error.as_dict()} if error is not None else {}
    emit({**report, "output": str(place), **kind}, _describe(report), as_json=as_json, error=error)


def _say(text: str) -> None:
    """Show a line; a reader that goes away (`| head`) does not end the run."""
    with contextlib.suppress(BrokenPipeError):
        click.echo(text)


def _describe(report: Mapping[str, Any]) -> Iterator[str]:
    yield ""
    width = max([len(row["fault"]) for row in report["each"]] + [5])
    yield f"{'fault':<{width}}      at       next round   redone"
    for row in report["each"]:
        back = f"after {row['back_s']:.2f} s" if row["back_s"] is not None else "no process lost"
        yield f"{row['fault']:<{width}} {row['at_s']:>6.1f} s  {back:>15}   {row['redone']:>6}"
    for fault in report["never"]:
        yield f"{fault:<{width}}  never happened: the job was over before"
    if drawn := report["drawn"]:
        yield f"{report['drawn_happened']:,} of {drawn:,} faults that were drawn happened before the job's end"
    yield ""
    if report["back_s_median"] is not None:
        yield f"back at work after {report['back_s_median']:.2f} s (median), {report['back_s_worst']:.2f} s at worst"
    if report["goodput"] is not None:
        quiet_s, disturbed_s = report["undisturbed_seconds"], report["seconds"]
        yield f"goodput {report['goodput']:.1%}: {quiet_s:.1f} s undisturbed, {disturbed_s:.1f} s disturbed"
    if report["same"] is None:
        yield f"hash {report['hash']}"
    else:
        yield f"hash {report['hash'][:16]}…  {'the same bits as' if report['same'] else 'other bits than'} undisturbed"
