"""Which peers are trusted: TLS with certificates of the job on every TCP connection of this process, once it is in use.

`use` names a directory with `ca.crt`, `tls.crt` and `tls.key`. From then on every peer must show a certificate that
this authority has signed and that carries the name which our own carries. Any other is refused before a frame is read.
The files are checked for each new connection and read again when they have changed, so that certificates can be
renewed under a running job. Unix sockets stay plain: the kernel identifies the peer.
"""

from __future__ import annotations

import contextlib
import logging
import socket
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bireme.core.certificates import CA_FILE, LEAF_FILE, LEAF_KEY_FILE
from bireme.core.errors import CertificateError

if TYPE_CHECKING:
    import ssl

    from bireme.ps.wire.secured import Secured

log = logging.getLogger(__name__)
HANDSHAKE_S = 5.0
_NO_CHECK_TIME = 0x200000  # OpenSSL's X509_V_FLAG_NO_CHECK_TIME, which Python's ssl has no name for
RENEW = "submit the job again, which renews its certificates, or look at what renews them in your cluster"


@dataclass(frozen=True, slots=True)
class Credentials:
    """What the files of a directory say, ready for use."""

    accepting: ssl.SSLContext
    connecting: ssl.SSLContext
    name: str  # the first DNS name of our own certificate: every peer must carry it
    until: float  # when our own certificate expires, in seconds since 1970


class CertificateDirectory:
    """A directory with certificates, which may be renewed at any time."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        # Threads open several connections at once, and each looks at the files.
        self._lock = threading.Lock()
        self._stamp: tuple[tuple[int, int, int], ...] = ()
        self._loaded: Credentials | None = None
        self._has_warned = False

    def credentials(self, now: float | None = None) -> Credentials:
        """What is to be shown and trusted right now; CertificateError if that is nothing."""
        with self._lock:
            try:
                self._refresh()
            except CertificateError as e:
                # Half a renewal looks so too: what was good a moment ago still is.
                if self._loaded is None:
                    raise
                if not self._has_warned:
                    log.warning("kept previous certificates cause=%r", e.what)
                self._has_warned = True
            loaded = self._loaded
        assert loaded is not None
        if loaded.until <= (time.time() if now is None else now):
            ended = time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime(loaded.until))
            raise CertificateError(
                f"the certificate of this process has expired: it was good until {ended}",
                why=f"peers refuse it; it is {self._directory / LEAF_FILE}",
                fix=RENEW,
            )
        return loaded

    def _refresh(self) -> None:
        try:
            entries = [(self._directory / file).stat() for file in (CA_FILE, LEAF_FILE, LEAF_KEY_FILE)]
        except OSError as e:
            raise _unusable(self._directory, f"{Path(e.filename or '').name}: {e.strerror}") from e
        # The inode too: a mounted Secret is renewed by swapping a link, maybe with equal sizes and times.
        stamp = tuple((entry.st_mtime_ns, entry.st_ino, entry.st_size) for entry in entries)
        if stamp != self._stamp:
            self._loaded = load(self._directory)
            # The stamp is from before the load, so a change during it is read the next time.
            self._stamp, self._has_warned = stamp, False


def load(directory: Path) -> Credentials:
    """Read a directory's files, and prove that they belong together by a handshake with ourselves."""
    import ssl

    try:
        accepting = _context(directory, ssl.PROTOCOL_TLS_SERVER)
        # A session that is taken up again would outlive its certificate, and saves little.
        accepting.num_tickets = 0
        connecting = _context(directory, ssl.PROTOCOL_TLS_CLIENT)
    except ssl.SSLError as e:
        raise _unusable(directory, "they cannot be read, or the key is not the certificate's") from e
    except OSError as e:
        raise _unusable(directory, e.strerror or str(e)) from e
    shown = _own_certificate(directory, accepting, connecting)
    names = [str(value) for kind, value in shown.get("subjectAltName", ()) if kind == "DNS"]
    if not names:
        raise _unusable(directory, "the certificate carries no DNS name")
    return Credentials(accepting, connecting, names[0], ssl.cert_time_to_seconds(shown["notAfter"]))


def _context(directory: Path, side: int) -> ssl.SSLContext:
    import ssl

    context = ssl.SSLContext(side)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.check_hostname = False  # the name of the job is checked instead, at both ends alike
    context.verify_mode = ssl.CERT_REQUIRED
    context.load_verify_locations(directory / CA_FILE)
    context.load_cert_chain(directory / LEAF_FILE, directory / LEAF_KEY_FILE, password=_no_password)
    return context


def _no_password() -> str:
    raise OSError("the key is locked by a password")


def _own_certificate(directory: Path, accepting: ssl.SSLContext, connecting: ssl.SSLContext) -> dict[str, Any]:
    """Our own certificate's fields, as a peer sees them; its expiry is checked later, for each connection."""
    import ssl

    usual = connecting.verify_flags
    for context in (accepting, connecting):
        context.verify_flags = ssl.VerifyFlags(usual | _NO_CHECK_TIME)
    try:
        to_accepting, to_connecting = ssl.MemoryBIO(), ssl.MemoryBIO()
        here = connecting.wrap_bio(to_connecting, to_accepting)
        there = accepting.wrap_bio(to_accepting, to_connecting, server_side=True)
        for side in (here, there, here, there):
            with contextlib.suppress(ssl.SSLWantReadError):
                side.do_handshake()
        return dict(there.getpeercert() or {})
    except ssl.SSLCertVerificationError as e:
        raise _unusable(directory, f"{LEAF_FILE} is not signed by {CA_FILE}: {e.verify_message}") from e
    except (ssl.SSLError, ValueError) as e:
        raise _unusable(directory, f"no handshake is possible with them: {e}") from e
    finally:
        for context in (accepting, connecting):
            context.verify_flags = usual


def _unusable(directory: Path, what: str) -> CertificateError:
    return CertificateError(
        f"the certificates in {directory} cannot be used: {what}",
        why="without them the other processes of the job refuse this one",
        fix=f"it must hold {CA_FILE}, {LEAF_FILE} and {LEAF_KEY_FILE} of one job; {RENEW}",
    )


_place: CertificateDirectory | None = None


def use(directory: Path | None) -> None:
    """From now on secure every TCP connection of this process with the certificates in a directory; None: none.

    Where they cannot be used, the error is logged now, and every connection fails, until good ones are there.
    """
    global _place
    _place = None if directory is None else CertificateDirectory(directory)
    if _place is not None:
        try:
            own = _place.credentials()
        except CertificateError as e:
            log.error("failed to secure connections cause=%r", e.what)
        else:
            ends = time.strftime("%Y-%m-%d", time.gmtime(own.until))
            log.info("secured connections name=%s certificate_until=%s", own.name, ends)


def is_used() -> bool:
    return _place is not None


def good_until() -> float | None:
    """When the certificate of this process expires, in seconds since 1970; None where there is none to expire."""
    try:
        return _place.credentials(now=0.0).until if _place is not None else None
    except CertificateError:
        return None


def secure(sock: socket.socket) -> socket.socket:
    """Secure a connection that we have just opened, where TLS is used; otherwise return it as it is.

    OSError with the reason where the peer is not of this job, CertificateError where our own certificate is no good;
    the connection is closed then.
    """
    if _place is None:
        return sock
    from bireme.ps.wire.secured import Secured

    made = Secured.over(sock)
    try:
        shake_hands(made, is_accepted=False)
    except BaseException:
        made.close()
        raise
    return made


def shake_hands(sock: Secured, *, is_accepted: bool, seconds: float = HANDSHAKE_S) -> None:
    assert _place is not None
    own = _place.credentials()
    context = own.accepting if is_accepted else own.connecting
    sock.shake_hands(context, own.name, seconds=seconds, is_accepted=is_accepted)
