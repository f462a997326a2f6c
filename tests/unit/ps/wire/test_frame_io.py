from __future__ import annotations

import gc
import itertools
import os
import socket
import struct
import threading
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from bireme.core.errors import BiremeError, FrameError, NetworkError, RefusedError, StaleError
from bireme.ps.client.carriers import connect_near
from bireme.ps.wire import frame_io
from bireme.ps.wire.frames import HEAD_NBYTES, RECORD_NBYTES, Head, Kind, Record, pack_records

Pair = tuple[socket.socket, socket.socket]
Ahead = tuple[socket.socket, frame_io.Buffered]


def open_files() -> int:
    gc.collect()
    return len(list(Path("/proc/self/fd").iterdir()))


@pytest.fixture
def pair() -> Iterator[Pair]:
    a, b = socket.socketpair()
    with a, b:
        yield a, b


def test_a_frame_arrives_in_the_array_it_belongs_in(pair: Pair) -> None:
    here, there = pair
    values = np.arange(100, dtype=np.float32)
    frame_io.send(here, Head(Kind.SLICE, round=7, nbytes=values.nbytes), b"records", np.empty(0, np.float32), values)
    head = frame_io.receive_head(there)
    assert head == Head(Kind.SLICE, round=7, nbytes=400)
    assert frame_io.receive_bytes(there, 7) == b"records"
    target = np.zeros(100, dtype=np.float32)
    frame_io.receive_into(there, target)
    assert target.tobytes() == values.tobytes()


def test_a_payload_larger_than_the_kernels_buffers_arrives_whole(pair: Pair) -> None:
    here, there = pair
    values = np.random.default_rng(1).integers(0, 256, 4 << 20, dtype=np.uint8).tobytes()
    sender = threading.Thread(
        target=frame_io.send, args=(here, Head(Kind.SET, nbytes=len(values)), values[:5], values[5:])
    )
    sender.start()
    head = frame_io.receive_head(there)
    assert head is not None
    received = frame_io.receive_bytes(there, head.nbytes)
    sender.join()
    assert received == values


def test_nothing_to_receive_is_received_at_once(pair: Pair) -> None:
    assert frame_io.receive_bytes(pair[0], 0) == b""
    frame_io.receive_into(pair[0], np.empty(0, dtype=np.float32))


def test_a_peer_that_hangs_up_between_frames_is_no_error(pair: Pair) -> None:
    pair[0].close()
    assert frame_io.receive_head(pair[1]) is None


@pytest.mark.parametrize("sent", [1, HEAD_NBYTES - 1])
def test_a_peer_that_hangs_up_within_a_head_is_reported(pair: Pair, sent: int) -> None:
    pair[0].sendall(Head(Kind.PULL).pack()[:sent])
    pair[0].close()
    with pytest.raises(NetworkError, match="closed the connection in the middle of a frame"):
        frame_io.receive_head(pair[1])


@pytest.mark.parametrize("sent", [1, HEAD_NBYTES - 1])
def test_a_peer_that_stops_in_mid_head_is_given_up(pair: Pair, sent: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(frame_io, "STALL_S", 0.01)
    frame_io.tune(pair[1])
    pair[0].sendall(Head(Kind.PULL).pack()[:sent])
    with pytest.raises(NetworkError, match="stopped in the middle of a frame"):
        frame_io.receive_head(pair[1])
    assert pair[1].gettimeout() is None


def test_junk_is_refused_after_64_bytes(pair: Pair) -> None:
    pair[0].sendall(b"GET / HTTP/1.1\r\n" * 10)
    with pytest.raises(FrameError, match="not a bireme frame"):
        frame_io.receive_head(pair[1])


def test_a_refusal_is_raised_with_its_reason_why_and_fix(pair: Pair) -> None:
    frame_io.refuse(pair[0], BiremeError("no", why="because", fix="do this"))
    with pytest.raises(RefusedError, match="refused: no") as caught:
        frame_io.expect(pair[1], Kind.SLICE)
    assert (caught.value.why, caught.value.fix) == ("because", "do this")


def test_a_refusal_for_an_old_view_is_raised_as_such(pair: Pair) -> None:
    frame_io.refuse(pair[0], StaleError("that view is over"))
    with pytest.raises(StaleError, match="refused: that view is over"):
        frame_io.expect(pair[1], Kind.SLICE)


@pytest.mark.parametrize("body", [b"", b"not json", b"[]", b'{"reason": 3}', b"\xff\xfe"])
def test_a_refusal_that_makes_no_sense_is_still_a_frame_error(pair: Pair, body: bytes) -> None:
    frame_io.send(pair[0], Head(Kind.REFUSE, nbytes=len(body)), body)
    with pytest.raises(FrameError):
        frame_io.expect(pair[1], Kind.SLICE)


def test_refusing_a_peer_that_has_gone_is_no_error(pair: Pair) -> None:
    pair[1].close()
    frame_io.refuse(pair[0], BiremeError("no"))


def test_sending_to_a_peer_that_has_gone_is_a_network_error(pair: Pair) -> None:
    pair[1].close()
    with pytest.raises(NetworkError, match="broke while sending"):
        frame_io.send(pair[0], Head(Kind.PULL))


def test_a_frame_of_another_kind_than_due_is_named(pair: Pair) -> None:
    frame_io.send(pair[0], Head(Kind.PULL))
    with pytest.raises(FrameError, match="sent PULL where SLICE was due"):
        frame_io.expect(pair[1], Kind.SLICE)


def test_a_peer_that_closes_instead_of_answering_is_reported(pair: Pair) -> None:
    pair[0].close()
    with pytest.raises(NetworkError, match="closed the connection"):
        frame_io.expect(pair[1], Kind.SLICE)


def test_a_descriptor_beside_a_frame_opens_the_same_file(pair: Pair) -> None:
    fd = os.memfd_create("wire")
    frame_io.send_with(pair[0], [fd], Head(Kind.ATTACH, nbytes=4), b"body")
    head, given = frame_io.receive_with(pair[1])
    try:
        assert head == Head(Kind.ATTACH, nbytes=4)
        assert frame_io.receive_bytes(pair[1], 4) == b"body"
        assert [os.fstat(got).st_ino for got in given] == [os.fstat(fd).st_ino]
        assert given[0] != fd
    finally:
        for got in (fd, *given):
            os.close(got)


def test_a_frame_without_descriptors_arrives_without_any(pair: Pair) -> None:
    frame_io.send_with(pair[0], [], Head(Kind.ATTACH), b"")
    assert frame_io.receive_with(pair[1]) == (Head(Kind.ATTACH), [])


def test_a_peer_that_closes_instead_of_attaching_is_reported(pair: Pair) -> None:
    pair[0].close()
    with pytest.raises(NetworkError, match="closed the connection"):
        frame_io.receive_with(pair[1])
    with pytest.raises(NetworkError, match="broke while sending"):
        frame_io.send_with(pair[1], [], Head(Kind.ATTACH), b"")


def test_a_peer_that_never_attaches_does_not_block_for_long(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(frame_io, "STALL_S", 0.01)
    frame_io.tune(pair[1])
    with pytest.raises(NetworkError):
        frame_io.receive_with(pair[1])
    assert pair[1].gettimeout() is None


@pytest.mark.parametrize(
    "junk", [b"GET / HTTP/1.1\r\n" * 4, Head(Kind.ATTACH).pack()[:63]], ids=["http", "half a head"]
)
def test_descriptors_beside_junk_are_closed(pair: Pair, junk: bytes) -> None:
    before = open_files()
    fd = os.memfd_create("wire")
    socket.send_fds(pair[0], [junk], [fd, fd])
    os.close(fd)
    with pytest.raises(FrameError):
        frame_io.receive_with(pair[1])
    assert open_files() == before


def test_the_user_at_the_other_end_of_a_unix_socket_is_known(pair: Pair) -> None:
    assert frame_io.peer_user(pair[0]) == os.geteuid()


def test_a_lane_is_found_under_a_name_without_a_file() -> None:
    assert frame_io.near_name("10.0.0.1", 7164) == "\0bireme-lane-10.0.0.1-7164"


@pytest.fixture
def listening() -> Iterator[tuple[socket.socket, int]]:
    """A Unix socket beside a port that is surely free of others while we hold it."""
    with socket.socket() as tcp, socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as near:
        tcp.bind(("127.0.0.1", 0))
        port = tcp.getsockname()[1]
        near.bind(frame_io.near_name("127.0.0.1", port))
        near.listen()
        near.setblocking(False)
        yield near, port


def test_a_lane_of_this_machine_and_user_is_found_near(listening: tuple[socket.socket, int]) -> None:
    found = connect_near("127.0.0.1", listening[1])
    assert found is not None
    found.close()


def test_no_peer_is_near_at_a_foreign_address(listening: tuple[socket.socket, int]) -> None:
    before = open_files()
    assert connect_near("192.0.2.1", listening[1]) is None
    with pytest.raises(BlockingIOError):
        listening[0].accept()
    assert open_files() == before


def test_no_peer_is_near_without_a_listener(listening: tuple[socket.socket, int]) -> None:
    listening[0].close()
    before = open_files()
    assert connect_near("127.0.0.1", listening[1]) is None
    assert open_files() == before


def test_a_lane_of_another_user_is_not_trusted(
    listening: tuple[socket.socket, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(frame_io, "peer_user", lambda sock: os.geteuid() + 1)
    assert connect_near("127.0.0.1", listening[1]) is None


@pytest.fixture
def ahead() -> Iterator[Ahead]:
    """A plain connection and, at its other end, one that reads ahead."""
    here, there = socket.socketpair()
    with here, frame_io.Buffered.over(frame_io.tune(there)) as buffered:
        yield here, buffered


def bytes_of(count: int) -> bytes:
    return np.random.default_rng(count).integers(0, 256, count, dtype=np.uint8).tobytes()


def frame(round_: int, body: bytes) -> bytes:
    """A push of one record with this payload."""
    head = Head(Kind.PUSH, round=round_, nbytes=len(body), records=1)
    return head.pack() + pack_records([Record(0, True, round_)]) + body


def read(sock: socket.socket) -> tuple[int, bytes] | None:
    """The next frame as lanes read it: head, records, then the payload into an array."""
    head = frame_io.receive_head(sock)
    if head is None:
        return None
    assert frame_io.receive_bytes(sock, RECORD_NBYTES) == pack_records([Record(0, True, head.round)])
    target = np.zeros(head.nbytes, np.uint8)
    frame_io.receive_into(sock, target)
    return head.round, target.tobytes()


def is_kernel_empty(sock: socket.socket) -> bool:
    try:
        return not sock.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT)
    except BlockingIOError:
        return True


WHOLE = frame(7, bytes_of(40))


def read_in_pieces(*cuts: int) -> tuple[int, bytes] | None:
    """The frame as it is read when each read gets one piece of it."""
    # Such a socket keeps the borders between what was sent.
    here, there = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with here, frame_io.Buffered.over(there) as buffered:
        for begin, end in itertools.pairwise([0, *cuts, len(WHOLE)]):
            here.send(WHOLE[begin:end])
        found = read(buffered)
        assert not buffered.is_ahead
        return found


def test_a_frame_in_two_pieces_is_read_whole_wherever_it_was_cut() -> None:
    for cut in range(1, len(WHOLE)):
        assert read_in_pieces(cut) == (7, bytes_of(40)), cut


def test_a_frame_that_comes_byte_by_byte_is_read_whole() -> None:
    assert read_in_pieces(*range(1, len(WHOLE))) == (7, bytes_of(40))


def test_several_frames_come_out_of_one_read(ahead: Ahead) -> None:
    here, buffered = ahead
    bodies = [bytes_of(n) for n in (9, 0, 300, 1)]
    here.sendall(b"".join(frame(i, body) for i, body in enumerate(bodies)))
    assert read(buffered) == (0, bodies[0])
    assert is_kernel_empty(buffered)
    assert [read(buffered) for _ in bodies[1:]] == list(enumerate(bodies))[1:]
    assert not buffered.is_ahead


BEFORE = HEAD_NBYTES + RECORD_NBYTES
FIRST = frame_io.READ_AHEAD - BEFORE
"""How much of the first payload comes with its head."""


@pytest.mark.parametrize(
    "nbytes",
    [*range(FIRST - 1, FIRST + 2), *range(FIRST + frame_io.READ_AHEAD - 1, FIRST + frame_io.READ_AHEAD + 2), 20_000],
)
def test_a_payload_partly_read_ahead_is_read_to_its_end(ahead: Ahead, nbytes: int) -> None:
    here, buffered = ahead
    here.sendall(frame(1, bytes_of(nbytes)) + frame(2, bytes_of(5000)) + frame(3, b""))
    assert read(buffered) == (1, bytes_of(nbytes))
    assert read(buffered) == (2, bytes_of(5000))
    assert read(buffered) == (3, b"")
    assert not buffered.is_ahead and is_kernel_empty(buffered)


def test_a_large_payload_goes_straight_into_its_array(ahead: Ahead) -> None:
    here, buffered = ahead
    here.sendall(Head(Kind.SLICE).pack())
    assert frame_io.receive_head(buffered) is not None
    body = bytes_of(frame_io.READ_AHEAD)
    here.sendall(body + b"next")
    assert frame_io.receive_bytes(buffered, len(body)) == body
    assert not buffered.is_ahead
    assert frame_io.receive_bytes(buffered, 4) == b"next"


def test_bytes_read_ahead_of_a_gone_peer_are_still_returned(ahead: Ahead) -> None:
    here, buffered = ahead
    here.sendall(frame(1, b"a") + frame(2, b"b"))
    here.close()
    assert [read(buffered), read(buffered), read(buffered)] == [(1, b"a"), (2, b"b"), None]


@pytest.mark.parametrize("cut", [1, HEAD_NBYTES - 1, HEAD_NBYTES + 1, BEFORE + 10])
def test_a_peer_lost_in_a_frame_read_ahead_is_an_error(ahead: Ahead, cut: int, monkeypatch: pytest.MonkeyPatch) -> None:
    here, buffered = ahead
    monkeypatch.setattr(frame_io, "STALL_S", 0.01)
    frame_io.tune(buffered)
    here.sendall(frame(1, b"a") + frame(2, bytes_of(100))[:cut])
    assert read(buffered) == (1, b"a")
    with pytest.raises(NetworkError, match="stopped in the middle of a frame"):
        read(buffered)
    here.sendall(frame(3, bytes_of(100))[:cut])
    here.close()
    with pytest.raises(NetworkError, match="closed the connection in the middle of a frame"):
        read(buffered)


def test_a_peer_is_not_gone_while_its_bytes_are_unread(ahead: Ahead) -> None:
    here, buffered = ahead
    assert not frame_io.is_gone(buffered)
    here.sendall(frame(1, b"a") + frame(2, b"b"))
    here.close()
    read(buffered)
    assert buffered.is_ahead and not frame_io.is_gone(buffered)
    read(buffered)
    assert frame_io.is_gone(buffered)


def tcp_pair() -> Pair:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return socket.create_connection(listener.getsockname()), listener.accept()[0]


def test_a_lost_machine_is_given_up_when_reading_or_sending() -> None:
    here, there = tcp_pair()
    with there, frame_io.tune(here):

        def option(level: int, name: int) -> int:
            return here.getsockopt(level, name)

        assert option(socket.SOL_SOCKET, socket.SO_KEEPALIVE) == 1
        idle, every, count = (
            option(socket.IPPROTO_TCP, name) for name in (socket.TCP_KEEPIDLE, socket.TCP_KEEPINTVL, socket.TCP_KEEPCNT)
        )
        assert (idle, every, count) == (5, 2, 5)
        assert idle + every * count == frame_io.SILENCE_S == 15
        assert option(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT) == 15_000
        assert option(socket.IPPROTO_TCP, socket.TCP_NODELAY) == 1


def test_only_the_wait_for_the_rest_of_a_frame_is_limited(pair: Pair) -> None:
    for sock in (tcp := tcp_pair()) + pair:
        frame_io.tune(sock)
        stall = struct.unpack("ll", sock.getsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, struct.calcsize("ll")))
        assert stall == (60, 0)
        assert sock.getsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, struct.calcsize("ll")) == bytes(16)
    for sock in tcp:
        sock.close()
