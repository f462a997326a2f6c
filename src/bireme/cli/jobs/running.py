"""What `train` and `demo` share: follow a local run on the screen, and stop it when asked."""

from __future__ import annotations

import json
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click
import msgspec

from bireme.api.progress import has_snapshot, way_on
from bireme.core.errors import BiremeError, Cancelled, FrameError, NetworkError, ProcessError, StorageError
from bireme.job.output.inputs import origin_of, write_origin
from bireme.job.preflight import check_program
from bireme.job.shard_files import check_alike, empty_shards
from bireme.job.status import JobStatus
from bireme.local.runner import LocalRun
from bireme.programs.program import Program
from bireme.spec.job import Job
from bireme.spec.load import kernel_caches
from bireme.view.readers import View, choose_view

POLL_S = 0.1
_PASSING = (ProcessError, NetworkError, FrameError, StorageError)
"""What may be over when the job is started again; a wrong config or bad data are not."""


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
                self._before[number] = signal.signal(number, self._noted)
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _noted(self, number: int, _: object) -> None:
        if number != signal.SIGHUP or not self._outlives_terminal:
            self.count += 1


def show(view: View, status: JobStatus) -> View:
    """Show a status; returns the view for the next one."""
    return _say(view, view.update, status)


def _say(view: View, say: Callable[..., None], *what: Any) -> View:
    """Let a view say something; when nobody reads any more (`| head`, a closed terminal), go on in silence."""
    try:
        say(*what)
        sys.stdout.flush()
    except OSError:
        from bireme.view.plain import SilentView
        from bireme.view.readers import fall_silent, leave_closed_terminals

        fall_silent(sys.stdout)
        leave_closed_terminals()
        return SilentView()
    return view


def are_kernels_compiled() -> bool:
    """Whether this machine has run the kernels as they are now: compiling them takes longer than a small job."""
    source = Path(__file__).parents[2] / "ps" / "optim" / "kernels.py"
    name = f"kernels.*.py{sys.version_info[0]}{sys.version_info[1]}.nbi"
    found = (
        path
        for cache in kernel_caches(source.parent)
        for path in (*cache.glob(name), *cache.glob(f"{source.parent.name}_*/{name}"))
    )
    return any(path.stat().st_mtime >= source.stat().st_mtime for path in found)


def follow(
    job: Job,
    job_file: str,
    view: View,
    *,
    program: Program | None = None,
    each: Callable[[LocalRun], None] | None = None,
) -> JobStatus:
    """Run a job to its end and return the coordinator's last status.

    `program` is given where it was checked before; `each` is called whenever the status was asked for. Unless somebody
    is to be told so, the job outlives the terminal that it is shown on.
    """
    program = program or check_program(job)
    origin = origin_of(job, program)
    check_alike(job, program, origin.shards)
    is_first = not are_kernels_compiled()
    with Interrupts(outlives_terminal=each is None) as interrupts, LocalRun(job, job_file) as run, view:
        if run.job.snapshots.path:
            write_origin(Path(run.job.snapshots.path), run.job.since, origin)
        if warning := empty_shards(job, origin.shards):
            view = _say(view, view.alert, warning)
        if is_first:
            what = "compiling kernels, once on this machine: the first run starts up to a minute later"
            view = _say(view, view.note, what)
        asked = 0
        while (status := run.poll()) is not None:
            view = show(view, status)
            if each is not None:
                each(run)
            if interrupts.count > asked:
                asked = interrupts.count
                if asked == 1:
                    view = _say(view, view.alert, "stopping; Ctrl-C again to stop at once")
                    run.cancel()
                else:
                    run.kill()
            time.sleep(POLL_S if each is None else POLL_S / 4)
        show(view, run.status)
        return run.status


def run_to_end(job: Job, job_file: str, *, is_silent: bool, program: Program | None = None) -> JobStatus:
    """Follow a job on the screen; what ends it early is told with how to go on, if anybody is there to read it."""
    from bireme.view.readers import leave_closed_terminals

    try:
        return follow(job, job_file, choose_view(is_silent=is_silent), program=program)
    except (Cancelled, *_PASSING) as e:
        raise explain_end(job, e) from e
    finally:
        leave_closed_terminals()


def finish(job: Job, job_file: str, *, as_json: bool, program: Program | None = None) -> None:
    """Run a job to its end and say where its model is."""
    status = run_to_end(job, job_file, is_silent=as_json, program=program)
    from bireme.job.output.model import model_hash, pass_name

    model = Path(job.output) / pass_name(last_pass(job, status))
    digest = model_hash(model)
    if as_json:
        told = {
            "job": job.name,
            "output": job.output,
            "model": str(model),
            "hash": digest,
            **msgspec.to_builtins(status),
        }
        click.echo(json.dumps(told))
        return
    early = f"after {last_pass(job, status) + 1} passes, {status.reason}; " if _is_early(job, status) else ""
    click.echo(f"finished: {early}the model is in {model}")
    if best := best_words(Path(job.output)):
        click.echo(best)
    click.echo(f"hash: {digest}")


def last_pass(job: Job, status: JobStatus) -> int:
    """The pass that a job has ended with."""
    return status.saved if _is_early(job, status) else job.passes - 1


def _is_early(job: Job, status: JobStatus) -> bool:
    return bool(job.stop_after) and status.saved < job.passes - 1


def best_words(output: Path) -> str:
    """Which of the passes in an output directory came out best; '' where that is no question."""
    from bireme.job.output.kept import metrics_in
    from bireme.job.output.model import pass_name
    from bireme.view.plain import best_pass

    best = best_pass(metrics_in(output).values())
    return f"best pass: {pass_name(best[0])} ({best[1]})" if best else ""


def explain_end(job: Job, error: BiremeError) -> BiremeError:
    """Tell how to go on after a stop, or after a failure that may not come again."""
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
