"""What `train` and `demo` share: follow a local run on the screen, and stop it when asked."""

from __future__ import annotations

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


def explain_stop(job: Job, job_file: str, error: Cancelled) -> Cancelled:
    """Tell how to go on after a stop."""
    passes = sorted(p.name for p in Path(job.output).glob("pass-*") if (p / "done").is_file())
    if not passes:
        return Cancelled(f"{error.what}; no pass was finished, so the job starts from the beginning next time")
    next_pass = int(passes[-1][5:]) + 1
    return Cancelled(
        f"{error.what}; {passes[-1]} is the last finished pass",
        why="a model holds the weights; the optimizer's own state is not saved yet and starts afresh",
        fix=f"go on with `{command_name()} train {job_file} --output {job.output} --passes {job.passes} "
        f"--start-pass {next_pass}`",
    )
