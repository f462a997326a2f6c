"""Lanes under TLS: the same rounds with the same bits, and peers that are not of the job are refused."""

from __future__ import annotations

import logging
import socket
import ssl
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from tests.integration.test_carriers import (  # run once more here, under TLS
    join_lanes,
    test_attaching_and_closing_leave_no_descriptor,
    test_every_carrier_and_mixture_gives_the_same_bits,
    test_only_heads_and_records_travel_where_memory_is_shared,
)
from tests.integration.test_carriers import wanted as wanted  # a fixture
from tests.integration.test_server_and_client import (
    JUNK,
    WAIT_S,
    Cluster,
    gradient,
    open_files,
    push,
    run_all,
    test_a_moment_without_file_descriptors_does_not_end_a_lane,
    test_a_pserver_that_stops_lets_its_trainers_go,
    test_a_refused_push_of_any_size_brings_its_reason_back,
    test_a_repeat_with_other_bytes_is_refused_by_parameter,
    test_a_trainer_dead_in_mid_payload_is_replaced_and_repeated,
    test_half_a_head_and_a_hang_up_leave_the_server_serving,
    test_junk_is_refused_and_all_others_are_served,
    test_three_trainers_over_all_lanes_equal_a_plain_sum,
    test_values_set_by_one_trainer_reach_all_who_wait_for_them,
    trained,
)
from tests.integration.test_server_and_client import cluster as cluster  # a fixture
from tests.integration.test_views import (
    test_a_mend_keeps_the_parameters_and_the_round,
    test_connections_of_an_older_view_are_closed_while_waiting,
)
from tests.unit.ps.wire.test_security import NAME, give

from bireme.core.certificates import Pair, make_ca
from bireme.core.errors import CertificateError, NetworkError
from bireme.ps.client.carriers import connect
from bireme.ps.client.push_pull import Exchange, Position
from bireme.ps.wire import frame_io, security
from bireme.ps.wire.frames import Flag, Head, Kind
from bireme.ps.wire.gate import AT_ONCE, ConnectionGate
from bireme.ps.wire.secured import Secured

BORROWED = (
    test_attaching_and_closing_leave_no_descriptor,
    test_every_carrier_and_mixture_gives_the_same_bits,
    test_only_heads_and_records_travel_where_memory_is_shared,
    test_a_moment_without_file_descriptors_does_not_end_a_lane,
    test_a_pserver_that_stops_lets_its_trainers_go,
    test_a_refused_push_of_any_size_brings_its_reason_back,
    test_a_repeat_with_other_bytes_is_refused_by_parameter,
    test_a_trainer_dead_in_mid_payload_is_replaced_and_repeated,
    test_half_a_head_and_a_hang_up_leave_the_server_serving,
    test_junk_is_refused_and_all_others_are_served,
    test_three_trainers_over_all_lanes_equal_a_plain_sum,
    test_values_set_by_one_trainer_reach_all_who_wait_for_them,
    test_connections_of_an_older_view_are_closed_while_waiting,
    test_a_mend_keeps_the_parameters_and_the_round,
)


@pytest.fixture(scope="module")
def ca() -> Pair:
    return make_ca(NAME)


@pytest.fixture(scope="module")
def own(tmp_path_factory: pytest.TempPathFactory, ca: Pair) -> Path:
    return give(tmp_path_factory.mktemp("tls"), ca)


@pytest.fixture(autouse=True)
def secure(own: Path) -> Iterator[None]:
    security.use(own)
    yield
    security.use(None)


@pytest.fixture
def lane(cluster: Cluster) -> Cluster:
    """One lane that serves a job."""
    cluster.start(lanes=1)
    cluster.set_up()
    return cluster


def port_of(cluster: Cluster) -> int:
    return cluster.servers[0].ports[0]


def round_trip(exchange: Exchange, cluster: Cluster, round_: int = 0) -> bool:
    """Whether a whole round gives what it must."""
    exchange.pull_round(round_)
    start = exchange.memory.values(round_).copy()
    for shard in range(3):
        push(exchange, cluster, shard, round_)
    exchange.pull_round(round_ + 1)
    wanted = start - 0.5 * sum(gradient(cluster, shard, round_) for shard in range(3))
    return bool((trained(cluster, exchange.memory.values(round_ + 1)) == trained(cluster, wanted)).all())


def plain(cluster: Cluster) -> socket.socket:
    sock = socket.create_connection(("127.0.0.1", port_of(cluster)), WAIT_S)
    cluster._opened.append(sock)
    return sock


def stranger(*certificate: Path, trusts: Path | None = None) -> ssl.SSLContext:
    """The TLS context of a client that is not of the job."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_REQUIRED if trusts else ssl.CERT_NONE
    if trusts:
        context.load_verify_locations(trusts)
    if certificate:
        chain, key = certificate
        context.load_cert_chain(chain, key)
    return context


def of_directory(directory: Path) -> ssl.SSLContext:
    return stranger(directory / "tls.crt", directory / "tls.key")


def says(cluster: Cluster, context: ssl.SSLContext) -> str:
    """What a stranger gets to hear: '' if the lane answered."""
    with plain(cluster) as sock:
        try:
            with context.wrap_socket(sock) as speaking:
                speaking.sendall(Head(Kind.PULL, Flag.NOW, job=7, view=3).pack())
                return "hung up" if not speaking.recv(1) else ""
        except (ssl.SSLError, ConnectionError) as e:
            return getattr(e, "reason", None) or type(e).__name__


def refusals(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [message for message in caplog.messages if message.startswith("refused connection")]


def test_every_tcp_connection_is_secured_with_a_directory(lane: Cluster) -> None:
    exchange = lane.exchange()
    assert all(isinstance(link.sock, Secured) for link in exchange._links)
    assert round_trip(exchange, lane)


def test_a_client_without_a_certificate_is_refused_unread(lane: Cluster, caplog: pytest.LogCaptureFixture) -> None:
    assert says(lane, stranger()) == "TLSV13_ALERT_CERTIFICATE_REQUIRED"
    join_lanes()
    assert refusals(caplog) == ["refused connection peer=127.0.0.1 cause='it showed no certificate'"]
    assert round_trip(lane.exchange(), lane)


def test_a_certificate_of_another_jobs_authority_is_refused(
    lane: Cluster, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    other = give(tmp_path, make_ca("other.default.bireme"), name="other.default.bireme")
    assert says(lane, of_directory(other)) == "TLSV1_ALERT_UNKNOWN_CA"
    join_lanes()
    assert "its certificate is not of this job" in refusals(caplog)[0]
    assert round_trip(lane.exchange(), lane)


def test_a_forged_certificate_with_the_jobs_name_is_refused(lane: Cluster, tmp_path: Path) -> None:
    forged = give(tmp_path, make_ca(NAME))  # all names are right, only the signature is not
    assert says(lane, of_directory(forged)) in ("TLSV1_ALERT_UNKNOWN_CA", "TLSV1_ALERT_DECRYPT_ERROR")
    assert round_trip(lane.exchange(), lane)


def test_another_job_of_the_same_authority_is_refused(
    lane: Cluster, ca: Pair, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    other = give(tmp_path, ca, name="other.default.bireme")
    assert says(lane, of_directory(other)) in ("hung up", "ConnectionResetError", "ConnectionAbortedError")
    join_lanes()
    assert refusals(caplog) == [
        f"refused connection peer=127.0.0.1 cause='its certificate is of other.default.bireme, not of {NAME}'"
    ]
    assert round_trip(lane.exchange(), lane)


def test_an_expired_certificate_is_refused(
    lane: Cluster, ca: Pair, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    assert says(lane, of_directory(give(tmp_path, ca, days=-1))) == "SSLV3_ALERT_CERTIFICATE_EXPIRED"
    join_lanes()
    assert refusals(caplog) == ["refused connection peer=127.0.0.1 cause='its certificate has expired'"]
    assert round_trip(lane.exchange(), lane)


def test_an_older_tls_is_refused_even_with_the_right_certificate(lane: Cluster, own: Path) -> None:
    context = of_directory(own)
    context.maximum_version = ssl.TLSVersion.TLSv1_2
    assert says(lane, context) == "TLSV1_ALERT_PROTOCOL_VERSION"
    assert round_trip(lane.exchange(), lane)


def test_the_right_certificate_gets_an_answer_from_any_tls(lane: Cluster, own: Path) -> None:
    context = stranger(own / "tls.crt", own / "tls.key", trusts=own / "ca.crt")
    assert says(lane, context) == "", "so the refusals above are no accident"


@pytest.mark.parametrize("junk", JUNK.values(), ids=JUNK.keys())
def test_plain_text_is_refused_and_never_taken_for_a_frame(
    lane: Cluster, junk: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG, "bireme")
    sock = plain(lane)
    sock.sendall(junk)
    sock.shutdown(socket.SHUT_WR)
    with suppress(ConnectionResetError):
        while sock.recv(4096):
            pass
    join_lanes()
    assert len(refusals(caplog)) == 1 and "refused frame" not in caplog.text
    assert round_trip(lane.exchange(), lane)


def test_a_replayed_recording_of_a_round_is_refused(lane: Cluster, caplog: pytest.LogCaptureFixture) -> None:
    tap = socket.create_server(("127.0.0.1", 0))
    recorded = bytearray()

    def carry(source: socket.socket, target: socket.socket, keep: bytearray) -> None:
        with suppress(OSError):
            while data := source.recv(1 << 16):
                keep.extend(data)
                target.sendall(data)
        with suppress(OSError):
            target.shutdown(socket.SHUT_WR)

    def listen_in() -> None:
        ours, _ = tap.accept()
        theirs = plain(lane)
        with ours, theirs:
            run_all(partial(carry, ours, theirs, recorded), partial(carry, theirs, ours, bytearray()))

    def train() -> None:
        with connect("127.0.0.1", tap.getsockname()[1], timeout_s=WAIT_S, what="the tap") as sock:
            frame_io.send(sock, Head(Kind.PULL, Flag.NOW, job=7, view=3))
            frame_io.receive_bytes(sock, frame_io.expect(sock, Kind.SLICE).nbytes)

    with tap:
        run_all(listen_in, train)
    with plain(lane) as sock:
        sock.sendall(recorded)
        sock.shutdown(socket.SHUT_WR)
        heard = bytearray()
        with suppress(ConnectionResetError):
            while data := sock.recv(1 << 16):
                heard.extend(data)
    join_lanes()
    assert len(recorded) > 500 and len(heard) < 4 * lane.layout.size, "no parameters came back"
    assert len(refusals(caplog)) == 1
    assert round_trip(lane.exchange(), lane)


GARBAGE = [b"", b"x", b"GET / HTTP/1.1\r\n\r\n", bytes(64), bytes.fromhex("16030100c8010000c40303") + bytes(300)]


@pytest.mark.parametrize("count", [500, pytest.param(10_000, marks=pytest.mark.slow)])
def test_a_flood_of_garbage_costs_no_threads_or_descriptors(
    lane: Cluster, caplog: pytest.LogCaptureFixture, count: int
) -> None:
    files, threads = open_files(), threading.active_count()
    exchange, is_over, rounds, crowd = lane.exchange(), threading.Event(), 0, 0

    def flood() -> None:
        for number in range(count):
            with suppress(OSError), socket.create_connection(("127.0.0.1", port_of(lane)), WAIT_S) as sock:
                sock.sendall(GARBAGE[number % len(GARBAGE)])
        is_over.set()

    def train() -> None:
        nonlocal rounds, crowd
        while not is_over.is_set():
            assert round_trip(exchange, lane, rounds)
            rounds += 1
            crowd = max(crowd, threading.active_count())

    flooding = threading.Thread(target=flood)
    flooding.start()
    train()
    flooding.join()
    late = lane.exchange()  # connections opened before have been served
    assert rounds > 0 and round_trip(late, lane, rounds)
    assert crowd <= threads + 2 * AT_ONCE + 5
    exchange.close()
    late.close()
    join_lanes()
    assert (open_files(), threading.active_count()) == (files, threads)
    assert 0 < len(refusals(caplog)) <= 12, "once for each reason"


def test_silent_strangers_do_not_keep_the_job_outside(lane: Cluster) -> None:
    silent = [plain(lane) for _ in range(200)]
    assert round_trip(lane.exchange(), lane)
    for sock in silent:
        sock.close()


UNTRUSTED = " and this process do not trust each other:"


def answers(cluster: Cluster, serve: Callable[[socket.socket], None]) -> str:
    """The reason for which a client refuses a listener that serves connections like this."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        listening_port = listening.getsockname()[1]

        def pretend() -> None:
            sock, _ = listening.accept()
            with sock, suppress(OSError):
                serve(sock)

        pretending = threading.Thread(target=pretend)
        pretending.start()
        with pytest.raises(NetworkError, match="pserver 0 at ") as caught:
            connect("127.0.0.1", listening_port, timeout_s=0.0, what="pserver 0")
        pretending.join(WAIT_S)
    assert "server.log" in caught.value.fix
    return caught.value.what.partition(f":{listening_port}")[2]


def test_a_pserver_of_another_job_receives_nothing(cluster: Cluster, tmp_path: Path) -> None:
    other = give(tmp_path, make_ca("other.default.bireme"), name="other.default.bireme")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(other / "tls.crt", other / "tls.key")
    heard: list[bytes] = []

    def pretend(sock: socket.socket) -> None:
        with context.wrap_socket(sock, server_side=True) as speaking:
            heard.append(speaking.recv(1))

    assert answers(cluster, pretend).startswith(f"{UNTRUSTED} its certificate is not of this job")
    assert heard in ([], [b""])


def test_a_pserver_that_does_not_speak_tls_receives_nothing(cluster: Cluster) -> None:
    said = answers(cluster, lambda sock: sock.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n"))
    assert said == f"{UNTRUSTED} it does not speak TLS"


def test_a_pserver_gone_in_mid_handshake_does_not_answer(cluster: Cluster) -> None:
    said = answers(cluster, lambda sock: sock.shutdown(socket.SHUT_WR))
    assert said == " does not answer: it hung up in the middle of the handshake"


def test_only_new_connections_use_a_renewed_certificate(cluster: Cluster, ca: Pair, tmp_path: Path) -> None:
    place = give(tmp_path, ca, days=1)
    security.use(place)
    cluster.start(lanes=1)
    cluster.set_up()
    before = cluster.exchange()
    assert round_trip(before, cluster)
    give(place, ca, days=60)
    after = cluster.exchange()

    def ends(exchange: Exchange) -> float:
        sock = exchange._links[0].sock
        assert isinstance(sock, Secured)
        shown = sock._tls.getpeercert() or {}
        return ssl.cert_time_to_seconds(str(shown["notAfter"]))

    assert ends(after) > ends(before) + 50 * 86400
    assert round_trip(before, cluster, 1) and round_trip(after, cluster, 2)


def test_a_client_with_an_expired_certificate_fails_at_once(lane: Cluster, ca: Pair, tmp_path: Path) -> None:
    before = lane.exchange()
    security.use(give(tmp_path, ca, days=-1))
    with pytest.raises(CertificateError, match="certificate of this process has expired") as caught:
        connect("127.0.0.1", port_of(lane), timeout_s=WAIT_S, what="pserver 0")
    assert caught.value.fix
    assert round_trip(before, lane), "connections that were there live on"


def test_a_door_that_was_full_is_tried_again(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    cluster.start(lanes=1)
    cluster.set_up()
    turned_away: list[Any] = []
    real = ConnectionGate.accept

    def busy_once(self: ConnectionGate, sock: socket.socket) -> frame_io.Buffered | None:
        if sock.family == socket.AF_INET and not turned_away:
            turned_away.append(1)
            sock.close()
            return None
        return real(self, sock)

    monkeypatch.setattr(ConnectionGate, "accept", busy_once)
    assert cluster.exchange().pull_now() == Position(0, 0, 0)
    assert turned_away
