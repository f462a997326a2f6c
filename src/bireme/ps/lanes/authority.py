"""Which coordinator a pserver obeys: views, and the one it is in. No I/O."""

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
    history: int = 0  # the view in which what is kept here was loaded or made; 0: nothing is

    @classmethod
    def at_birth(cls, rank: int, incarnation: int, run_incarnation: int) -> Authority:
        """The view of a pserver that has just started, so that it refuses coordinators of the past.

        Pserver 0 starts in view 0 of its own incarnation: it obeys only the coordinator inside it, also while an older
        one, on a machine that was cut off, still reaches it. The others start in view 0 of the run.
        """
        return cls(view=view_of(incarnation if rank == 0 else run_incarnation, 0))

    def check_set_up(self, job: int, view: int) -> None:
        """Refuse a setup for a view that is not newer, or for another job."""
        self._check_newer(view)
        if self.job not in (None, job):
            raise FrameError("this pserver already serves a job", fix="start a fresh pserver for another job")

    def check_enter(self, view: int, history: int) -> None:
        """Refuse to enter a view that is not newer, or is of a history that is not kept here."""
        self._check_newer(view)
        if not self.history or self.history != history:
            raise StaleError(f"this pserver keeps nothing of history {history}")

    def _check_newer(self, view: int) -> None:
        if view <= self.view:
            raise StaleError(f"view {view} is not newer than view {self.view}, in which this pserver is")
