"""The WebSocket frames of exec without a socket; silence, refusals and proxies with one on loopback."""

from __future__ import annotations

import contextlib
import gc
import io
import itertools
import json
import socket
import ssl
import struct
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bireme.core.certificates import make_ca, make_leaf
from bireme.core.errors import ClusterError, NetworkError
from bireme.kube.api import pod_exec
from bireme.kube.api.pod_exec import Frames, Login, _Session, execute, exit_code, frame, proxy_of


def unmasked(data: bytes) -> tuple[int, bytes]:
    """A server's view of a client's frame."""
    length, at = data[1] & 0x7F, 2
    if length == 126:
        (length,), at = struct.unpack(">H", data[2:4]), 4
    elif length == 127:
        (length,), at = struct.unpack(">Q", data[2:10]), 10
    mask, body = data[at : at + 4], data[at + 4 :]
    assert data[1] & 0x80 and len(body) == length
    return data[0] & 0x0F, bytes(byte ^ mask[i % 4] for i, byte in enumerate(body))


@pytest.mark.parametrize("nbytes", [0, 1, 3, 125, 126, 127, 65535, 65536])
def test_a_frame_is_what_a_server_reads(nbytes: int) -> None:
    payload = bytes(i % 251 for i in range(nbytes))
    assert unmasked(frame(payload)) == (2, payload)


def sent(payload: bytes, kind: int = 2, *, is_last: bool = True) -> bytes:
    """A server's frame."""
    head = bytes((kind | (0x80 if is_last else 0),))
    if len(payload) < 126:
        return head + bytes((len(payload),)) + payload
    return head + b"\x7e" + struct.pack(">H", len(payload)) + payload


@given(st.lists(st.binary(max_size=300), max_size=6), st.data())
def test_messages_come_whole_however_the_bytes_are_cut(messages: list[bytes], data: st.DataObject) -> None:
    stream, frames, found = b"".join(sent(m) for m in messages), Frames(), []
    while stream:
        cut = data.draw(st.integers(1, len(stream)))
        found += list(frames.feed(stream[:cut]))
        stream = stream[cut:]
    assert found == [(2, m) for m in messages]


def test_a_message_in_parts_is_put_together_around_a_ping() -> None:
    stream = sent(b"one ", is_last=False) + sent(b"?", 9) + sent(b"two", 0)
    assert list(Frames().feed(stream)) == [(9, b"?"), (2, b"one two")]


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
    """Both ends of a connection, and nobody who waits."""
    monkeypatch.setattr(pod_exec, "TURN_S", 0.0)
    ours, theirs = socket.socketpair()
    with ours, theirs:
        yield ours, theirs


def clock(step_s: float, looks: int = 1000) -> Callable[[], float]:
    """A clock that goes on whenever it is looked at; a test that looks for ever fails."""
    ticks = itertools.count()

    def now() -> float:
        tick = next(ticks)
        assert tick < looks, "nobody has noticed the silence"
        return tick * step_s

    return now


def test_a_peer_that_is_gone_is_noticed_although_pings_leave(pair: tuple[socket.socket, socket.socket]) -> None:
    ours, theirs = pair
    with pytest.raises(NetworkError, match="nothing for 120 s"):
        _Session(ours, None, lambda *_: None, clock(10.0, looks=30)).run(b"")
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
            theirs.sendall(sent(b"\x03" + b'{"status": "Success"}') if asked > 20 else sent(b"", 0xA))
        except BlockingIOError:
            pass
        return now()

    assert _Session(ours, None, lambda *_: None, answering).run(b"") == 0
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
            theirs.sendall(sent(b"\x03" + b'{"status": "Success"}'))
        return now()

    assert _Session(ours, io.BytesIO(bytes(8 << 20)), lambda *_: None, taking).run(b"") == 0
    assert now() > 10 * pod_exec.SILENCE_S / 2


# Opening


Handler = Callable[[socket.socket], None]
SWITCHED = b"HTTP/1.1 101 Switching\r\nSec-WebSocket-Protocol: v5.channel.k8s.io\r\n\r\n"


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


def says_hello(sock: socket.socket) -> None:
    assert "/exec?command=x" in head_of(sock)
    sock.sendall(SWITCHED + sent(b"\x01hello") + sent(b"\x03" + b'{"status": "Success"}'))


@pytest.mark.parametrize(
    ("answer", "kind"),
    [
        (b"HTTP/1.1 400 Bad Request\r\n\r\n" + b'{"message": "no such container"}', ClusterError),
        (b"HTTP/1.1 403 Forbidden\r\n\r\n" + b'{"message": "no such container"}', ClusterError),
        (b"HTTP/1.1 502 Bad Gateway\r\n\r\n" + b'{"message": "no such container"}', NetworkError),
    ],
)
def test_a_refusal_is_told_and_leaves_no_socket_open(
    serve: Callable[[Handler], int], answer: bytes, kind: type[Exception]
) -> None:
    def refuse(sock: socket.socket) -> None:
        head_of(sock)
        sock.sendall(answer)
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


def test_a_command_goes_through_the_proxy_that_all_else_goes_through(
    serve: Callable[[Handler], int], surroundings: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    ca = make_ca("test")
    leaf = make_leaf(ca, ["api.invalid"])
    (tmp_path / "leaf").write_bytes(leaf.certificate + leaf.key)
    there = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    there.load_cert_chain(tmp_path / "leaf")
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
    assert asked[0].startswith("CONNECT api.invalid:6443 HTTP/1.1\r\n")
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
