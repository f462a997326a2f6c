"""Output whose reader goes away: a pipe may break and a terminal may be closed; the job continues all the same."""

from __future__ import annotations

import os
import select
import sys
from collections.abc import Callable
from contextlib import suppress
from typing import Self, TextIO, TypeVar

import click

from bireme.job.status import JobStatus

T = TypeVar("T")


def fall_silent(stream: TextIO) -> None:
    """Redirect a stream to /dev/null, what waits in its buffer included."""
    with suppress(OSError):  # it has no descriptor, so no reader outside
        target, nowhere = stream.fileno(), os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, target)
        os.close(nowhere)


def leave_closed_terminals() -> None:
    """Fall silent where a terminal was closed: a write there would fail, with no place left to report it."""
    for stream in (sys.stdout, sys.stderr):
        if is_hung_up(stream):
            fall_silent(stream)


def is_hung_up(stream: TextIO) -> bool:
    """Whether this is a terminal that was closed; a file never is, nor a pipe without a reader."""
    poll = select.poll()
    with suppress(OSError):
        poll.register(stream.fileno(), 0)
    return any(event & select.POLLHUP for _, event in poll.poll(0))


def alert(text: str) -> None:
    """Print on standard error; on a terminal after a line break, as it has just shown `^C`."""
    with suppress(OSError):  # its reader is gone
        click.echo(f"\n{text}" if sys.stderr.isatty() else text, err=True)


class View:
    """Shows statuses one after the other; this one only alerts, for --json and --quiet.

    Its reader may go away (`| head`, a closed terminal): from then on it is silent.
    """

    has_panel = True
    """Whether it shows the last status all the time, not changes only."""

    def __init__(self) -> None:
        self.is_silent = False
        self.last_pass = -1
        """The newest finished pass that it has shown."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        return

    def update(self, status: JobStatus) -> None:
        self._guarded(self._update, status)

    def note(self, text: str) -> None:
        self._guarded(self._note, text)

    def alert(self, text: str) -> None:
        """Show what must not be missed."""
        self._guarded(self._alert, text)

    def _guarded(self, show: Callable[[T], None], what: T) -> None:
        if self.is_silent:
            return
        try:
            show(what)
            sys.stdout.flush()  # a reader that went away shows up here, and not at the exit as an error of Python's
        except OSError:
            self.is_silent = True
            fall_silent(sys.stdout)
            leave_closed_terminals()

    def _update(self, status: JobStatus) -> None:
        return

    def _note(self, text: str) -> None:
        return

    def _alert(self, text: str) -> None:
        alert(text)


def choose_view(*, is_silent: bool) -> View:
    """Live on a terminal, plain lines in a pipe, nothing when silent."""
    if is_silent:
        return View()
    if sys.stdout.isatty():
        from bireme.view.terminal import LiveView

        return LiveView()
    from bireme.view.plain import PlainView

    return PlainView()
