"""What the coordinator says to a trainer: kept by the thread that listens, awaited by the thread that trains.

    Begin    enter this view; whatever is open in an earlier one is closed
    Stop     leave
    None     the connection is lost: join again

Only the newest word counts, and nobody goes back to an older view. A trainer that is at work is woken through
`on_news`, which closes its connections to the lanes.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

from bireme.core.errors import BiremeError
from bireme.job.coordination import messages as m

Order = m.Begin | m.Stop | None


class Orders:
    """The newest order of one connection to the coordinator."""

    def __init__(self, on_news: Callable[[], None]) -> None:
        self._on_news = on_news
        self._changed = threading.Condition()
        self._begin: m.Begin | None = None
        self._stop: m.Stop | None = None
        self._is_lost = False
        self._refusal: BiremeError | None = None

    def refuse(self, refusal: BiremeError) -> None:
        """The coordinator does not want us."""
        self._refusal = refusal
        self.say(None)

    def say(self, order: Order) -> None:
        """Take an order, or None for a connection that was lost."""
        with self._changed:
            if isinstance(order, m.Begin):
                self._begin = order
            elif isinstance(order, m.Stop):
                self._stop = order
            else:
                self._is_lost = True
            self._changed.notify_all()
        if not (isinstance(order, m.Stop) and order.how == "finished"):
            self._on_news()

    def is_news(self, view: int) -> bool:
        """Whether something is to be done that somebody in this view does not do."""
        with self._changed:
            return self._is_news(view)

    def _is_news(self, view: int) -> bool:
        is_later = self._begin is not None and self._begin.view > view
        return is_later or self._stop is not None or self._is_lost

    def await_news(self, view: int, timeout_s: float | None = None) -> Order:
        """Wait for what comes after this view: an ending before a loss, and both before another view."""
        with self._changed:
            self._changed.wait_for(lambda: self._is_news(view), timeout_s)
            if self._refusal is not None:
                raise self._refusal
            if self._stop is not None or self._is_lost:
                return self._stop
            return self._begin
