"""Run a command in a pod, with its input and output as streams: the API server's exec, over a WebSocket.

The first byte of each message names a channel: 0 input, 1 output, 2 stderr, 3 the outcome, and 255 followed by 0 ends
the input (protocol `v5.channel.k8s.io`, Kubernetes 1.30 and later). The library `websockets` does the handshake and the
frames, but one loop here moves the bytes: its own connections hold a lock while they send, and a command that fails
without reading its input would block them before its outcome is read. lightkube's exec has no input that ends. As all
other requests it goes through the proxy that the environment names, if any.
"""

from __future__ import annotations

import base64
import http.client
import json
import logging
import re
import select
import socket
import ssl
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import BinaryIO
from urllib.parse import SplitResult, unquote, urlsplit

from websockets.client import ClientProtocol
from websockets.exceptions import InvalidStatus, NegotiationError
from websockets.frames import Frame, Opcode
from websockets.protocol import CONNECTING, OPEN
from websockets.typing import Subprotocol
from websockets.uri import parse_uri

from bireme.core.errors import BiremeError, ClusterError, NetworkError

PROTOCOL = Subprotocol("v5.channel.k8s.io")
CHUNK = 256 << 10
LONGEST_MESSAGE = 16 << 20
"""The API server's are of 32 KiB; a limit keeps memory bounded whatever answers."""
CONNECT_S = 20.0
SILENCE_S = 120.0
"""A connection without received bytes or sent input for so long counts as dead."""
PING_S = 20.0
TURN_S = 1.0
STDIN, STDOUT, STDERR, OUTCOME, CLOSE = 0, 1, 2, 3, 255
_frames_log = logging.getLogger(f"{__name__}.frames")
# At DEBUG the library logs the headers of the handshake, and with them the user's token.
_frames_log.setLevel(logging.WARNING)


@dataclass(frozen=True, slots=True)
class Login:
    """The address of an API server and the credentials of a user."""

    server: str
    context: ssl.SSLContext | None
    """None for a server without TLS."""
    headers: Mapping[str, str]


def execute(login: Login, path: str, stdin: BinaryIO | None, take: Callable[[int, bytes], None]) -> int:
    """Run the command that `path` names; its output goes to `take` by channel. Returns the exit code."""
    where = urlsplit(login.server)
    uri = f"{'wss' if where.scheme == 'https' else 'ws'}://{where.netloc}{where.path.rstrip('/')}{path}"
    protocol = ClientProtocol(parse_uri(uri), subprotocols=[PROTOCOL], max_size=LONGEST_MESSAGE, logger=_frames_log)
    try:
        sock = _connect(where, login.context)
        try:
            _switch(sock, protocol, login.headers)
        except BaseException:
            sock.close()
            raise
    except OSError as e:
        raise NetworkError(f"cannot reach the API server: {e}") from e
    with sock:
        return _Session(sock, protocol, stdin, take).run()


def _connect(where: SplitResult, context: ssl.SSLContext | None) -> socket.socket:
    host, port = where.hostname or "", where.port or (443 if where.scheme == "https" else 80)
    proxy = proxy_of(where)
    nearest = (host, port) if proxy is None else (proxy.hostname or "", proxy.port or 80)
    connection = http.client.HTTPConnection(*nearest, timeout=CONNECT_S)
    if proxy is not None:
        headers = {}
        if proxy.username is not None:
            secret = f"{unquote(proxy.username)}:{unquote(proxy.password or '')}"
            headers["Proxy-Authorization"] = f"Basic {base64.b64encode(secret.encode()).decode()}"
        connection.set_tunnel(f"[{host}]" if ":" in host else host, port, headers)
    try:
        connection.connect()
    except OSError as e:
        if proxy is not None and (refused := re.fullmatch(r"Tunnel connection failed: (\d+) (.*)", str(e))):
            name = proxy.netloc.rpartition("@")[2]
            kind = NetworkError if refused[1].startswith("5") else ClusterError
            fix = "is HTTPS_PROXY right? NO_PROXY names hosts that are reached without it"
            what = f"the proxy {name} does not connect to {host}:{port}: {refused[1]} {refused[2]}"
            raise kind(what.rstrip(), fix=fix) from e
        raise
    sock: socket.socket = connection.sock
    return sock if context is None else context.wrap_socket(sock, server_hostname=host)


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
            why=f"the environment names {proxy.scheme}://{proxy.netloc.rpartition('@')[2]}",
            fix="name an http:// proxy, or the API server's host in NO_PROXY",
        )
    return proxy


def _switch(sock: socket.socket, protocol: ClientProtocol, headers: Mapping[str, str]) -> None:
    """Ask for a WebSocket and read the answer; frames that came with it wait in `protocol`."""
    request = protocol.connect()
    request.headers.update(headers)
    protocol.send_request(request)
    sock.sendall(b"".join(protocol.data_to_send()))
    while protocol.state is CONNECTING and protocol.handshake_exc is None:
        if data := sock.recv(CHUNK):
            protocol.receive_data(data)
        else:
            protocol.receive_eof()
    failure = protocol.handshake_exc
    if isinstance(failure, InvalidStatus):
        answer = failure.response
        try:
            message = json.loads(answer.body)["message"]
        except (ValueError, KeyError, TypeError):
            message = bytes(answer.body).decode(errors="replace")
        raise _refused(answer.status_code, message) from failure
    if isinstance(failure, NegotiationError) or (failure is None and protocol.subprotocol is None):
        raise ClusterError("the API server is too old to run commands in pods", fix="Kubernetes 1.30 is needed")
    if failure is not None:
        raise NetworkError(f"the API server hung up, or something else answered: {failure}") from failure


def _refused(code: int, message: str) -> BiremeError:
    """The error for a refused command; a NetworkError where a retry may help."""
    if code == 403:
        fix = "`bireme submit --permissions` prints a Role with all that is needed"
        return ClusterError(f"a command in a pod was refused: {message}", fix=fix)
    kind = NetworkError if code == 429 or code >= 500 else ClusterError
    return kind(f"a command in a pod was refused ({code}): {message}")


class _Session:
    """An open connection; one loop moves both directions."""

    def __init__(
        self,
        sock: socket.socket,
        protocol: ClientProtocol,
        stdin: BinaryIO | None,
        take: Callable[[int, bytes], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._sock = sock
        self._protocol = protocol
        self._stdin = stdin
        self._take = take
        self._clock = clock
        self._message = bytearray()
        self._carries_input = False
        """Whether the pending bytes hold input, and not only control frames."""
        self._out = bytearray()
        self._code: int | None = None
        self._heard = self._pinged = clock()

    def run(self) -> int:
        self._sock.setblocking(False)
        if self._stdin is None:
            self._protocol.send_binary(bytes((CLOSE, STDIN)))
        try:
            self._process()
            while self._code is None:
                self._turn()
        except (OSError, EOFError) as e:
            if self._code is None:
                raise NetworkError(f"the connection to the pod was lost: {e}") from e
        return self._code or 0

    def _turn(self) -> None:
        # Input is read only when all before it has left: no more than one chunk is ever in memory.
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
        if chunk := self._stdin.read(CHUNK):
            self._protocol.send_binary(bytes((STDIN,)) + chunk)
            self._carries_input = True
        else:
            self._stdin = None
            self._protocol.send_binary(bytes((CLOSE, STDIN)))
        self._collect()

    def _collect(self) -> None:
        for data in self._protocol.data_to_send():
            self._out += data

    def _send(self) -> None:
        try:
            sent = self._sock.send(self._out)
        except (ssl.SSLWantReadError, ssl.SSLWantWriteError, BlockingIOError):
            return  # `select` sees the socket, not TLS: a record may still be incomplete
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
        self._heard = self._clock()
        self._protocol.receive_data(data)
        self._process()

    def _process(self) -> None:
        """Pass on the messages that are complete, and pick up what the protocol answers to pings."""
        for event in self._protocol.events_received():
            if isinstance(event, Frame) and event.opcode in (Opcode.TEXT, Opcode.BINARY, Opcode.CONT):
                self._message += event.data
                if event.fin and self._message:
                    self._sort(self._message[0], bytes(self._message[1:]))
                    self._message.clear()
        self._collect()
        if self._protocol.state is not OPEN:
            raise EOFError(str(self._protocol.parser_exc or "the API server closed it"))

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
            self._protocol.send_ping(b"")
            self._collect()


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
