"""Running a command in a pod, with its input and output as streams: the API server's exec, over a WebSocket.

Not lightkube's exec: both directions must move at once, and a failure of the command must be seen while there is still
input to send; one thread does both. The first byte of each message names a channel: 0 input, 1 output, 2 stderr, 3 the
outcome, and 255 followed by 0 ends the input (protocol `v5.channel.k8s.io`, Kubernetes 1.30 and later). As all other
requests it goes through the proxy that the environment names, if any.
"""

from __future__ import annotations

import base64
import json
import os
import select
import socket
import ssl
import struct
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import BinaryIO
from urllib.parse import SplitResult, unquote, urlsplit

from bireme.core.errors import BiremeError, ClusterError, NetworkError

PROTOCOL = "v5.channel.k8s.io"
CHUNK = 256 << 10
CONNECT_S = 20.0
SILENCE_S = 120.0
"""A connection without received bytes or sent input for so long counts as dead."""
PING_S = 20.0
TURN_S = 1.0
HEAD_NBYTES = 64 << 10
STDIN, STDOUT, STDERR, OUTCOME, CLOSE = 0, 1, 2, 3, 255
_TEXT, _BINARY, _CLOSE, _PING, _PONG = 0x1, 0x2, 0x8, 0x9, 0xA


@dataclass(frozen=True, slots=True)
class Login:
    """The address of an API server and the credentials of a user."""

    server: str
    context: ssl.SSLContext | None
    """None for a server without TLS."""
    headers: Mapping[str, str]


def frame(payload: bytes, kind: int = _BINARY) -> bytes:
    """One whole message from a client, masked as the protocol demands."""
    length, mask = len(payload), os.urandom(4)
    if length < 126:
        head = struct.pack(">BB", 0x80 | kind, 0x80 | length)
    elif length < 1 << 16:
        head = struct.pack(">BBH", 0x80 | kind, 0x80 | 126, length)
    else:
        head = struct.pack(">BBQ", 0x80 | kind, 0x80 | 127, length)
    key = int.from_bytes((mask * (length // 4 + 1))[:length], "big")
    return head + mask + (int.from_bytes(payload, "big") ^ key).to_bytes(length, "big")


@dataclass(slots=True)
class Frames:
    """Parses bytes from a server into messages."""

    _buffer: bytearray = field(default_factory=bytearray)
    _message: bytearray = field(default_factory=bytearray)

    def feed(self, data: bytes) -> Iterator[tuple[int, bytes]]:
        """Kind and payload of every message that is complete now."""
        self._buffer += data
        while (message := self._take()) is not None:
            kind, is_last, payload = message
            if kind >= _CLOSE:
                yield kind, payload  # may come between the frames of a message
                continue
            self._message += payload
            if is_last:
                yield kind or _BINARY, bytes(self._message)
                self._message.clear()

    def _take(self) -> tuple[int, bool, bytes] | None:
        if len(self._buffer) < 2:
            return None
        length, at = self._buffer[1] & 0x7F, 2
        if length >= 126:
            at = 4 if length == 126 else 10
            if len(self._buffer) < at:
                return None
            length = int.from_bytes(self._buffer[2:at], "big")
        if len(self._buffer) < at + length:
            return None
        first, payload = self._buffer[0], bytes(self._buffer[at : at + length])
        del self._buffer[: at + length]
        return first & 0x0F, bool(first & 0x80), payload


def execute(login: Login, path: str, stdin: BinaryIO | None, take: Callable[[int, bytes], None]) -> int:
    """Run the command that `path` names; its output goes to `take` by channel. Returns the exit code."""
    sock, rest = _open(login, path)
    with sock:
        return _Session(sock, stdin, take).run(rest)


def _open(login: Login, path: str) -> tuple[socket.socket, bytes]:
    """Connect and switch to WebSocket; returns the socket and the bytes received after the head."""
    where = urlsplit(login.server)
    try:
        sock = _connect(where)
        try:
            if login.context is not None:
                sock = login.context.wrap_socket(sock, server_hostname=where.hostname)
            wanted = {
                "Host": where.netloc,
                "Upgrade": "websocket",
                "Connection": "Upgrade",
                "Sec-WebSocket-Key": base64.b64encode(os.urandom(16)).decode(),
                "Sec-WebSocket-Version": "13",
                "Sec-WebSocket-Protocol": PROTOCOL,
                **login.headers,
            }
            _send_head(sock, f"GET {where.path.rstrip('/')}{path} HTTP/1.1", wanted)
            return sock, _switched(sock)
        except BaseException:
            sock.close()
            raise
    except OSError as e:
        raise NetworkError(f"cannot reach the API server: {e}") from e


def _send_head(sock: socket.socket, first: str, headers: Mapping[str, str]) -> None:
    lines = [first, *(f"{name}: {value}" for name, value in headers.items())]
    sock.sendall("\r\n".join([*lines, "", ""]).encode())


def _read_head(sock: socket.socket, whose: str) -> tuple[str, bytes, bytes]:
    """Read an answer up to the end of its head: status line, head, and the bytes received after it."""
    answer = b""
    while b"\r\n\r\n" not in answer:
        chunk = sock.recv(65536)
        if not chunk or len(answer) > HEAD_NBYTES:
            raise NetworkError(f"{whose} hung up")
        answer += chunk
    head, _, rest = answer.partition(b"\r\n\r\n")
    return head.split(b"\r\n", 1)[0].decode(errors="replace"), head, rest


def _connect(where: SplitResult) -> socket.socket:
    """A connection to the API server, through a proxy where there is one."""
    host, port = where.hostname or "", where.port or (443 if where.scheme == "https" else 80)
    proxy = proxy_of(where)
    if proxy is None:
        return socket.create_connection((host, port), timeout=CONNECT_S)
    sock = socket.create_connection((proxy.hostname, proxy.port or 80), timeout=CONNECT_S)
    try:
        _through(sock, proxy, f"[{host}]:{port}" if ":" in host else f"{host}:{port}")
    except BaseException:
        sock.close()
        raise
    return sock


def proxy_of(where: SplitResult) -> SplitResult | None:
    """The proxy that the environment names for a server: HTTPS_PROXY and the like, but for hosts in NO_PROXY."""
    from urllib.request import getproxies, proxy_bypass

    named = getproxies()
    address = named.get(where.scheme) or named.get("all")
    if not address or proxy_bypass(where.netloc.rpartition("@")[2]) or proxy_bypass(where.hostname or ""):
        return None
    proxy = urlsplit(address if "://" in address else f"http://{address}")
    if proxy.scheme != "http":
        raise ClusterError(
            f"commands in pods cannot be run through a proxy of the kind {proxy.scheme}://",
            why=f"the surroundings name {proxy.scheme}://{proxy.netloc.rpartition('@')[2]}",
            fix="name an http:// proxy, or the API server's host in NO_PROXY",
        )
    return proxy


def _through(sock: socket.socket, proxy: SplitResult, target: str) -> None:
    """Open a tunnel through a proxy by CONNECT."""
    headers = {"Host": target}
    if proxy.username is not None:
        secret = f"{unquote(proxy.username)}:{unquote(proxy.password or '')}"
        headers["Proxy-Authorization"] = f"Basic {base64.b64encode(secret.encode()).decode()}"
    name = proxy.netloc.rpartition("@")[2]
    _send_head(sock, f"CONNECT {target} HTTP/1.1", headers)
    status, _, _ = _read_head(sock, f"the proxy {name}")
    code, _, reason = status.partition(" ")[2].partition(" ")
    if not code.startswith("2"):
        kind = NetworkError if code.startswith("5") else ClusterError
        fix = "is HTTPS_PROXY right? NO_PROXY names hosts that are reached without it"
        raise kind(f"the proxy {name} does not connect to {target}: {code} {reason}".rstrip(), fix=fix)


def _switched(sock: socket.socket) -> bytes:
    """Read the answer to the upgrade request; bytes after it belong to the new protocol."""
    status, head, rest = _read_head(sock, "the API server")
    if " 101 " in status:
        if f"\r\nsec-websocket-protocol: {PROTOCOL}".encode() not in head.lower():
            raise ClusterError("the API server is too old to run commands in pods", fix="Kubernetes 1.30 is needed")
        return rest
    try:
        message = json.loads(rest or sock.recv(65536))["message"]
    except (ValueError, KeyError, TypeError, OSError):
        message = rest.decode(errors="replace")
    raise _refused(status.split(" ")[1] if " " in status else "", message)


def _refused(code: str, message: str) -> BiremeError:
    """The error for a refused command; a NetworkError where a retry may help."""
    if code == "403":
        fix = "`bireme submit --permissions` prints a Role with all that is needed"
        return ClusterError(f"a command in a pod was refused: {message}", fix=fix)
    kind = NetworkError if code == "429" or code.startswith("5") else ClusterError
    return kind(f"a command in a pod was refused ({code}): {message}")


class _Session:
    """An open connection; one loop moves both directions."""

    def __init__(
        self,
        sock: socket.socket,
        stdin: BinaryIO | None,
        take: Callable[[int, bytes], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._sock = sock
        self._stdin = stdin
        self._take = take
        self._clock = clock
        self._frames = Frames()
        self._carries_input = False
        """Whether the pending bytes hold input, and not only control frames."""
        self._out = bytearray() if stdin is not None else bytearray(frame(bytes((CLOSE, STDIN))))
        self._code: int | None = None
        self._heard = self._pinged = clock()

    def run(self, first: bytes) -> int:
        self._sock.setblocking(False)
        try:
            self._hear(first)
            while self._code is None:
                self._turn()
        except (OSError, EOFError) as e:
            if self._code is None:
                raise NetworkError(f"the connection to the pod was lost: {e}") from e
        return self._code or 0

    def _turn(self) -> None:
        if not self._out:
            self._fill()
        pending = isinstance(self._sock, ssl.SSLSocket) and self._sock.pending()
        wants = [self._sock] if self._out else []
        readable, writable, _ = select.select([self._sock], wants, [], 0 if pending else TURN_S)
        if writable:
            self._send()
        if readable or pending:
            self._receive()
        self._keep_alive()

    def _fill(self) -> None:
        if self._stdin is None:
            return
        chunk = self._stdin.read(CHUNK)
        if chunk:
            self._out += frame(bytes((STDIN,)) + chunk)
            self._carries_input = True
        else:
            self._stdin = None
            self._out += frame(bytes((CLOSE, STDIN)))

    def _send(self) -> None:
        try:
            sent = self._sock.send(self._out)
        except (ssl.SSLWantReadError, ssl.SSLWantWriteError, BlockingIOError):
            return
        del self._out[:sent]
        if self._carries_input:
            self._heard = self._clock()  # a peer that takes input is alive; a ping leaves into a dead connection too
        self._carries_input = self._carries_input and bool(self._out)

    def _receive(self) -> None:
        try:
            data = self._sock.recv(CHUNK)
        except (ssl.SSLWantReadError, ssl.SSLWantWriteError, BlockingIOError):
            return
        if not data:
            raise EOFError("the API server hung up")
        self._hear(data)

    def _hear(self, data: bytes) -> None:
        self._heard = self._clock()
        for kind, payload in self._frames.feed(data):
            if kind == _CLOSE:
                raise EOFError("the API server closed it")
            if kind == _PING:
                self._out += frame(payload, _PONG)
            elif kind in (_TEXT, _BINARY) and payload:
                self._sort(payload[0], payload[1:])

    def _sort(self, channel: int, content: bytes) -> None:
        if channel == OUTCOME:
            self._code = exit_code(content)
        elif channel in (STDOUT, STDERR) and content:
            self._take(channel, content)

    def _keep_alive(self) -> None:
        now = self._clock()
        if now - self._heard > SILENCE_S:
            raise TimeoutError(f"nothing for {SILENCE_S:.0f} s")
        if now - max(self._pinged, self._heard) > PING_S and not self._out:
            self._pinged = now
            self._out += frame(b"", _PING)


def exit_code(outcome: bytes) -> int:
    """The exit code in a command's outcome; a command that could not be run is an error."""
    status = json.loads(outcome)
    if status.get("status") == "Success":
        return 0
    for cause in (status.get("details") or {}).get("causes") or ():
        if cause.get("reason") == "ExitCode":
            return int(cause["message"])
    message = str(status.get("message"))
    # The container has just ended, or its machine does not answer: a retry may find another one.
    kind = NetworkError if "unable to upgrade connection" in message else ClusterError
    raise kind(f"a command in a pod could not be run: {message}")
