"""Exec with a server of the same library; silence, refusals and proxies with sockets on loopback."""

from __future__ import annotations

import contextlib
import gc
import io
import itertools
import json
import logging
import select
import socket
import ssl
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import BinaryIO
from urllib.parse import urlsplit

import pytest
from hypothesis import given
from hypothesis import strategies as st
from websockets.client import ClientProtocol
from websockets.frames import Frame, Opcode
from websockets.http11 import Request
from websockets.protocol import OPEN
from websockets.server import ServerProtocol
from websockets.typing import Subprotocol
from websockets.uri import parse_uri
from websockets.utils import accept_key

from bireme.core.certificates import Pair, make_ca, make_leaf
from bireme.core.errors import ClusterError, NetworkError
from bireme.kube.api import pod_exec
from bireme.kube.api.pod_exec import Login, _Session, execute, exit_code, proxy_of

SUCCESS = b"\x03" + b'{"status": "Success"}'


def sent(payload: bytes, kind: Opcode = Opcode.BINARY, *, is_last: bool = True) -> bytes:
    """A server's frame."""
    return Frame(kind, payload, fin=is_last).serialize(mask=False)


def session(
    sock: socket.socket,
    stdin: BinaryIO | None = None,
    take: Callable[[int, bytes], None] = lambda *_: None,
    now: Callable[[], float] | None = None,
) -> _Session:
    """A session on a connection that has switched to WebSocket."""
    protocol = ClientProtocol(parse_uri("ws://x/"), state=OPEN, max_size=pod_exec.LONGEST_MESSAGE)
    return _Session(sock, protocol, stdin, take, *([now] if now else []))


@given(st.lists(st.binary(min_size=1, max_size=300), max_size=6), st.data())
def test_messages_come_whole_however_the_bytes_are_cut(messages: list[bytes], data: st.DataObject) -> None:
    stream, found = b"".join(sent(b"\x01" + m) for m in messages) + sent(SUCCESS), []
    ours, theirs = socket.socketpair()
    with ours, theirs:
        one = session(ours, take=lambda _, content: found.append(content))
        while stream:
            cut = data.draw(st.integers(1, len(stream)))
            theirs.sendall(stream[:cut])
            stream = stream[cut:]
            one._receive()
        assert one.run() == 0
    assert found == messages


def test_a_message_in_parts_is_put_together_around_a_ping(pair: tuple[socket.socket, socket.socket]) -> None:
    ours, theirs = pair
    heard: list[bytes] = []
    parts = sent(b"\x01one ", is_last=False) + sent(b"?", Opcode.PING) + sent(b"two", Opcode.CONT)
    theirs.sendall(parts + sent(SUCCESS))
    assert session(ours, take=lambda _, content: heard.append(content)).run() == 0
    assert heard == [b"one two"]


def test_an_endless_message_is_refused_before_it_fills_memory(
    pair: tuple[socket.socket, socket.socket], monkeypatch: pytest.MonkeyPatch
) -> None:
    ours, theirs = pair
    monkeypatch.setattr(pod_exec, "LONGEST_MESSAGE", 1000)
    theirs.sendall(sent(b"\x01" + bytes(600), is_last=False) + sent(bytes(600), Opcode.CONT, is_last=False))
    with pytest.raises(NetworkError, match="exceeds limit"):
        session(ours).run()


def test_a_failed_command_with_unread_input_ends_at_once(
    pair: tuple[socket.socket, socket.socket],
) -> None:
    """The server reads nothing, so what is sent has filled all buffers when the outcome comes."""
    ours, theirs = pair
    status = {"status": "Failure", "details": {"causes": [{"reason": "ExitCode", "message": "17"}]}}

    heard: list[tuple[int, bytes]] = []

    def outcome_when_stuck() -> float:
        if not select.select([], [ours], [], 0)[1]:
            theirs.sendall(sent(b"\x02no space") + sent(b"\x03" + json.dumps(status).encode()))
        return 0.0

    with Path("/dev/zero").open("rb") as endless:
        one = session(ours, endless, lambda *what: heard.append(what), outcome_when_stuck)
        assert one.run() == 17
    assert heard[0] == (2, b"no space")
    assert len(one._out) <= pod_exec.CHUNK + 100, "no more than one chunk waits in memory"


def test_an_outcome_is_an_exit_code_or_an_error() -> None:
    causes = {"causes": [{"reason": "ExitCode", "message": "5"}]}
    assert exit_code(b'{"status": "Success"}') == 0
    assert exit_code(json.dumps({"status": "Failure", "details": causes}).encode()) == 5
    with pytest.raises(ClusterError, match="no such file"):
        exit_code(b'{"status": "Failure", "message": "no such file"}')
    with pytest.raises(NetworkError, match="container not found"):
        exit_code(b'{"status": "Failure", "message": "unable to upgrade connection: container not found"}')


# Silence


@pytest.fixture
def pair(monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[socket.socket, socket.socket]]:
    """Both ends of a connection, without pauses between turns."""
    monkeypatch.setattr(pod_exec, "TURN_S", 0.0)
    ours, theirs = socket.socketpair()
    with ours, theirs:
        yield ours, theirs


def clock(step_s: float, looks: int = 1000) -> Callable[[], float]:
    """A clock that advances with every reading, up to a limit of readings."""
    ticks = itertools.count()

    def now() -> float:
        tick = next(ticks)
        assert tick < looks, "the silence was not noticed"
        return tick * step_s

    return now


def test_a_peer_that_is_gone_is_noticed_although_pings_leave(pair: tuple[socket.socket, socket.socket]) -> None:
    ours, theirs = pair
    with pytest.raises(NetworkError, match="nothing for 120 s"):
        session(ours, now=clock(10.0, looks=30)).run()
    theirs.setblocking(False)
    assert theirs.recv(1 << 16).count(b"\x89\x80") >= 4, "it has been asked"


def test_a_peer_that_answers_pings_is_waited_for(pair: tuple[socket.socket, socket.socket]) -> None:
    ours, theirs = pair
    theirs.setblocking(False)
    now, asked = clock(10.0), 0

    def answering() -> float:
        nonlocal asked
        try:
            asked += theirs.recv(1 << 16).count(b"\x89\x80")
            theirs.sendall(sent(SUCCESS) if asked > 20 else sent(b"", Opcode.PONG))
        except BlockingIOError:
            pass
        return now()

    assert session(ours, now=answering).run() == 0
    assert asked > 20


def test_input_that_is_taken_is_a_sign_of_life(pair: tuple[socket.socket, socket.socket]) -> None:
    ours, theirs = pair
    theirs.setblocking(False)
    now, taken = clock(10.0), 0

    def taking() -> float:
        nonlocal taken
        with contextlib.suppress(BlockingIOError):
            taken += len(theirs.recv(1 << 17))
        if taken > 8 << 20:
            theirs.sendall(sent(SUCCESS))
        return now()

    assert session(ours, io.BytesIO(bytes(8 << 20)), now=taking).run() == 0
    assert now() > 10 * pod_exec.SILENCE_S / 2


# Opening


def write_leaf(path: Path, leaf: Pair) -> Path:
    path.write_bytes(leaf.certificate + leaf.key)
    return path


Handler = Callable[[socket.socket], None]


@pytest.fixture
def serve() -> Iterator[Callable[[Handler], int]]:
    """Start something that takes one connection on loopback; its port."""
    threads: list[threading.Thread] = []
    failures: list[BaseException] = []

    def start(handler: Handler) -> int:
        listener = socket.create_server(("127.0.0.1", 0))
        listener.settimeout(20)

        def take() -> None:
            try:
                with listener, listener.accept()[0] as sock:
                    sock.settimeout(10)
                    handler(sock)
            except BaseException as e:
                failures.append(e)

        threads.append(threading.Thread(target=take))
        threads[-1].start()
        return int(listener.getsockname()[1])

    yield start
    for thread in threads:
        thread.join()
    assert failures == []


def head_of(sock: socket.socket) -> str:
    found = b""
    while not found.endswith(b"\r\n\r\n"):
        found += sock.recv(1)
    return found.decode()


def switch(sock: socket.socket) -> tuple[ServerProtocol, Request]:
    """Accept a WebSocket as the API server does; the answer is still to be sent, with what follows it."""
    quiet = logging.getLogger("tests.exec-server")  # it would log the token
    quiet.setLevel(logging.WARNING)
    protocol = ServerProtocol(subprotocols=[Subprotocol("v5.channel.k8s.io")], logger=quiet)
    while not (events := protocol.events_received()):
        protocol.receive_data(sock.recv(1 << 16))
    (request,) = events
    assert isinstance(request, Request)
    protocol.send_response(protocol.accept(request))
    return protocol, request


def says_hello(sock: socket.socket) -> None:
    protocol, request = switch(sock)
    assert request.path == "/exec?command=x"
    protocol.send_binary(b"\x01hello")
    protocol.send_binary(SUCCESS)
    sock.sendall(b"".join(protocol.data_to_send()))


def test_input_ends_while_output_is_still_to_come(serve: Callable[[Handler], int]) -> None:
    data = bytes(range(256)) * 4000

    def answer(sock: socket.socket) -> None:
        protocol, _ = switch(sock)
        got = bytearray()
        while True:
            sock.sendall(b"".join(protocol.data_to_send()))
            protocol.receive_data(sock.recv(1 << 16))
            messages = [bytes(each.data) for each in protocol.events_received() if isinstance(each, Frame)]
            assert all(each[:1] == b"\x00" for each in messages[:-1])
            got += b"".join(each[1:] for each in messages if each[:1] == b"\x00")
            if messages and messages[-1] == b"\xff\x00":
                break
        for start in range(0, len(got), 32 << 10):
            protocol.send_binary(b"\x01" + got[start : start + (32 << 10)])
        protocol.send_binary(SUCCESS)
        sock.sendall(b"".join(protocol.data_to_send()))

    heard = bytearray()
    login = Login(f"http://127.0.0.1:{serve(answer)}", None, {})
    assert execute(login, "/exec?command=x", io.BytesIO(data), lambda _, content: heard.extend(content)) == 0
    assert heard == data


def test_a_server_without_a_protocol_that_ends_input_is_too_old(serve: Callable[[Handler], int]) -> None:
    def answer(sock: socket.socket) -> None:
        accept = "HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
        key = next(line for line in head_of(sock).splitlines() if line.lower().startswith("sec-websocket-key"))
        sock.sendall(f"{accept}Sec-WebSocket-Accept: {accept_key(key.split()[1])}\r\n\r\n".encode())

    with pytest.raises(ClusterError, match="too old"):
        execute(Login(f"http://127.0.0.1:{serve(answer)}", None, {}), "/exec", None, lambda *_: None)


def test_a_certificate_and_a_token_are_sent_and_not_logged(
    serve: Callable[[Handler], int], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    ca = make_ca("test")
    server, client = (write_leaf(tmp_path / name, make_leaf(ca, [name])) for name in ("api.invalid", "me"))
    there = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    there.load_cert_chain(server)
    there.load_verify_locations(cadata=ca.certificate.decode())
    there.verify_mode = ssl.CERT_REQUIRED
    tokens: list[str] = []

    def answer(sock: socket.socket) -> None:
        with there.wrap_socket(sock, server_side=True) as secured:
            protocol, request = switch(secured)
            tokens.append(request.headers["Authorization"])
            protocol.send_binary(SUCCESS)
            secured.sendall(b"".join(protocol.data_to_send()))

    here = ssl.create_default_context(cadata=ca.certificate.decode())
    here.check_hostname = False
    here.load_cert_chain(client)
    with caplog.at_level(logging.DEBUG):
        login = Login(f"https://127.0.0.1:{serve(answer)}", here, {"Authorization": "Bearer mine"})
        assert execute(login, "/exec?command=x", None, lambda *_: None) == 0
    assert tokens == ["Bearer mine"] and "mine" not in caplog.text


@pytest.mark.parametrize(
    ("status", "kind"),
    [
        ("400 Bad Request", ClusterError),
        ("403 Forbidden", ClusterError),
        ("502 Bad Gateway", NetworkError),
    ],
)
def test_a_refusal_is_reported_and_leaves_no_socket_open(
    serve: Callable[[Handler], int], status: str, kind: type[Exception]
) -> None:
    def refuse(sock: socket.socket) -> None:
        head_of(sock)
        body = '{"message": "no such container"}'
        sock.sendall(f"HTTP/1.1 {status}\r\nContent-Length: {len(body)}\r\n\r\n{body}".encode())
        assert sock.recv(1) == b"", "it is left"

    with pytest.raises(kind, match="no such container"):
        execute(Login(f"http://127.0.0.1:{serve(refuse)}", None, {}), "/exec", None, lambda *_: None)
    gc.collect()  # a socket that is left open warns here, and a warning is an error


# Proxies


@pytest.fixture
def surroundings(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    for name in ("http_proxy", "https_proxy", "all_proxy", "no_proxy"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)
    return monkeypatch


def pump(source: socket.socket, sink: socket.socket) -> None:
    while data := source.recv(1 << 16):
        sink.sendall(data)
    sink.shutdown(socket.SHUT_WR)


def test_a_command_goes_through_the_proxy_like_all_else(
    serve: Callable[[Handler], int], surroundings: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    ca = make_ca("test")
    there = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    there.load_cert_chain(write_leaf(tmp_path / "leaf", make_leaf(ca, ["api.invalid"])))
    asked: list[str] = []

    def answer(sock: socket.socket) -> None:
        with there.wrap_socket(sock, server_side=True) as secured:
            says_hello(secured)

    server = serve(answer)

    def pass_on(sock: socket.socket) -> None:
        asked.append(head_of(sock))
        with socket.create_connection(("127.0.0.1", server)) as onward:
            sock.sendall(b"HTTP/1.1 200 Connection established\r\n\r\n")
            back = threading.Thread(target=pump, args=(onward, sock))
            back.start()
            pump(sock, onward)
            back.join()

    surroundings.setenv("HTTPS_PROXY", f"http://me:s%3acret@127.0.0.1:{serve(pass_on)}")
    trusting = ssl.create_default_context(cadata=ca.certificate.decode())
    heard: list[bytes] = []
    login = Login("https://api.invalid:6443", trusting, {"Authorization": "Bearer mine"})
    assert execute(login, "/exec?command=x", None, lambda _, content: heard.append(content)) == 0
    assert heard == [b"hello"]
    assert asked[0].startswith("CONNECT api.invalid:6443 HTTP/1.")
    assert "Proxy-Authorization: Basic bWU6czpjcmV0" in asked[0] and "Bearer" not in asked[0]


@pytest.mark.parametrize(("status", "kind"), [("407 Who are you", ClusterError), ("503 Later", NetworkError)])
def test_a_proxy_that_refuses_is_named(
    serve: Callable[[Handler], int], surroundings: pytest.MonkeyPatch, status: str, kind: type[Exception]
) -> None:
    def refuse(sock: socket.socket) -> None:
        head_of(sock)
        sock.sendall(f"HTTP/1.1 {status}\r\n\r\n".encode())

    port = serve(refuse)
    surroundings.setenv("https_proxy", f"me:secret@127.0.0.1:{port}")
    with pytest.raises(kind, match=f"the proxy 127.0.0.1:{port} does not connect to api.invalid:443: {status}"):
        execute(Login("https://api.invalid", None, {}), "/exec", None, lambda *_: None)


def test_hosts_in_no_proxy_are_reached_directly(surroundings: pytest.MonkeyPatch) -> None:
    assert proxy_of(urlsplit("https://api.invalid")) is None
    surroundings.setenv("https_proxy", "http://proxy:3128")
    surroundings.setenv("no_proxy", "near.invalid,10.0.0.1,::1,far.invalid:6443")
    found = proxy_of(urlsplit("https://api.invalid"))
    assert found is not None and (found.hostname, found.port) == ("proxy", 3128)
    near = ("api.near.invalid", "10.0.0.1:6443", "[::1]:6443", "far.invalid:6443")
    assert [proxy_of(urlsplit(f"https://{host}")) for host in near] == [None] * 4
    assert proxy_of(urlsplit("http://api.invalid")) is None, "that is for https"
    surroundings.setenv("all_proxy", "socks5://other:1080")
    with pytest.raises(ClusterError, match="a proxy of the kind socks5://"):
        proxy_of(urlsplit("http://api.invalid"))
