from __future__ import annotations

import os
import socket
import ssl
import threading
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.unit.ps.wire.test_security import NAME, give
from tests.unit.ps.wire.test_security import ca as ca  # a fixture

from bireme.core.certificates import Pair, make_ca
from bireme.core.errors import NetworkError
from bireme.ps.wire import frame_io
from bireme.ps.wire.frames import Head, Kind
from bireme.ps.wire.secured import PIECE, RECORD, Secured, pieces, words_of
from bireme.ps.wire.security import Credentials, load

WAIT_S = 10.0


def connected() -> tuple[socket.socket, socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        ours = socket.create_connection(listening.getsockname())
        theirs, _ = listening.accept()
    return frame_io.tune(ours), frame_io.tune(theirs)


def run_both(*jobs: Callable[[], object]) -> None:
    """Run each in a thread of its own; the first failure is raised here."""
    failures: list[BaseException] = []

    def guard(job: Callable[[], object]) -> None:
        try:
            job()
        except BaseException as e:
            failures.append(e)

    threads = [threading.Thread(target=guard, args=(job,)) for job in jobs]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(WAIT_S * 3)
        assert not thread.is_alive()
    if failures:
        raise failures[0]


def shake(sock: Secured, own: Credentials, *, is_accepted: bool, name: str = "") -> None:
    context = own.accepting if is_accepted else own.connecting
    sock.shake_hands(context, name or own.name, seconds=WAIT_S, is_accepted=is_accepted)


@pytest.fixture(scope="module")
def own(tmp_path_factory: pytest.TempPathFactory) -> Credentials:
    return load(give(tmp_path_factory.mktemp("tls"), make_ca(NAME)))


@pytest.fixture
def pair(own: Credentials) -> Iterator[tuple[Secured, Secured]]:
    """Who connected and who accepted, after the handshake."""
    here, there = map(Secured.over, connected())
    run_both(partial(shake, here, own, is_accepted=False), partial(shake, there, own, is_accepted=True))
    with here, there:
        yield here, there


def bytes_of(count: int) -> bytes:
    return np.random.default_rng(count).integers(0, 256, count, dtype=np.uint8).tobytes()


def test_tls_is_of_version_1_3_with_aes_gcm_or_chacha(pair: tuple[Secured, Secured]) -> None:
    name, version, _ = pair[0]._tls.cipher() or ("", "", 0)
    assert version == "TLSv1.3" and name.startswith(("TLS_AES", "TLS_CHACHA20"))


@pytest.mark.parametrize("nbytes", [1, 63, RECORD - 1, RECORD, RECORD + 1, PIECE, (1 << 20) - 1, 1 << 20, 3_000_001])
def test_a_frame_of_any_size_arrives_whole(pair: tuple[Secured, Secured], nbytes: int) -> None:
    values = np.frombuffer(bytes_of(nbytes), np.uint8)
    target = np.zeros(nbytes, np.uint8)

    def receive() -> None:
        for round_ in range(2):
            head = frame_io.receive_head(pair[1])
            assert head is not None and head.round == round_
            assert frame_io.receive_bytes(pair[1], 7) == b"records"
            frame_io.receive_into(pair[1], target)
            assert target.tobytes() == values.tobytes()

    def send() -> None:
        for round_ in range(2):
            frame_io.send(pair[0], Head(Kind.SLICE, round=round_, nbytes=nbytes), b"records", values)

    run_both(send, receive)


def test_what_is_on_the_network_is_not_what_was_sent(own: Credentials) -> None:
    (ours, tap_here), (tap_there, theirs) = connected(), connected()
    recorded = bytearray()

    def carry(source: socket.socket, target: socket.socket) -> None:
        while data := source.recv(1 << 16):
            recorded.extend(data)
            target.sendall(data)
        target.shutdown(socket.SHUT_WR)

    def talk() -> None:
        here, there = Secured.over(ours), Secured.over(theirs)
        with here, there:
            run_both(partial(shake, here, own, is_accepted=False), partial(shake, there, own, is_accepted=True))
            here.sendall(b"the gradient" * 1000)
            assert frame_io.receive_bytes(there, 12_000) == b"the gradient" * 1000

    with tap_here, tap_there:
        run_both(talk, partial(carry, tap_here, tap_there), partial(carry, tap_there, tap_here))
    assert len(recorded) > 12_000 and b"gradient" not in recorded


def test_both_ends_may_send_and_receive_at_once_on_four_threads(pair: tuple[Secured, Secured]) -> None:
    size, times = 300_000, 40
    bodies = [bytes_of(size), bytes_of(size + 1)[:size]]

    def send(end: int) -> None:
        for _ in range(times):
            frame_io.send_all(pair[end], [b"head", bodies[end]])

    def receive(end: int) -> None:
        for _ in range(times):
            assert frame_io.receive_bytes(pair[end], 4) == b"head"
            assert frame_io.receive_bytes(pair[end], size) == bodies[1 - end]

    run_both(partial(send, 0), partial(send, 1), partial(receive, 0), partial(receive, 1))


def test_several_threads_may_send_and_no_message_is_torn(pair: tuple[Secured, Secured]) -> None:
    def send(letter: bytes) -> None:
        for _ in range(50):
            frame_io.send_all(pair[0], [letter * 1000, letter * 50_000])

    def receive() -> None:
        for _ in range(150):
            found = frame_io.receive_bytes(pair[1], 51_000)
            assert found == found[:1] * 51_000

    run_both(receive, *(partial(send, letter) for letter in (b"a", b"b", b"c")))


def test_a_third_thread_can_hang_up_on_one_that_waits(pair: tuple[Secured, Secured]) -> None:
    is_waiting = threading.Event()

    def wait() -> None:
        is_waiting.set()
        assert frame_io.receive_head(pair[0]) is None

    def hang_up() -> None:
        assert is_waiting.wait(WAIT_S)
        pair[0].shutdown(socket.SHUT_RDWR)

    run_both(wait, hang_up)


def test_a_third_thread_can_close_below_a_blocked_sender(pair: tuple[Secured, Secured]) -> None:
    is_sending = threading.Event()

    def send() -> None:
        with pytest.raises(NetworkError, match="broke while sending"):
            while True:
                is_sending.set()
                frame_io.send_all(pair[0], [bytes(1 << 20)])

    def hang_up() -> None:
        assert is_sending.wait(WAIT_S)
        pair[0].shutdown(socket.SHUT_RDWR)

    run_both(send, hang_up)


def test_a_peer_gone_between_frames_differs_from_one_within(pair: tuple[Secured, Secured]) -> None:
    pair[0].sendall(Head(Kind.PULL).pack() + b"half a frame")
    pair[0].close()
    assert frame_io.receive_head(pair[1]) == Head(Kind.PULL)
    with pytest.raises(NetworkError, match="closed the connection in the middle of a frame"):
        frame_io.receive_head(pair[1])
    assert frame_io.receive_head(pair[1]) is None


@pytest.mark.parametrize("nbytes", [200, 5 << 20])
def test_a_peer_that_stops_in_the_middle_of_a_frame_is_given_up(
    pair: tuple[Secured, Secured], nbytes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(frame_io, "STALL_S", 0.05)
    frame_io.tune(pair[1])
    pair[0].sendall(bytes(100))
    with pytest.raises(NetworkError, match="stopped in the middle of a frame"):
        frame_io.receive_bytes(pair[1], nbytes)


def test_silence_between_frames_is_no_fault(pair: tuple[Secured, Secured], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(frame_io, "STALL_S", 0.01)
    frame_io.tune(pair[1])
    has_waited = threading.Event()
    take = Secured._take

    def count(self: Secured, due: int, flags: int) -> int:
        try:
            return take(self, due, flags)
        except BlockingIOError:
            has_waited.set()
            raise

    monkeypatch.setattr(Secured, "_take", count)
    found: list[Head | None] = []
    waiting = threading.Thread(target=lambda: found.append(frame_io.receive_head(pair[1])))
    waiting.start()
    assert has_waited.wait(WAIT_S)
    frame_io.send(pair[0], Head(Kind.PULL))
    waiting.join(WAIT_S)
    assert found == [Head(Kind.PULL)]


def test_a_timeout_of_pythons_own_works_too(pair: tuple[Secured, Secured]) -> None:
    pair[1].settimeout(0.01)
    with pytest.raises(TimeoutError):
        pair[1].recv(1)


def test_a_peer_is_not_gone_while_its_bytes_are_unread(pair: tuple[Secured, Secured]) -> None:
    assert not frame_io.is_gone(pair[1])
    pair[0].sendall(b"ab")
    assert frame_io.receive_bytes(pair[1], 1) == b"a"
    pair[0].close()
    assert pair[1].is_ahead and not frame_io.is_gone(pair[1])
    assert frame_io.receive_bytes(pair[1], 1) == b"b"
    assert frame_io.is_gone(pair[1])


@pytest.mark.parametrize("at", [0, 3, 20, 1000])
def test_a_changed_byte_breaks_the_connection_unread(pair: tuple[Secured, Secured], at: int) -> None:
    pair[0]._tls.write(b"x" * 1000)
    sealed = bytearray(pair[0]._outgoing.read())
    sealed[at] ^= 1
    socket.socket.sendall(pair[0], sealed)
    pair[0].shutdown(socket.SHUT_WR)
    with pytest.raises(NetworkError, match=r"changed on its way|closed the connection|TLS"):
        frame_io.receive_bytes(pair[1], 1)


def test_a_record_that_comes_twice_is_refused(pair: tuple[Secured, Secured]) -> None:
    pair[0]._tls.write(b"push")
    sealed = pair[0]._outgoing.read()
    socket.socket.sendall(pair[0], sealed + sealed)
    assert frame_io.receive_bytes(pair[1], 4) == b"push"
    with pytest.raises(NetworkError, match="what came was changed on its way"):
        frame_io.receive_bytes(pair[1], 4)


def refusal(theirs: Credentials, ours: Credentials, name: str = "") -> list[str]:
    """What each side says of the other, who connected first."""
    said = ["", ""]
    ends = [Secured.over(sock) for sock in connected()]

    def one(side: int) -> None:
        try:
            own = (theirs, ours)[side]
            shake(ends[side], own, is_accepted=bool(side), name=name)
        except OSError as e:
            said[side] = e.strerror or str(e)
        finally:
            ends[side].close()

    run_both(partial(one, 0), partial(one, 1))
    return said


def test_a_certificate_of_another_authority_is_refused(own: Credentials, tmp_path: Path) -> None:
    said = refusal(load(give(tmp_path, make_ca(NAME))), own)
    assert "its certificate is not of this job" in said[0]


def test_a_client_learns_that_its_certificate_has_expired(ca: Pair, tmp_path: Path) -> None:
    good = load(give(tmp_path / "good", ca))
    assert refusal(load(give(tmp_path / "late", ca, days=-1)), good) == [
        "it refused our certificate (certificate expired)",
        "its certificate has expired",
    ]
    assert refusal(good, load(give(tmp_path / "late", ca, days=-1)))[0] == "its certificate has expired"


def test_another_job_of_the_same_authority_is_refused_by_both(ca: Pair, tmp_path: Path) -> None:
    ours = load(give(tmp_path / "ours", ca))
    other = load(give(tmp_path / "other", ca, name="other.default.bireme"))
    said = refusal(other, ours)
    assert said[0] == f"its certificate is of {NAME}, not of other.default.bireme"
    assert said[1] in (
        f"its certificate is of other.default.bireme, not of {NAME}",
        "it hung up in the middle of the handshake",
    )


def test_words_for_codes_that_openssl_may_give() -> None:
    def said(reason: str) -> str:
        error = ssl.SSLError(1, reason)
        error.reason = reason
        return words_of(error)

    assert said("TLSV13_ALERT_CERTIFICATE_REQUIRED") == "it refused our certificate (certificate required)"
    assert said("TLSV1_ALERT_UNKNOWN_CA") == "it refused our certificate (unknown ca)"
    early = ssl.SSLCertVerificationError()
    early.verify_code = 9
    assert words_of(early) == "its certificate is not yet valid: do the clocks agree?"
    assert said("TLSV1_ALERT_INTERNAL_ERROR") == "it refused (internal error)"
    assert said("UNSUPPORTED_PROTOCOL") == "it speaks an older TLS than 1.3"
    assert said("HTTP_REQUEST") == "it does not speak TLS"
    assert said("SOMETHING_NEW") == "TLS failed (something_new)"


@given(st.lists(st.integers(0, 3 * RECORD), max_size=6), st.integers(0, 2))
def test_pieces_hold_all_bytes_and_only_the_last_is_partial(sizes: list[int], large: int) -> None:
    buffers = [bytes_of(size) for size in sizes] + [bytes_of(PIECE + 5)] * large
    found = [bytes(piece) for piece in pieces(map(memoryview, buffers))]
    assert b"".join(found) == b"".join(buffers)
    assert all(len(piece) % RECORD == 0 for piece in found[:-1])
    assert all(0 < len(piece) <= PIECE for piece in found)


def test_a_connection_that_is_closed_leaves_no_descriptor(own: Credentials) -> None:
    before = len(os.listdir("/proc/self/fd"))  # noqa: PTH208 - only how many
    for _ in range(5):
        refusal(own, own)
    assert len(os.listdir("/proc/self/fd")) == before  # noqa: PTH208
