"""The door of a pserver: connections wait here until they have shown who they are, and strangers stay outside.

Without TLS everybody is let in at once. With it, each connection shakes hands on its own thread, within a deadline,
and only so many do so at a time. Strangers that say nothing cannot keep out a process of the job: when it gets
crowded, those from the address with the most of them are sent away, the one that waits longest first.
"""

from __future__ import annotations

import contextlib
import logging
import socket
import threading
import time
from collections import Counter
from collections.abc import Callable
from typing import TYPE_CHECKING

from bireme.core.errors import CertificateError
from bireme.ps.wire import security
from bireme.ps.wire.frame_io import Buffered

if TYPE_CHECKING:
    from bireme.ps.wire.secured import Secured

log = logging.getLogger(__name__)
AT_ONCE = 64
"""So many may be at the door; twice as many while the first ones are being sent away."""
QUIET_S = 600.0
"""How long a refusal that was logged is not logged again."""
MOST_LINES = 64
"""Addresses and reasons that are told apart in that time."""
_OTHERS = ("others", "enough lines of this kind for now")


class RefusalLog:
    """Refusals that are worth a line in the log: a crowd must not fill it."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._told: dict[tuple[str, str], tuple[float, int]] = {}
        """When something was logged last, and how often it happened since."""

    def about(self, who: str, why: str) -> None:
        """Log why somebody was refused, unless that was done lately."""
        with self._lock:
            now = self._clock()
            key = self._key(who, why, now)
            at, more = self._told.get(key, (now - QUIET_S, 0))
            is_due = now - at >= QUIET_S
            self._told[key] = (now, 0) if is_due else (at, more + 1)
        if is_due:
            again = f" ({more:,} more since the last such line)" if more else ""
            log.warning("refused a connection from %s: %s%s", *key, again)

    def _key(self, who: str, why: str, now: float) -> tuple[str, str]:
        if (who, why) not in self._told and len(self._told) >= MOST_LINES:
            self._told = {key: told for key, told in self._told.items() if now - told[0] < QUIET_S}
            if len(self._told) >= MOST_LINES:
                return _OTHERS
        return who, why


class ConnectionGate:
    """Lets in who belongs to the job."""

    def __init__(self, limit: int = AT_ONCE, seconds: float = security.HANDSHAKE_S) -> None:
        self._limit = limit
        self._seconds = seconds
        self._complaints = RefusalLog()
        self._lock = threading.Lock()
        self._waiting: dict[Secured, str] = {}
        self._leaving = 0
        """Connections that were sent away and whose threads have not noticed yet."""

    def knock(self, sock: socket.socket) -> Buffered | None:
        """Take a connection that was just accepted; None where there is no room, and it is closed."""
        if sock.family == socket.AF_UNIX or not security.is_used():
            return Buffered.over(sock)
        from bireme.ps.wire.secured import Secured

        address = _address(sock)
        with self._lock:
            if len(self._waiting) + self._leaving < 2 * self._limit:
                if len(self._waiting) >= self._limit:
                    self._send_one_away()
                taken = Secured.over(sock)
                self._waiting[taken] = address
                return taken
        self._complaints.about(address, "too many connections at once")
        sock.close()
        return None

    def _send_one_away(self) -> None:
        crowd, _ = Counter(self._waiting.values()).most_common(1)[0]
        oldest = next(sock for sock, address in self._waiting.items() if address == crowd)
        del self._waiting[oldest]
        self._leaving += 1
        with contextlib.suppress(OSError):
            oldest.shutdown(socket.SHUT_RDWR)  # its own thread notices, and closes it

    def admit(self, sock: Buffered) -> bool:
        """Whether a connection is of the job, which it gets some time to show; called on its own thread."""
        if type(sock) is Buffered:
            return True
        from bireme.ps.wire.secured import Secured

        assert isinstance(sock, Secured)
        address = _address(sock)
        try:
            security.shake_hands(sock, is_accepted=True, seconds=self._seconds)
        except CertificateError as e:
            self._complaints.about(address, e.what)
            return False
        except OSError as e:
            self._complaints.about(address, e.strerror or str(e))
            return False
        finally:
            with self._lock:
                if self._waiting.pop(sock, None) is None:
                    self._leaving -= 1
        return True


def _address(sock: socket.socket) -> str:
    try:
        return str(sock.getpeername()[0])
    except OSError:
        return "somebody who has gone"
