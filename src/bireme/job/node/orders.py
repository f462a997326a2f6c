"""The coordinator's orders to a trainer: put by the listening thread, awaited by the training thread.

    Begin    enter this view; the connections of an earlier one are closed
    Stop     leave
    None     the connection is lost: join again

Only the newest order counts, and a trainer never returns to an older view. `on_change` closes the trainer's
connections to the lanes, which ends a blocked push or pull.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

from bireme.core.errors import BiremeError
from bireme.job.coordination import messages as m

Order = m.Begin | m.Stop | None


class Orders:
    """The newest order of one connection to the coordinator."""

    def __init__(self, on_change: Callable[[], None]) -> None:
        self._on_change = on_change
        self._changed = threading.Condition()
        self._begin: m.Begin | None = None
        self._stop: m.Stop | None = None
        self._is_lost = False
        self._refusal: BiremeError | None = None

    def refuse(self, refusal: BiremeError) -> None:
        """Raise the coordinator's refusal in the thread that waits."""
        self._refusal = refusal  # before `put` wakes that thread
        self.put(None)

    def put(self, order: Order) -> None:
        with self._changed:
            if isinstance(order, m.Begin):
                self._begin = order
            elif isinstance(order, m.Stop):
                self._stop = order
            else:
                self._is_lost = True
            self._changed.notify_all()
        # After a good ending the loop returns by itself; closing its connections could only turn that into an error.
        if not (isinstance(order, m.Stop) and order.how == "finished"):
            self._on_change()

    def has_newer(self, view: int) -> bool:
        """Whether a trainer in this view must leave it: for a later one, a Stop or a lost connection."""
        with self._changed:
            return self._has_newer(view)

    def _has_newer(self, view: int) -> bool:
        is_later = self._begin is not None and self._begin.view > view
        return is_later or self._stop is not None or self._is_lost

    def wait(self, view: int, timeout_s: float | None = None) -> Order:
        """Wait for the order that ends this view: Stop before a loss, and both before another view."""
        with self._changed:
            self._changed.wait_for(lambda: self._has_newer(view), timeout_s)
            if self._refusal is not None:
                raise self._refusal
            if self._stop is not None or self._is_lost:
                return self._stop
            return self._begin
