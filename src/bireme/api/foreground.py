"""Run a job in the foreground: show its progress, stop it on a signal, and name its model at the end."""

from __future__ import annotations

import signal
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import msgspec

import bireme
from bireme.api.backends import Backend, RunStatus
from bireme.api.progress import has_snapshot, way_on
from bireme.core.errors import BiremeError, Cancelled, FrameError, NetworkError, ProcessError, StorageError
from bireme.job.output.inputs import origin_of, write_origin
from bireme.job.output.journal import passes_in
from bireme.job.output.model import model_hash, pass_name
from bireme.job.preflight import check_alike, check_program, empty_shards
from bireme.job.status import JobStatus
from bireme.local.runner import LocalRun
from bireme.programs.program import Program
from bireme.spec.job import Job
from bireme.spec.load import kernel_caches
from bireme.view.plain import best_pass
from bireme.view.readers import View, choose_view, leave_closed_terminals

POLL_S = 0.1
_TEMPORARY = (ProcessError, NetworkError, FrameError, StorageError)
"""Errors that may not come again when the job is resumed; a wrong config or bad data do."""


class Interrupts:
    """Counts Ctrl-C (and SIGTERM) while a job runs: once stops cleanly, twice stops at once.

    A signal that was ignored before stays so, as with `nohup`. A terminal that is closed (SIGHUP) counts too, unless
    the job is to outlive it.
    """

    def __init__(self, *, outlives_terminal: bool = False) -> None:
        self.count = 0
        self._outlives_terminal = outlives_terminal
        self._before: dict[int, Any] = {}

    def __enter__(self) -> Interrupts:
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            if signal.getsignal(number) is not signal.SIG_IGN:
                self._before[number] = signal.signal(number, self._count)
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    # Only counts: it runs between any two instructions of the main thread, also while that draws or holds a lock.
    def _count(self, number: int, _: object) -> None:
        if number != signal.SIGHUP or not self._outlives_terminal:
            self.count += 1


@dataclass(frozen=True)
class Finished:
    """A job that has run to its end."""

    job: Job
    status: JobStatus

    @property
    def last_pass(self) -> int:
        return self.status.saved if self._is_early else self.job.passes - 1

    @property
    def _is_early(self) -> bool:
        return bool(self.job.stop_after) and self.status.saved < self.job.passes - 1

    @property
    def model(self) -> Path:
        return Path(self.job.output) / pass_name(self.last_pass)

    @cached_property
    def hash(self) -> str:
        return model_hash(self.model)

    def as_dict(self) -> dict[str, Any]:
        where = {"job": self.job.name, "output": self.job.output, "model": str(self.model)}
        return {**where, "hash": self.hash, **msgspec.to_builtins(self.status)}

    def lines(self) -> Iterator[str]:
        early = f"after {self.last_pass + 1} passes, {self.status.reason}; " if self._is_early else ""
        yield f"finished: {early}the model is in {self.model}"
        yield from best_pass_lines(Path(self.job.output))
        yield f"hash: {self.hash}"


def best_pass_lines(output: Path) -> list[str]:
    """A line about the best pass of a job that has finished, unless its passes do not compare."""
    best = best_pass(passes_in(output).values())
    if best is None:
        return []
    name, score = pass_name(best[0]), best[1]
    kept = "" if (output / name).is_dir() else "; its model was not kept"
    return [f"best pass: {name} ({score}{kept})"]


def are_kernels_compiled() -> bool:
    """Whether this machine has run the kernels as they are now: compiling them takes longer than a small job."""
    source = Path(bireme.__file__).parent / "ps" / "optim" / "kernels.py"
    name = f"kernels.*.py{sys.version_info[0]}{sys.version_info[1]}.nbi"
    places = (name, f"{source.parent.name}_*/{name}")
    compiled = (path for cache in kernel_caches(source.parent) for place in places for path in cache.glob(place))
    return any(path.stat().st_mtime >= source.stat().st_mtime for path in compiled)


def follow(
    job: Job,
    job_file: str,
    view: View,
    *,
    program: Program | None = None,
    each: Callable[[LocalRun], None] | None = None,
) -> Finished:
    """Run a job to its end.

    `program` saves a second check of the program; `each` is called after each poll, and then the job ends with its
    terminal, which it outlives otherwise.
    """
    program = program or check_program(job)
    origin = origin_of(job, program)
    check_alike(job, program, origin.shards)
    is_first = not are_kernels_compiled()
    with Interrupts(outlives_terminal=each is None) as interrupts, LocalRun(job, job_file) as run, view:
        if run.job.snapshots.path:
            write_origin(Path(run.job.snapshots.path), run.job.run_incarnation, origin)
        if warning := empty_shards(job, origin.shards):
            view.alert(warning)
        if is_first:
            view.note("compiling kernels, once on this machine: the first run starts up to a minute later")
        seen = 0
        while (status := run.poll()) is not None:
            view.update(status)
            if each is not None:
                each(run)
            if interrupts.count > seen:
                seen = interrupts.count
                if seen == 1:
                    view.alert("stopping; Ctrl-C again to stop at once")
                    run.cancel()
                else:
                    run.kill()
            time.sleep(POLL_S if each is None else POLL_S / 4)
        view.update(run.status)
        return Finished(job, run.status)


def run_to_end(job: Job, job_file: str, *, is_silent: bool, program: Program | None = None) -> Finished:
    """Run a job with its progress on the screen; an error that ends it early says how to resume it."""
    try:
        return follow(job, job_file, choose_view(is_silent=is_silent), program=program)
    except (Cancelled, *_TEMPORARY) as e:
        raise explain_end(job, e) from e
    finally:
        leave_closed_terminals()


def watch(backend: Backend, name: str | None, view: View) -> RunStatus | None:
    """Show a job that another process or a cluster runs, until it ends or until Ctrl-C, which leaves it running."""
    with Interrupts() as interrupts:
        return backend.follow(name, view, lambda: bool(interrupts.count))


def explain_end(job: Job, error: BiremeError) -> BiremeError:
    """Add how to resume after a stop, or after a failure that may not come again."""
    output = Path(job.output)
    if isinstance(error, Cancelled):
        made = sorted(p.parent.name for p in Path(job.snapshots.path).glob("*/manifest.json"))
        if not made:
            return Cancelled(f"{error.what}; no snapshot was made yet, so the job starts from the beginning next time")
        what = f"{error.what}; the newest snapshot is of round {int(made[-1].partition('-')[0])}"
        return Cancelled(what, fix=way_on(output))
    if not has_snapshot(output):
        return error
    fix = f"{error.fix}; then {way_on(output)}" if error.fix else way_on(output)
    return type(error)(error.what, why=error.why, fix=fix)
