"""`bireme drill`: disturb a job on purpose, and tell what that cost and whether the result is the same."""

from __future__ import annotations

import contextlib
import json
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import msgspec

from bireme.core.errors import BiremeError, DeterminismError, OutputExistsError, UsageError
from bireme.spec.load import load_job

if TYPE_CHECKING:
    from bireme.job.status import JobStatus
    from bireme.local.drilling import Drill, Fault
    from bireme.local.runner import LocalRun
    from bireme.spec.job import Job

TELL_EVERY_S = 5.0
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
@click.argument("job_file", metavar="JOB.yaml", type=Path)
@click.option("--kill", multiple=True, metavar="WHO@WHEN", help="Kill a process (SIGKILL). May be given several times.")
@click.option("--pause", multiple=True, metavar="WHO@WHEN[,10s]", help="Stop a process for a while (SIGSTOP).")
@click.option("--cut", multiple=True, metavar="trainer:N-pserver:M@WHEN", help="Cut the connections between two.")
@click.option("--random", "is_random", is_flag=True, help="Faults of any process at any moment.")
@click.option("--mtbf", default="60s", show_default=True, help="With --random: mean time between two faults.")
@click.option("--seed", type=int, default=1, show_default=True, help="With --random: the same seed, the same faults.")
@click.option("--faults", "count", type=click.IntRange(1), default=1000, help="With --random: at most so many.")
@click.option("--passes", type=int, help="Passes over the data instead of what the file says.")
@click.option("--output", type=Path, help="Where both runs go.  [default: drill-N beside JOB.yaml]")
@click.option("--no-reference", is_flag=True, help="Do not run the job undisturbed first, to compare with.")
@click.option("--points", is_flag=True, is_eager=True, callback=_print_points, expose_value=False, help="List points.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object at the end.")
def drill(job_file: Path, no_reference: bool, as_json: bool, **options: Any) -> None:
    """Run a job under faults, and report what each cost and whether the result has the same bits.

    The job is run twice, undisturbed and disturbed, into a directory of its own.
    """
    from bireme.spec.model import Restarts

    job = load_job(job_file, {"passes": options.pop("passes")})
    place = (options.pop("output") or _free_place(job_file.absolute().parent)).absolute()
    job = msgspec.structs.replace(job, restarts=Restarts(limit=1_000_000))
    faults = _faults(job, options)
    if place.is_dir() and any(place.iterdir()):
        raise OutputExistsError(
            f"{place} is not empty",
            why="a drill leaves two runs of its own in its directory",
            fix="give another directory with --output, or leave it out for a new one beside the job",
        )
    tell = (lambda text: None) if as_json else _say
    reference = None if no_reference else _run(_into(job, place / "undisturbed"), job_file, tell)
    found = _run(_into(job, place / "disturbed"), job_file, tell, faults)
    told = _report(reference, found)
    error = _error(told, job, place)
    if not as_json:
        _show(told)
    elif error is None:
        click.echo(json.dumps(told | {"output": str(place)}))
    else:
        click.echo(json.dumps(told | {"output": str(place), "error": type(error).__name__, **error.as_dict()}))
        raise SystemExit(error.exit_code)
    if error is not None:
        raise error


def _say(text: str) -> None:
    """Tell how far it is; whoever does not read on (`| head`) does not end the run."""
    with contextlib.suppress(BrokenPipeError):
        click.echo(text)


def _error(told: dict[str, Any], job: Job, place: Path) -> BiremeError | None:
    """What to exit with: other bits, or faults that were asked for and not tried."""
    if told["same"] is False and is_same_expected(job):
        return DeterminismError(
            f"the disturbed run ended with {told['hash'][:12]}, the undisturbed one with {told['undisturbed'][:12]}",
            why="a fault changed the result, which must not happen in this mode",
            fix=f"please report it with {place}",
        )
    missed, happened = len(told["never"]), len(told["each"])
    if missed or not happened:
        return UsageError(
            f"{missed} of {missed + happened} faults never happened" if missed else "no fault happened",
            why="the job was over before",
            fix="name earlier moments, or give the job more to do with --passes",
        )
    return None


def is_same_expected(job: Job) -> bool:
    """Whether the job's result must be the same in every run."""
    from bireme.job.preflight import check_program, updates_of

    return not updates_of(check_program(job), job.updates, job.wire).is_streamed


def _free_place(parent: Path) -> Path:
    return next(place for n in range(1, 10_000) if not (place := parent / f"drill-{n}").exists())


def _into(job: Job, output: Path) -> Job:
    return msgspec.structs.replace(
        job, output=str(output), snapshots=msgspec.structs.replace(job.snapshots, path=str(output / "snapshots"))
    )


def _faults(job: Job, options: dict[str, Any]) -> list[Fault]:
    from bireme.local.drilling import at_random, check_recoveries, parse, parse_seconds

    found = [parse("kill", text, job) for text in options["kill"]]
    found += [parse("pause", text, job) for text in options["pause"]]
    found += [parse("cut", text, job) for text in options["cut"]]
    check_recoveries(found)
    if options["is_random"]:
        mtbf_s = parse_seconds(options["mtbf"])
        if not mtbf_s:
            raise UsageError("--mtbf 0: faults must be some time apart", fix="write for example --mtbf 10s")
        found += at_random(job, options["seed"], mtbf_s, options["count"])
    if not found:
        raise UsageError("no fault was asked for", fix="give --kill, --pause, --cut or --random; see --help")
    return found


def _run(job: Job, job_file: Path, tell: Any, faults: list[Fault] | None = None) -> dict[str, Any]:
    """Run to the end, disturbing if there is something to disturb with; returns what there is to know about it."""
    from bireme.cli.jobs.running import follow, last_pass
    from bireme.job.output.journal import METRICS
    from bireme.job.output.model import model_hash, pass_name
    from bireme.local.drilling import Drill, plan_of
    from bireme.view.plain import SilentView

    output = Path(job.output)
    controller = Drill(faults or [], output)
    teller = _Teller(controller, tell, "disturbed" if faults else "undisturbed")
    status = follow(
        msgspec.structs.replace(job, faults=plan_of(faults or []) or job.faults),
        str(job_file),
        SilentView(),
        each=teller.look,
    )
    teller.finished(status)
    lines = (output / METRICS).read_bytes().splitlines()
    return {
        "hash": model_hash(output / pass_name(last_pass(job, status))),
        "seconds": status.seconds,
        "metrics": [msgspec.json.decode(line, type=dict[str, Any]) for line in lines],
        "drill": controller,
    }


class _Teller:
    """Says what happens in a run, line by line."""

    def __init__(self, controller: Drill, tell: Any, name: str) -> None:
        self._controller = controller
        self._tell = tell
        self._name = name
        self._told = 0
        self._next_s = time.monotonic() + TELL_EVERY_S
        tell(f"{name} run …")

    def look(self, run: LocalRun) -> None:
        """Strike what is due, and tell."""
        status = run.status
        self._controller.look(status, run.fired)
        for struck in self._controller.struck[self._told :]:
            self._tell(f"  round {status.round:>6}  {struck.fault}")
        self._told = len(self._controller.struck)
        if time.monotonic() >= self._next_s:
            self._next_s = time.monotonic() + TELL_EVERY_S
            waits = ", ".join(status.waits_for)
            more = f"; waits for {waits}" if waits else ""
            self._tell(f"  round {status.round:>6}  pass {status.pass_id}{more}")

    def finished(self, status: JobStatus) -> None:
        """Tell the end."""
        self._tell(f"  finished after {status.seconds:.1f} s")


def _report(reference: dict[str, Any] | None, found: dict[str, Any]) -> dict[str, Any]:
    from bireme.local.cost import cost_of, summary

    controller: Drill = found["drill"]
    told = cost_of(controller.struck, found["metrics"])
    drawn = [struck for struck in controller.struck if struck.fault.is_drawn]
    return {
        **summary(told, reference["seconds"] if reference else None, found["seconds"]),
        "each": told,
        "never": [str(fault) for fault in controller.never],
        "drawn": sum(fault.is_drawn for fault in controller.faults),
        "drawn_happened": len(drawn),
        "hash": found["hash"],
        "undisturbed": reference["hash"] if reference else None,
        "seconds": found["seconds"],
        "undisturbed_seconds": reference["seconds"] if reference else None,
        "same": reference["hash"] == found["hash"] if reference else None,
    }


def _show(told: dict[str, Any]) -> None:
    click.echo()
    width = max([len(row["fault"]) for row in told["each"]] + [5])
    click.echo(f"{'fault':<{width}}      at       next round   redone")
    for row in told["each"]:
        back = f"after {row['back_s']:.2f} s" if row["back_s"] is not None else "nobody was lost"
        click.echo(f"{row['fault']:<{width}} {row['at_s']:>6.1f} s  {back:>15}   {row['redone']:>6}")
    for fault in told["never"]:
        click.echo(f"{fault:<{width}}  never happened: the job was over before")
    if told["drawn"]:
        click.echo(
            f"{told['drawn_happened']:,} of {told['drawn']:,} faults that were drawn happened before the job's end"
        )
    click.echo()
    if told["back_s_median"] is not None:
        click.echo(f"back at work after {told['back_s_median']:.2f} s (median), {told['back_s_worst']:.2f} s at worst")
    if told["goodput"] is not None:
        seconds = (told["undisturbed_seconds"], told["seconds"])
        click.echo("goodput {:.1%}: {:.1f} s undisturbed, {:.1f} s disturbed".format(told["goodput"], *seconds))
    if told["same"] is not None:
        mark = "the same bits as" if told["same"] else "other bits than"
        click.echo(f"hash {told['hash'][:16]}…  {mark} undisturbed")
    else:
        click.echo(f"hash {told['hash']}")
