from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.unit.ps.wire.test_security import ca as ca  # a fixture
from tests.unit.ps.wire.test_security import give

from bireme.core.certificates import Pair
from bireme.ps.wire import gate, security
from bireme.ps.wire.frame_io import Buffered
from bireme.ps.wire.gate import ConnectionGate, RefusalLog
from bireme.ps.wire.secured import Secured

WAIT_S = 10.0


@pytest.fixture
def secure(tmp_path: Path, ca: Pair) -> Iterator[None]:
    security.use(give(tmp_path, ca))
    yield
    security.use(None)


class Street:
    """A listening port and those who come to it."""

    def __init__(self) -> None:
        self._listening = socket.create_server(("127.0.0.1", 0))
        self._all: list[socket.socket] = [self._listening]

    def stranger(self, address: str = "127.0.0.1") -> tuple[socket.socket, socket.socket]:
        """A stranger's end of a connection, and ours."""
        theirs = socket.create_connection(self._listening.getsockname(), WAIT_S, (address, 0))
        ours, _ = self._listening.accept()
        self._all += [theirs, ours]
        return theirs, ours

    def close(self) -> None:
        for sock in self._all:
            sock.close()


@pytest.fixture
def street() -> Iterator[Street]:
    made = Street()
    yield made
    made.close()


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def test_a_refusal_is_logged_once_for_each_address_and_reason(caplog: pytest.LogCaptureFixture) -> None:
    log = RefusalLog(Clock())
    for _ in range(10_000):
        log.about("10.0.0.1", "no certificate")
    log.about("10.0.0.1", "not TLS")
    log.about("10.0.0.2", "not TLS")
    assert [r.message for r in caplog.records] == [
        "refused connection peer=10.0.0.1 cause='no certificate'",
        "refused connection peer=10.0.0.1 cause='not TLS'",
        "refused connection peer=10.0.0.2 cause='not TLS'",
    ]


def test_a_repeated_refusal_is_logged_later_with_its_count(caplog: pytest.LogCaptureFixture) -> None:
    clock = Clock()
    log = RefusalLog(clock)
    for _ in range(5001):
        log.about("10.0.0.1", "not TLS")
    clock.now = gate.QUIET_S
    log.about("10.0.0.1", "not TLS")
    assert caplog.messages[1:] == [
        "refused connection peer=10.0.0.1 cause='not TLS' repeats=5000",
    ]


def test_many_addresses_do_not_fill_the_log_nor_the_memory(caplog: pytest.LogCaptureFixture) -> None:
    clock = Clock()
    log = RefusalLog(clock)
    for number in range(10_000):
        log.about(f"10.0.{number // 256}.{number % 256}", "not TLS")
    assert len(caplog.messages) == gate.MOST_LINES + 1
    assert "peer=others " in caplog.messages[-1]
    assert len(log._logged) == gate.MOST_LINES + 1
    clock.now = gate.QUIET_S
    log.about("10.9.9.9", "not TLS")
    assert "10.9.9.9" in caplog.messages[-1], "there is room again"


def test_without_tls_all_are_let_in_and_not_counted(street: Street) -> None:
    entry = ConnectionGate(limit=1)
    for _ in range(3):
        taken = entry.accept(street.stranger()[1])
        assert type(taken) is Buffered and entry.admit(taken)
        taken.close()


@pytest.mark.usefixtures("secure")
def test_unix_sockets_stay_plain() -> None:
    here, there = socket.socketpair()
    with here:
        taken = ConnectionGate().accept(there)
        assert type(taken) is Buffered
        taken.close()


@pytest.mark.usefixtures("secure")
def test_a_crowded_gate_drops_the_oldest_of_the_largest_crowd(street: Street) -> None:
    entry = ConnectionGate(limit=3)
    friend, ours = street.stranger("127.0.0.2")
    kept = [entry.accept(ours)]
    crowd = []
    for _ in range(3):
        theirs, ours = street.stranger("127.0.0.3")
        crowd.append(theirs)
        kept.append(entry.accept(ours))
    assert crowd[0].recv(1) == b"", "sent away"
    for waiting in (friend, *crowd[1:]):
        waiting.setblocking(False)
        with pytest.raises(BlockingIOError):
            waiting.recv(1)
    for sock in kept:
        assert sock is not None
        sock.close()


@pytest.mark.usefixtures("secure")
def test_never_more_than_twice_the_limit_are_open(street: Street, caplog: pytest.LogCaptureFixture) -> None:
    entry = ConnectionGate(limit=2)
    kept = [entry.accept(street.stranger()[1]) for _ in range(6)]
    assert [sock is None for sock in kept] == [False] * 4 + [True] * 2
    assert caplog.messages == ["refused connection peer=127.0.0.1 cause='too many connections at once'"]
    # A closed connection makes room once its thread has noticed, in whatever order.
    for sock in kept[:4]:
        assert sock is not None
        sock.shutdown(socket.SHUT_RDWR)
        assert not entry.admit(sock)
        sock.close()
    again = entry.accept(street.stranger()[1])
    assert isinstance(again, Secured)
    again.close()


@pytest.mark.usefixtures("secure")
def test_who_says_nothing_is_refused_after_the_deadline(street: Street, caplog: pytest.LogCaptureFixture) -> None:
    entry = ConnectionGate(seconds=0.02)
    taken = entry.accept(street.stranger()[1])
    assert taken is not None and not entry.admit(taken)
    assert caplog.messages == [
        "refused connection peer=127.0.0.1 cause='it did not finish the handshake within 0.02 s'",
    ]
    taken.close()


@pytest.mark.usefixtures("secure")
def test_who_says_a_byte_now_and_then_gets_no_more_time(street: Street) -> None:
    entry, is_over = ConnectionGate(seconds=0.2), threading.Event()
    theirs, ours = street.stranger()
    hello = bytes.fromhex("16030100c8010000c40303") + bytes(200)

    def drip() -> None:
        for byte in hello:
            if is_over.wait(0.02):
                return
            theirs.send(bytes([byte]))

    dripping = threading.Thread(target=drip)
    dripping.start()
    taken = entry.accept(ours)
    assert taken is not None and not entry.admit(taken)
    is_over.set()
    dripping.join(WAIT_S)
    taken.close()


def test_a_pserver_whose_own_certificate_has_expired_says_so(
    street: Street, tmp_path: Path, ca: Pair, caplog: pytest.LogCaptureFixture
) -> None:
    security.use(give(tmp_path, ca, days=-1))
    entry = ConnectionGate()
    taken = entry.accept(street.stranger()[1])
    assert taken is not None and not entry.admit(taken)
    assert "the certificate of this process has expired" in caplog.messages[-1]
    taken.close()
    security.use(None)
