"""Whose word counts for a pserver: views, and the one it stands in. No I/O."""

from __future__ import annotations

from dataclasses import dataclass

from bireme.core.errors import FrameError, StaleError


def view_of(incarnation: int, number: int) -> int:
    """The number-th view of a coordinator: views are ordered by the coordinator's incarnation, then by number."""
    return incarnation << 32 | number


@dataclass(slots=True)
class Authority:
    """Which job a pserver serves, in which view, and since which one it keeps what it has."""

    job: int | None = None
    view: int = 0
    history: int = 0
    """The view in which what is kept here was loaded or made; 0: nothing is."""

    @classmethod
    def at_birth(cls, rank: int, incarnation: int, since: int) -> Authority:
        """Where a pserver stands before anybody has said anything, so that no coordinator of the past is heard.

        Pserver 0 stands in view 0 of its own life: the coordinator whose word counts is the one inside it, also while
        an older one, on a machine that was cut off, still finds its way here. The others stand in view 0 of the run.
        """
        return cls(view=view_of(incarnation if rank == 0 else since, 0))

    def check_set_up(self, job: int, view: int) -> None:
        """Refuse to be given parameters by whoever is not newer, or is of another job."""
        self._check_newer(view)
        if self.job not in (None, job):
            raise FrameError("this pserver already serves a job", fix="start a fresh pserver for another job")

    def check_enter(self, view: int, history: int) -> None:
        """Refuse to go on in a view that is not newer, or is about something else than what is kept here."""
        self._check_newer(view)
        if not self.history or self.history != history:
            raise StaleError(f"this pserver keeps nothing of history {history:x}")

    def _check_newer(self, view: int) -> None:
        if view <= self.view:
            raise StaleError(f"view {view:x} is not newer than view {self.view:x}, in which this pserver is")
