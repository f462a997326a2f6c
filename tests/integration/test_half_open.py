"""A connection whose other machine is gone without a word, on a real cable that is pulled."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator

import numpy as np
import pytest
from tests.cable import Cable, cable

from bireme.core.errors import NetworkError
from bireme.ps.wire import frame_io
from bireme.ps.wire.frames import Head, Kind

FAST = {socket.TCP_KEEPIDLE: 1, socket.TCP_KEEPINTVL: 1, socket.TCP_KEEPCNT: 1, socket.TCP_USER_TIMEOUT: 1000}
"""What `tune` sets, but for a second: a test need not wait for a quarter of a minute to see that it works."""


@pytest.fixture
def between() -> Iterator[Cable]:
    with cable() as laid:
        yield laid


def hurry(sock: socket.socket) -> socket.socket:
    frame_io.tune(sock)
    for option, value in FAST.items():
        assert sock.getsockopt(socket.IPPROTO_TCP, option) > value, "it is set, and to more than a second"
        sock.setsockopt(socket.IPPROTO_TCP, option, value)
    return sock


def send_until_it_breaks(sock: socket.socket) -> None:
    payload = np.zeros(1 << 18, np.float32)
    while True:
        frame_io.send(sock, Head(Kind.SLICE, nbytes=payload.nbytes), payload)


def test_half_open_connections_fail_readers_and_senders_in_time(between: Cable) -> None:
    waiting, _ = waits = between.connect()
    sending, _ = sends = between.connect()
    for sock in (*waits, *sends):
        hurry(sock)
    between.pull()
    errors: dict[str, NetworkError] = {}

    def expect_an_error(name: str, sock: socket.socket) -> None:
        try:
            frame_io.receive_head(sock) if name == "waits" else send_until_it_breaks(sock)
        except NetworkError as e:
            errors[name] = e

    threads = [
        threading.Thread(target=expect_an_error, args=each, daemon=True)
        for each in (("waits", waiting), ("sends", sending))
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(frame_io.SILENCE_S)
    assert sorted(errors) == ["sends", "waits"], "a connection to a machine that is gone is still open"
    assert str(errors["waits"]).endswith("broke: Connection timed out")
    assert "broke while sending: Connection timed out" in str(errors["sends"])
    for sock in (*waits, *sends):
        sock.close()


def test_a_cable_that_is_soon_back_breaks_nothing(between: Cable) -> None:
    here, there = between.connect()
    with frame_io.tune(here), frame_io.tune(there):
        between.pull()
        payload = np.arange(1000, dtype=np.float32)
        frame_io.send(here, Head(Kind.SLICE, round=3, nbytes=payload.nbytes), payload)
        assert not frame_io.is_gone(here) and not frame_io.is_gone(there)
        between.plug_in()
        assert frame_io.receive_head(there) == Head(Kind.SLICE, round=3, nbytes=payload.nbytes)
        received = np.empty_like(payload)
        frame_io.receive_into(there, received)
        np.testing.assert_array_equal(received, payload)
