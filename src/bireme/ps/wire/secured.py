"""A TCP connection under TLS that offers what a plain one does to frames (frame_io.py).

OpenSSL never sees the socket: it works between two buffers in memory, under a lock, while the reader waits for the
kernel outside of it. So one thread may read and another write, which OpenSSL's objects do not allow by themselves;
timeouts, keep-alives, SO_RCVLOWAT and hanging up from a third thread are the kernel's, as they are without TLS.
Large payloads go through in pieces that fit a processor's cache. The end of the stream needs no message of its
own: frames carry their length, and an attacker who can cut a connection can do so anyway.
"""

from __future__ import annotations

import contextlib
import errno
import socket
import ssl
import threading
import time
from collections.abc import Iterable, Iterator
from typing import Any

from bireme.ps.wire.frame_io import Buffered

RECORD = 1 << 14  # bytes that the largest record of TLS carries
RECORD_MORE = 256 + 5  # by which it is longer, at most
PIECE = 1 << 18  # how much is encrypted or received at a time
WELCOME = b"\x01"  # the first byte from the side that accepts: it has checked the other side's certificate
_NOT_TLS = ("WRONG_VERSION", "HTTP", "PACKET_LENGTH", "BAD_RECORD_TYPE", "UNEXPECTED_MESSAGE", "LENGTH", "UNKNOWN_PROT")


class TrustError(ConnectionError):
    """The peer is not of this job, or refuses us, or bytes were changed on the way; `strerror` has the reason."""

    def __init__(self, why: str) -> None:
        super().__init__(errno.EPROTO, why)


class Secured(Buffered):
    """A connection under TLS; nothing can be sent on it before a handshake."""

    _tls: ssl.SSLObject
    _incoming: ssl.MemoryBIO
    _outgoing: ssl.MemoryBIO
    _turn: threading.Lock  # for OpenSSL's object; never held while a thread waits for the network
    _sending: threading.Lock
    _scratch: memoryview

    @classmethod
    def over(cls, sock: socket.socket) -> Secured:
        secured = cls(sock.family, sock.type, sock.proto, fileno=sock.detach())
        secured._incoming, secured._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        secured._turn, secured._sending = threading.Lock(), threading.Lock()
        secured._scratch = memoryview(bytearray(RECORD + RECORD_MORE))
        return secured

    def shake_hands(self, context: ssl.SSLContext, name: str, *, seconds: float, is_accepted: bool) -> None:
        """Agree on keys with a peer that shows a certificate of this name; OSError with the reason if it does not."""
        self._tls = context.wrap_bio(self._incoming, self._outgoing, server_side=is_accepted)
        deadline = time.monotonic() + seconds
        try:
            self._agree(deadline)
            self._check_name(name)
            if is_accepted:
                self.sendall(WELCOME)
            else:
                self._await_welcome(deadline)
        except TimeoutError as e:
            raise TimeoutError(errno.ETIMEDOUT, f"it did not finish the handshake within {seconds:g} s") from e
        except ssl.SSLError as e:
            with contextlib.suppress(OSError):
                self._flush()  # the alert with the reason, for the peer
            raise TrustError(words_of(e)) from e
        self.settimeout(None)

    def _agree(self, deadline: float) -> None:
        while True:
            try:
                self._tls.do_handshake()
                self._flush()
                return
            except ssl.SSLWantReadError:
                self._flush()
                self._await_more(deadline)

    def _await_welcome(self, deadline: float) -> None:
        first = bytearray(1)
        while not self._open(memoryview(first)):
            self._await_more(deadline)
        if first != WELCOME:
            raise TrustError("it speaks TLS, but is no pserver")

    def _await_more(self, deadline: float) -> None:
        left = deadline - time.monotonic()
        if left <= 0:
            raise TimeoutError
        self.settimeout(left)
        if not self._take(0, 0):
            raise ConnectionResetError(errno.ECONNRESET, "it hung up in the middle of the handshake")

    def _check_name(self, name: str) -> None:
        shown: Any = (self._tls.getpeercert() or {}).get("subjectAltName", ())
        if ("DNS", name) not in shown:
            others = ", ".join(value for kind, value in shown if kind == "DNS") or "no name"
            raise TrustError(f"its certificate is of {others}, not of {name}")

    def recv_into(self, buffer: Any, nbytes: int = 0, flags: int = 0) -> int:
        """As the plain one does; MSG_WAITALL is the only flag that counts."""
        view = memoryview(buffer).cast("B")
        view = view[:nbytes] if nbytes else view
        got = 0
        while True:
            got += self._open(view[got:])
            if got == len(view) or (got and not flags & socket.MSG_WAITALL):
                return got
            if not self._take(len(view) - got, flags):
                return got

    def recv(self, bufsize: int, flags: int = 0) -> bytes:
        """As the plain one does; a peek returns encrypted bytes: it shows only whether there are any."""
        if flags & socket.MSG_PEEK:
            return socket.socket.recv(self, bufsize, flags)
        buffer = bytearray(bufsize)
        return bytes(buffer[: self.recv_into(buffer, 0, flags)])

    def _take(self, due: int, flags: int) -> int:
        """Receive something encrypted, where at least `due` bytes are still to come; 0 if the peer has closed."""
        # Of these, one record at most is already here, in part; the rest must be to come, or no wake-up follows.
        ask = min(due - RECORD - RECORD_MORE, PIECE) if flags & socket.MSG_WAITALL else 0
        if ask > len(self._scratch):
            self._scratch = memoryview(bytearray(PIECE))
        is_large = ask > RECORD
        space = self._scratch[:ask] if is_large else self._scratch
        # Without a lock, as one thread receives; under `_turn` a silent peer would keep our own sends waiting.
        got = socket.socket.recv_into(self, space, 0, socket.MSG_WAITALL if is_large else 0)
        with self._turn:
            self._incoming.write(space[:got])
        return got

    def _open(self, view: memoryview) -> int:
        """Decrypt what has come, as much as there is room for."""
        got, size = 0, len(view)
        try:
            # The thread that sends uses the same object, which OpenSSL does not guard.
            with self._turn:
                while got < size:
                    new = int(self._tls.read(size - got, view[got:]))  # into the buffer: the count comes back
                    if not new:
                        break
                    got += new
        except ssl.SSLWantReadError:
            pass
        except ssl.SSLError as e:
            raise TrustError(words_of(e)) from e
        return got

    def sendmsg(self, buffers: Iterable[Any], *_: Any, **__: Any) -> int:
        """Send all of it, whatever that takes; only one thread at a time."""
        total = 0
        # Held until the bytes are out: the peer can decrypt records only in the order in which they were sealed.
        with self._sending:
            for piece in pieces(buffers):
                try:
                    with self._turn:
                        self._tls.write(piece)
                        sealed = self._outgoing.read()
                except ssl.SSLError as e:
                    raise TrustError(words_of(e)) from e
                socket.socket.sendall(self, sealed)
                total += len(piece)
        return total

    def sendall(self, data: Any, flags: int = 0) -> None:
        self.sendmsg([memoryview(data).cast("B")])

    def send(self, data: Any, flags: int = 0) -> int:
        return self.sendmsg([memoryview(data).cast("B")])

    def _flush(self) -> None:
        # Without a lock: used in the handshake only, when no other thread has this connection yet.
        if self._outgoing.pending:
            socket.socket.sendall(self, self._outgoing.read())

    @property
    def is_ahead(self) -> bool:
        return self._incoming.pending > 0 or self._tls.pending() > 0


def pieces(buffers: Iterable[memoryview]) -> Iterator[memoryview | bytearray]:
    """Cut what is to be sent into whole records: small buffers go together with the beginning of what follows them."""
    held = bytearray()
    for buffer in buffers:
        view = buffer
        if held or len(view) < RECORD:
            room = RECORD - len(held)
            held += view[:room]
            view = view[room:]
            if len(held) == RECORD:
                yield held
                held = bytearray()
        whole = len(view) - len(view) % RECORD
        for begin in range(0, whole, PIECE):
            yield view[begin : min(begin + PIECE, whole)]
        held += view[whole:]
    if held:
        yield held


def words_of(error: ssl.SSLError) -> str:
    """The reason of a TLS error, as a statement about the peer."""
    if isinstance(error, ssl.SSLCertVerificationError):
        if error.verify_code == 10:
            return "its certificate has expired"
        if error.verify_code == 9:
            return "its certificate is not yet valid: do the clocks agree?"
        return f"its certificate is not of this job ({error.verify_message})"
    reason = error.reason or ""
    if "DID_NOT_RETURN_A_CERTIFICATE" in reason:
        return "it showed no certificate"
    if "ALERT_" in reason:
        alert = reason.partition("ALERT_")[2].replace("_", " ").lower()
        is_ours = "certificate" in alert or alert.endswith(" ca")
        return f"it refused our certificate ({alert})" if is_ours else f"it refused ({alert})"
    if "BAD_RECORD_MAC" in reason or "DECRYPTION_FAILED" in reason:
        return "what came was changed on its way"
    if "PROTOCOL" in reason and "UNSUPPORTED" in reason:
        return "it speaks an older TLS than 1.3"
    return "it does not speak TLS" if any(word in reason for word in _NOT_TLS) else f"TLS failed ({reason.lower()})"
