"""Admission to a pserver: a connection waits here until its handshake shows that it is of the job.

Without TLS every connection is admitted at once. With it, each shakes hands on its own thread, within a deadline, and
only so many do so at a time. Silent strangers cannot keep out a process of the job: when there are too many, the
connection that has waited longest is closed, of those from the address with the most.
"""

from __future__ import annotations

import logging
import socket
import threading
import time
from collections import Counter
from collections.abc import Callable
from typing import TYPE_CHECKING

from bireme.core.errors import CertificateError
from bireme.ps.wire import security
from bireme.ps.wire.frame_io import Buffered, hang_up

if TYPE_CHECKING:
    from bireme.ps.wire.secured import Secured

log = logging.getLogger(__name__)
AT_ONCE = 64
"""So many handshakes at a time; twice as many connections while evicted ones have not been closed yet."""
QUIET_S = 600.0  # how long a refusal that was logged is not logged again
MOST_LINES = 64  # pairs of address and reason that get lines of their own in that time
_OTHERS = ("others", "line limit reached")


class RefusalLog:
    """Logs refused connections, each address and reason only now and then: a crowd must not fill the log."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._logged: dict[tuple[str, str], tuple[float, int]] = {}
        """When a refusal was logged last, and how often it happened since."""

    def about(self, who: str, why: str) -> None:
        with self._lock:
            now = self._clock()
            key = self._key(who, why, now)
            at, more = self._logged.get(key, (now - QUIET_S, 0))
            # Decided under the lock, logged after it: writing a line may block.
            is_due = now - at >= QUIET_S
            self._logged[key] = (now, 0) if is_due else (at, more + 1)
        if is_due:
            again = f" repeats={more}" if more else ""
            log.warning("refused connection peer=%s cause=%r%s", *key, again)

    def _key(self, who: str, why: str, now: float) -> tuple[str, str]:
        if (who, why) not in self._logged and len(self._logged) >= MOST_LINES:
            self._logged = {key: entry for key, entry in self._logged.items() if now - entry[0] < QUIET_S}
            if len(self._logged) >= MOST_LINES:
                return _OTHERS
        return who, why


class ConnectionGate:
    """Admits connections of the job."""

    def __init__(self, limit: int = AT_ONCE, seconds: float = security.HANDSHAKE_S) -> None:
        self._limit = limit
        self._seconds = seconds
        self._refusals = RefusalLog()
        self._lock = threading.Lock()
        self._waiting: dict[Secured, str] = {}
        self._leaving = 0  # connections that were evicted and whose threads have not noticed yet

    def accept(self, sock: socket.socket) -> Buffered | None:
        """Take a connection that was just accepted; None where there is no room, and it is closed."""
        if sock.family == socket.AF_UNIX or not security.is_used():
            return Buffered.over(sock)
        from bireme.ps.wire.secured import Secured

        address = _address(sock)
        with self._lock:
            if len(self._waiting) + self._leaving < 2 * self._limit:
                if len(self._waiting) >= self._limit:
                    self._evict_one()
                taken = Secured.over(sock)
                self._waiting[taken] = address
                return taken
        self._refusals.about(address, "too many connections at once")
        sock.close()
        return None

    def _evict_one(self) -> None:
        crowd, _ = Counter(self._waiting.values()).most_common(1)[0]
        # Dicts keep the order of insertion: the first one of this address has waited longest.
        oldest = next(sock for sock, address in self._waiting.items() if address == crowd)
        del self._waiting[oldest]
        self._leaving += 1
        hang_up(oldest)  # its own thread notices, and closes it

    def admit(self, sock: Buffered) -> bool:
        """Whether a connection shows in time that it is of the job; called on its own thread."""
        if type(sock) is Buffered:
            return True
        from bireme.ps.wire.secured import Secured

        assert isinstance(sock, Secured)
        address = _address(sock)
        try:
            security.shake_hands(sock, is_accepted=True, seconds=self._seconds)
        except CertificateError as e:
            self._refusals.about(address, e.what)
            return False
        except OSError as e:
            self._refusals.about(address, e.strerror or str(e))
            return False
        finally:
            with self._lock:
                if self._waiting.pop(sock, None) is None:  # evicted meanwhile
                    self._leaving -= 1
        return True


def _address(sock: socket.socket) -> str:
    try:
        return str(sock.getpeername()[0])
    except OSError:
        return "a peer that has gone"
