"""What `train` and `demo` share: follow a local run on the screen, and stop it when asked."""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from pathlib import Path
from typing import Any, Protocol, Self

import click

from bireme.core.errors import Cancelled
from bireme.job.preflight import check_program
from bireme.local.runner import LocalRun
from bireme.spec.job import Job
from bireme.spec.load import command_name

POLL_S = 0.1


class View(Protocol):
    """Shows statuses one after the other."""

    def __enter__(self) -> Self: ...

    def __exit__(self, *_: object) -> None: ...

    def update(self, status: dict[str, Any]) -> None:
        """Show the newest status."""


def choose_view(*, is_silent: bool) -> View:
    """Live on a terminal, plain lines in a pipe, nothing when silent."""
    if is_silent:
        from bireme.view.plain import SilentView

        return SilentView()
    if sys.stdout.isatty():
        from bireme.view.terminal import LiveView

        return LiveView()
    from bireme.view.plain import PlainView

    return PlainView()


class Interrupts:
    """Counts Ctrl-C (and SIGTERM) while a job runs: once stops cleanly, twice stops at once."""

    def __init__(self) -> None:
        self.count = 0
        self._before: dict[int, Any] = {}

    def __enter__(self) -> Interrupts:
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            self._before[number] = signal.signal(number, self._noted)
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _noted(self, *_: object) -> None:
        self.count += 1


def show(view: View, status: dict[str, Any]) -> View:
    """Show a status; when nobody reads any more (`| head`), go on in silence."""
    try:
        view.update(status)
        sys.stdout.flush()
    except BrokenPipeError:
        from bireme.view.plain import SilentView

        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return SilentView()
    return view


def follow(job: Job, job_file: str, view: View) -> dict[str, Any]:
    """Run a job to its end and return the coordinator's last status."""
    check_program(job)
    with Interrupts() as interrupts, LocalRun(job, job_file) as run, view:
        asked = 0
        while (status := run.poll()) is not None:
            view = show(view, status)
            if interrupts.count > asked:
                asked = interrupts.count
                if asked == 1:
                    click.echo("stopping; Ctrl-C again to stop at once", err=True)
                    run.cancel()
                else:
                    run.kill()
            time.sleep(POLL_S)
        show(view, run.status)
        return run.status


def finish(job: Job, job_file: str, *, as_json: bool) -> None:
    """Run a job to its end and say where its model is."""
    try:
        status = follow(job, job_file, choose_view(is_silent=as_json))
    except Cancelled as e:
        raise explain_stop(job, e) from e
    from bireme.job.model import model_hash, pass_name

    model = Path(job.output) / pass_name(job.passes - 1)
    digest = model_hash(model)
    if as_json:
        told = {"job": job.name, "output": job.output, "model": str(model), "hash": digest, **status}
        click.echo(json.dumps(told))
        return
    click.echo(f"finished: the model is in {model}")
    click.echo(f"hash: {digest}")


def explain_stop(job: Job, error: Cancelled) -> Cancelled:
    """Tell how to go on after a stop."""
    made = sorted(p.parent.name for p in Path(job.snapshots.path).glob("*/manifest.json"))
    if not made:
        return Cancelled(f"{error.what}; no snapshot was made yet, so the job starts from the beginning next time")
    what = f"{error.what}; the newest snapshot is of round {int(made[-1].partition('-')[0])}"
    return Cancelled(what, fix=f"go on with `{command_name()} resume {job.output}`")
