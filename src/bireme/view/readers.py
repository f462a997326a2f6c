"""Output whose reader goes away: a pipe may break and a terminal may be closed, and the job goes on all the same."""

from __future__ import annotations

import os
import select
import sys
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Protocol, Self, TextIO, TypeVar

if TYPE_CHECKING:
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


class View(Protocol):
    """Shows statuses one after the other."""

    has_panel: bool
    """Whether it shows the last status all the time, not changes only."""

    def __enter__(self) -> Self: ...

    def __exit__(self, *_: object) -> None: ...

    def update(self, status: JobStatus) -> None:
        """Show the newest status."""

    def note(self, text: str) -> None:
        """Show a remark."""

    def alert(self, text: str) -> None:
        """Show what must not be missed."""


class GuardedView:
    """A view whose reader may go away (`| head`, a closed terminal): from then on it is silent."""

    def __init__(self, view: View) -> None:
        self._view = view
        self.has_panel = view.has_panel
        self.is_silent = False

    def __enter__(self) -> Self:
        self._view.__enter__()
        return self

    def __exit__(self, *_: object) -> None:
        self._view.__exit__(*_)

    def update(self, status: JobStatus) -> None:
        """Show the newest status."""
        self._show(self._view.update, status)

    def note(self, text: str) -> None:
        """Show a remark."""
        self._show(self._view.note, text)

    def alert(self, text: str) -> None:
        """Show what must not be missed."""
        self._show(self._view.alert, text)

    def _show(self, show: Callable[[T], None], what: T) -> None:
        if self.is_silent:
            return
        try:
            show(what)
            sys.stdout.flush()
        except OSError:
            self.is_silent = True
            fall_silent(sys.stdout)
            leave_closed_terminals()


def choose_view(*, is_silent: bool) -> View:
    """Live on a terminal, plain lines in a pipe, nothing when silent."""
    if is_silent:
        from bireme.view.plain import SilentView

        return SilentView()
    if sys.stdout.isatty():
        from bireme.view.terminal import LiveView

        return GuardedView(LiveView())
    from bireme.view.plain import PlainView

    return GuardedView(PlainView())
