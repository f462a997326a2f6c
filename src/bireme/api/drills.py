"""A drill: run a job undisturbed, then under faults, and compare cost and result."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from bireme.api.foreground import follow
from bireme.core.errors import BiremeError, DeterminismError, OutputExistsError, UsageError
from bireme.job.output.journal import METRICS
from bireme.job.preflight import check_program, updates_of
from bireme.local.drill import Drill, cost_of, summary
from bireme.local.faults import Fault, at_random, check_recoveries, parse, parse_seconds, plan_of
from bireme.local.runner import LocalRun
from bireme.spec.job import Job
from bireme.spec.model import Restarts
from bireme.view.readers import View

SHOW_EVERY_S = 5.0
Show = Callable[[str], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class FaultOptions:
    """The faults of a drill, as texts such as `pserver:1@round=300`."""

    kill: Sequence[str] = ()
    pause: Sequence[str] = ()
    cut: Sequence[str] = ()
    is_random: bool = False
    """Whether faults are drawn too: by `seed`, `mtbf` apart on average, at most `count`."""
    mtbf: str = "60s"
    seed: int = 1
    count: int = 1000

    def faults(self, job: Job) -> list[Fault]:
        faults = [parse("kill", text, job) for text in self.kill]
        faults += [parse("pause", text, job) for text in self.pause]
        faults += [parse("cut", text, job) for text in self.cut]
        check_recoveries(faults)
        if self.is_random:
            mtbf_s = parse_seconds(self.mtbf)
            if not mtbf_s:
                raise UsageError("--mtbf 0: faults must be some time apart", fix="write for example --mtbf 10s")
            faults += at_random(job, self.seed, mtbf_s, self.count)
        if not faults:
            raise UsageError("no fault was asked for", fix="give --kill, --pause, --cut or --random; see --help")
        return faults


@dataclass(frozen=True, slots=True)
class DrillRun:
    """One of the two runs of a drill."""

    hash: str
    seconds: float
    metrics: list[dict[str, Any]]
    """The lines of metrics.jsonl."""
    drill: Drill


def run_drill(
    job: Job, job_file: Path, wanted: FaultOptions, output: Path, show: Show, *, has_reference: bool = True
) -> tuple[dict[str, Any], BiremeError | None]:
    """Run a job twice, undisturbed and disturbed; the report, and what to fail with if the drill failed."""
    job = msgspec.structs.replace(job, restarts=Restarts(limit=1_000_000))
    faults = wanted.faults(job)
    if output.is_dir() and any(output.iterdir()):
        raise OutputExistsError(
            f"{output} is not empty",
            why="a drill leaves two runs of its own in its directory",
            fix="give another directory with --output, or leave it out for a new one beside the job",
        )
    reference = _run(_into(job, output / "undisturbed"), job_file, show, []) if has_reference else None
    disturbed = _run(_into(job, output / "disturbed"), job_file, show, faults)
    report = report_of(reference, disturbed)
    return report, _error(report, job, output)


def free_directory(parent: Path) -> Path:
    return next(place for n in range(1, 10_000) if not (place := parent / f"drill-{n}").exists())


def _error(report: dict[str, Any], job: Job, output: Path) -> BiremeError | None:
    """Other bits in a mode that promises the same, or faults that were requested and did not happen."""
    if report["same"] is False and not updates_of(check_program(job), job.updates, job.wire).is_streamed:
        disturbed, undisturbed = report["hash"][:12], report["undisturbed"][:12]
        return DeterminismError(
            f"the disturbed run ended with {disturbed}, the undisturbed one with {undisturbed}",
            why="a fault changed the result, which must not happen in this mode",
            fix=f"please report it with {output}",
        )
    missed, happened = len(report["never"]), len(report["each"])
    if missed or not happened:
        return UsageError(
            f"{missed} of {missed + happened} faults never happened" if missed else "no fault happened",
            why="the job was over before",
            fix="name earlier moments, or give the job more to do with --passes",
        )
    return None


def _into(job: Job, output: Path) -> Job:
    snapshots = msgspec.structs.replace(job.snapshots, path=str(output / "snapshots"))
    return msgspec.structs.replace(job, output=str(output), snapshots=snapshots)


def _run(job: Job, job_file: Path, show: Show, faults: list[Fault]) -> DrillRun:
    output = Path(job.output)
    drill = Drill(faults, output)
    watch = _Watch(drill, show, "disturbed" if faults else "undisturbed")
    job = msgspec.structs.replace(job, faults=plan_of(faults) or job.faults)
    done = follow(job, str(job_file), View(), each=watch.look)
    show(f"  finished after {done.status.seconds:.1f} s")
    lines = (output / METRICS).read_bytes().splitlines()
    metrics = [msgspec.json.decode(line, type=dict[str, Any]) for line in lines]
    return DrillRun(done.hash, done.status.seconds, metrics, drill)


class _Watch:
    """Strikes, and shows what happens in a run, line by line."""

    def __init__(self, drill: Drill, show: Show, name: str) -> None:
        self._drill = drill
        self._show = show
        self._shown = 0
        self._next_s = time.monotonic() + SHOW_EVERY_S
        show(f"{name} run …")

    def look(self, run: LocalRun) -> None:
        status = run.status
        self._drill.look(status, run.fired)
        for struck in self._drill.struck[self._shown :]:
            self._show(f"  round {status.round:>6}  {struck.fault}")
        self._shown = len(self._drill.struck)
        if time.monotonic() >= self._next_s:
            self._next_s = time.monotonic() + SHOW_EVERY_S
            more = f"; waits for {', '.join(status.waits_for)}" if status.waits_for else ""
            self._show(f"  round {status.round:>6}  pass {status.pass_id}{more}")


def report_of(reference: DrillRun | None, disturbed: DrillRun) -> dict[str, Any]:
    """What the faults cost, and whether the result is the same."""
    drill = disturbed.drill
    costs = cost_of(drill.struck, disturbed.metrics)
    return {
        **summary(costs, reference.seconds if reference else None, disturbed.seconds),
        "each": costs,
        "never": [str(fault) for fault in drill.never],
        "drawn": sum(fault.is_drawn for fault in drill.faults),
        "drawn_happened": sum(struck.fault.is_drawn for struck in drill.struck),
        "hash": disturbed.hash,
        "undisturbed": reference.hash if reference else None,
        "seconds": disturbed.seconds,
        "undisturbed_seconds": reference.seconds if reference else None,
        "same": reference.hash == disturbed.hash if reference else None,
    }
