from __future__ import annotations

import socket
import threading
from collections.abc import Iterator

import numpy as np
import pytest

from bireme.core.errors import FrameError, NetworkError, RefusedError
from bireme.ps import wire
from bireme.ps.frames import HEAD_NBYTES, Head, Kind

Pair = tuple[socket.socket, socket.socket]


@pytest.fixture
def pair() -> Iterator[Pair]:
    a, b = socket.socketpair()
    with a, b:
        yield a, b


def test_a_frame_arrives_in_the_array_it_belongs_in(pair: Pair) -> None:
    here, there = pair
    values = np.arange(100, dtype=np.float32)
    wire.send(here, Head(Kind.SLICE, round=7, nbytes=values.nbytes), b"records", np.empty(0, np.float32), values)
    head = wire.receive_head(there)
    assert head == Head(Kind.SLICE, round=7, nbytes=400)
    assert wire.receive_bytes(there, 7) == b"records"
    target = np.zeros(100, dtype=np.float32)
    wire.receive_into(there, target)
    assert target.tobytes() == values.tobytes()


def test_a_payload_larger_than_the_kernels_buffers_arrives_whole(pair: Pair) -> None:
    here, there = pair
    values = np.random.default_rng(1).integers(0, 256, 4 << 20, dtype=np.uint8).tobytes()
    sender = threading.Thread(target=wire.send, args=(here, Head(Kind.SET, nbytes=len(values)), values[:5], values[5:]))
    sender.start()
    head = wire.receive_head(there)
    assert head is not None
    received = wire.receive_bytes(there, head.nbytes)
    sender.join()
    assert received == values


def test_nothing_to_receive_is_received_at_once(pair: Pair) -> None:
    assert wire.receive_bytes(pair[0], 0) == b""
    wire.receive_into(pair[0], np.empty(0, dtype=np.float32))


def test_a_peer_that_hangs_up_between_frames_is_no_error(pair: Pair) -> None:
    pair[0].close()
    assert wire.receive_head(pair[1]) is None


@pytest.mark.parametrize("sent", [1, HEAD_NBYTES - 1])
def test_a_peer_that_hangs_up_in_the_middle_of_a_head_is_told(pair: Pair, sent: int) -> None:
    pair[0].sendall(Head(Kind.PULL).pack()[:sent])
    pair[0].close()
    with pytest.raises(NetworkError, match="closed the connection in the middle of a frame"):
        wire.receive_head(pair[1])


@pytest.mark.parametrize("sent", [1, HEAD_NBYTES - 1])
def test_a_peer_that_stops_in_the_middle_of_a_head_holds_nobody_for_long(
    pair: Pair, sent: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(wire, "STALL_S", 0.01)
    pair[0].sendall(Head(Kind.PULL).pack()[:sent])
    with pytest.raises(NetworkError, match="stopped in the middle of a frame"):
        wire.receive_head(pair[1])
    assert pair[1].gettimeout() is None


def test_junk_is_refused_after_64_bytes(pair: Pair) -> None:
    pair[0].sendall(b"GET / HTTP/1.1\r\n" * 10)
    with pytest.raises(FrameError, match="not a bireme frame"):
        wire.receive_head(pair[1])


def test_a_refusal_is_raised_with_its_reason_why_and_fix(pair: Pair) -> None:
    wire.refuse(pair[0], "no", why="because", fix="do this")
    with pytest.raises(RefusedError, match="refused: no") as caught:
        wire.expect(pair[1], Kind.SLICE)
    assert (caught.value.why, caught.value.fix) == ("because", "do this")


@pytest.mark.parametrize("body", [b"", b"not json", b"[]", b'{"reason": 3}', b"\xff\xfe"])
def test_a_refusal_that_makes_no_sense_is_still_a_frame_error(pair: Pair, body: bytes) -> None:
    wire.send(pair[0], Head(Kind.REFUSE, nbytes=len(body)), body)
    with pytest.raises(FrameError):
        wire.expect(pair[1], Kind.SLICE)


def test_refusing_a_peer_that_has_gone_is_no_error(pair: Pair) -> None:
    pair[1].close()
    wire.refuse(pair[0], "no")


def test_sending_to_a_peer_that_has_gone_is_a_network_error(pair: Pair) -> None:
    pair[1].close()
    with pytest.raises(NetworkError, match="broke while sending"):
        wire.send(pair[0], Head(Kind.PULL))


def test_a_frame_of_another_kind_than_due_is_named(pair: Pair) -> None:
    wire.send(pair[0], Head(Kind.PULL))
    with pytest.raises(FrameError, match="sent PULL where SLICE was due"):
        wire.expect(pair[1], Kind.SLICE)


def test_a_peer_that_closes_instead_of_answering_is_told(pair: Pair) -> None:
    pair[0].close()
    with pytest.raises(NetworkError, match="closed the connection"):
        wire.expect(pair[1], Kind.SLICE)
