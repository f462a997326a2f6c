"""The three carriers over real sockets and memfds: the same bits by each, and nothing left when all is over."""

from __future__ import annotations

import errno
import gc
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray
from tests.integration.test_server_and_client import ME, WAIT_S, Cluster, gradient, open_files, push, run_all, trained
from tests.integration.test_server_and_client import cluster as cluster  # a fixture

from bireme.core.errors import BiremeError, NetworkError, RefusedError
from bireme.ps.client.carriers import CarrierName, connect, connect_near
from bireme.ps.client.memory import TrainerMemory
from bireme.ps.client.push_pull import Exchange, Link, Position
from bireme.ps.lanes.server import listen
from bireme.ps.tree import Span, cover, fold
from bireme.ps.wire import frame_io
from bireme.ps.wire.frames import Head, Kind, Record
from bireme.ps.wire.shared_memory import make_segment

SHARDS, ROUNDS = 4, 3
SHARES = {
    "one trainer, one span": (Span(0, 4),),
    "two trainers, one of two spans": (Span(0, 3), Span(3, 4)),
    "four trainers": tuple(Span(s, s + 1) for s in range(4)),
}


def near(cluster: Cluster, port: int | None = None) -> socket.socket:
    sock = connect_near("127.0.0.1", port or cluster.servers[0].ports[0])
    assert sock is not None
    sock.settimeout(WAIT_S)
    cluster._opened.append(sock)
    return sock


def open_exchange(
    cluster: Cluster, share: Span, carriers: Sequence[CarrierName], ports: Sequence[int] | None = None
) -> Exchange:
    """A trainer's exchange that reaches each lane by the carrier asked for, as far as there is memory."""
    ports = ports or [port for server in cluster.servers for port in server.ports[: server._dense_lanes]]
    links = []
    for number, (port, part) in enumerate(zip(ports, cluster.layout.slices(len(ports)), strict=True)):
        reach = cluster.connect if carriers[number % len(carriers)] == "tcp" else partial(near, cluster)
        links.append(Link(reach(port), part))
    memory = TrainerMemory(cluster.layout, cover(share, cluster.shards), is_shared="shm" in carriers)
    try:
        return Exchange(links, memory, ME)
    except BiremeError:
        for link in links:
            link.sock.close()
        memory.close()
        raise


def join_lanes(*also: str) -> None:
    """Wait for the threads of connections that have been closed: then their descriptors are closed too."""
    for thread in [t for t in threading.enumerate() if t.name.startswith(("lane-", *also))]:
        thread.join(WAIT_S)


def listening_near(ports: Sequence[int]) -> list[int]:
    """Of these ports, those with a Unix socket beside them."""
    names = Path("/proc/net/unix").read_text()
    return [port for port in ports if f"@bireme-lane-127.0.0.1-{port}\n" in names]


def train(exchange: Exchange, cluster: Cluster) -> bytes:
    """Rounds whose gradients depend on the parameters, so that one wrong bit anywhere shows at the end."""
    exchange.pull_now()
    for round_ in range(ROUNDS):
        values, is_last = exchange.memory.values(round_), round_ + 1 == ROUNDS

        def leaf(shard: int, round_: int = round_, values: NDArray[np.float32] = values) -> NDArray[np.float32]:
            drawn = np.random.default_rng([shard, round_]).standard_normal(cluster.layout.size, dtype=np.float32)
            return drawn + np.float32(0.1) * values

        for span in exchange.memory.spans:
            total = fold(span, leaf, lambda left, right: left + right)
            assert total is not None
            exchange.memory.row(span)[:] = total
            exchange.push(round_, span, [Record(shard, is_last, 10, 1.0) for shard in span.shards])
        at = exchange.pull_pass(1) if is_last else exchange.pull_round(round_ + 1)
    assert at == Position(ROUNDS, 1, 0)
    return trained(cluster, exchange.memory.values(ROUNDS)).tobytes()


def train_all(cluster: Cluster, shares: tuple[Span, ...], carriers: Callable[[int], Sequence[CarrierName]]) -> bytes:
    """One trainer per share, each over its own carriers; they must all end with the same bits, which are returned."""
    cluster.set_up(shards=SHARDS, shares=shares)
    ends: list[bytes] = []

    def one(rank: int) -> None:
        asked = carriers(rank)
        exchange = open_exchange(cluster, shares[rank], asked)
        assert exchange.carriers == [asked[n % len(asked)] for n in range(len(exchange.carriers))]
        ends.append(train(exchange, cluster))
        exchange.close()

    run_all(*(partial(one, rank) for rank in range(len(shares))))
    assert ends == [ends[0]] * len(shares)
    return ends[0]


@pytest.fixture(scope="module")
def wanted() -> bytes:
    """The bits of one trainer over TCP."""
    made = Cluster()
    made.start(lanes=2)
    bits = train_all(made, (Span(0, 4),), lambda rank: ["tcp"])
    made.stop()
    join_lanes()
    return bits


EACH: list[CarrierName] = ["shm", "unix", "tcp"]
CARRIERS: dict[str, Callable[[int], Sequence[CarrierName]]] = {
    "shm": lambda rank: ["shm"],
    "unix": lambda rank: ["unix"],
    "tcp": lambda rank: ["tcp"],
    "one lane shm, one tcp": lambda rank: ["shm", "tcp"],
    "one trainer shm, one unix, one tcp": lambda rank: [EACH[rank % 3]],
}


@pytest.mark.parametrize("shares", SHARES.values(), ids=SHARES.keys())
@pytest.mark.parametrize("carriers", CARRIERS.values(), ids=CARRIERS.keys())
def test_every_carrier_and_mixture_gives_the_same_bits(
    cluster: Cluster, wanted: bytes, carriers: Callable[[int], Sequence[CarrierName]], shares: tuple[Span, ...]
) -> None:
    cluster.start(lanes=2)
    assert train_all(cluster, shares, carriers) == wanted


def test_more_lanes_than_pages_share_memory_with_the_same_bits(cluster: Cluster, wanted: bytes) -> None:
    cluster.start(lanes=9)
    assert train_all(cluster, SHARES["two trainers, one of two spans"], lambda rank: ["shm"]) == wanted


@pytest.mark.parametrize(("carrier", "payloads"), [("shm", 0), ("unix", 2), ("tcp", 2)])
def test_only_heads_and_records_travel_where_memory_is_shared(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch, carrier: CarrierName, payloads: int
) -> None:
    sent, send_all = [0], frame_io.send_all

    def count(sock: socket.socket, parts: Sequence[frame_io.Buffer]) -> None:
        sent[0] += sum(part.nbytes if isinstance(part, np.ndarray) else len(part) for part in parts)
        send_all(sock, parts)

    cluster.start(lanes=2)
    cluster.set_up(shards=1, shares=(Span(0, 1),))
    exchange = open_exchange(cluster, Span(0, 1), [carrier])
    assert exchange.carriers == [carrier] * 2
    exchange.pull_now()
    monkeypatch.setattr(frame_io, "send_all", count)
    push(exchange, cluster, 0)
    exchange.pull_round(1)
    small = 2 * (64 + 48 + 64 + 64)  # on each of two lanes a push with one record, a pull, and the head of a slice
    assert sent[0] == small + payloads * 4 * cluster.layout.size
    assert (trained(cluster, exchange.memory.values(1)) == trained(cluster, -0.5 * gradient(cluster, 0, 0))).all()
    exchange.close()


@pytest.mark.parametrize("who", ["the trainer", "the lanes", "both"])
def test_without_shared_memory_a_unix_socket_gives_the_same_bits(
    cluster: Cluster, wanted: bytes, monkeypatch: pytest.MonkeyPatch, who: str
) -> None:
    def fail(fd: int, offset: int, nbytes: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    cluster.start(lanes=2)
    with monkeypatch.context() as full:
        if who != "the trainer":
            full.setattr(os, "posix_fallocate", fail)
        cluster.set_up(shards=SHARDS, shares=(Span(0, 4),))
    if who != "the lanes":
        monkeypatch.setattr(os, "posix_fallocate", fail)
    exchange = open_exchange(cluster, Span(0, 4), ["shm"])
    assert exchange.carriers == ["unix", "unix"]
    assert train(exchange, cluster) == wanted
    exchange.close()


def test_another_users_process_is_refused(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    cluster.start(lanes=1)
    cluster.set_up()
    real = frame_io.peer_user

    def as_seen(sock: socket.socket) -> int:
        return real(sock) if threading.current_thread() is threading.main_thread() else os.geteuid() + 1

    monkeypatch.setattr(frame_io, "peer_user", as_seen)
    with pytest.raises(RefusedError, match="another user's process"):
        open_exchange(cluster, Span(0, 1), ["unix"])
    assert cluster.exchange().pull_now() == Position(0, 0, 0)


JUNK = [b"GET / HTTP/1.1\r\n" * 4, Head(Kind.PULL, job=7, view=3).pack(), Head(Kind.ATTACH, job=7, view=3).pack()]


@pytest.mark.parametrize("junk", JUNK, ids=["http", "pull", "attach without rows"])
def test_a_local_connection_attaches_once_the_lane_has_a_job(cluster: Cluster, junk: bytes) -> None:
    cluster.start(lanes=1)
    with pytest.raises(RefusedError, match="has no job yet"):
        open_exchange(cluster, Span(0, 1), ["unix"])
    cluster.set_up()
    join_lanes()
    files = open_files()
    with open("/dev/null", "rb") as file, near(cluster) as sock:  # noqa: PTH123 - a descriptor, no path
        socket.send_fds(sock, [junk], [file.fileno()] * 3)
        with pytest.raises(RefusedError):
            frame_io.expect(sock, Kind.ATTACH)
    join_lanes()
    assert open_files() == files
    assert open_exchange(cluster, Span(0, 1), ["unix"]).pull_now() == Position(0, 0, 0)


@pytest.mark.parametrize("is_sealed", [True, False], ids=["too small", "unsealed"])
def test_untrusted_memory_is_refused_and_the_pserver_lives_on(cluster: Cluster, is_sealed: bool) -> None:
    cluster.start(lanes=1)
    cluster.set_up()
    memory = TrainerMemory(cluster.layout, [Span(0, 1)], is_shared=True)
    memory.close()
    memory.fd = make_segment("small", 4096) if is_sealed else os.memfd_create("loose", os.MFD_ALLOW_SEALING)
    if not is_sealed:
        os.ftruncate(memory.fd, 4 * cluster.layout.size)
    try:
        with pytest.raises(RefusedError, match="a shared segment of"):
            Exchange([Link(near(cluster), cluster.layout.slices(1)[0])], memory, ME)
    finally:
        memory.close()
    friend = open_exchange(cluster, Span(0, 1), ["shm"])
    assert friend.pull_now() == Position(0, 0, 0)
    friend.close()


def test_attaching_and_closing_leave_no_descriptor(cluster: Cluster) -> None:
    cluster.start()
    cluster.set_up()
    before = open_files()
    for _ in range(10):
        exchange = open_exchange(cluster, Span(0, 1), ["shm"])
        exchange.pull_now()
        exchange.close()
        join_lanes()
    assert open_files() == before


def test_a_stopping_pserver_closes_unattached_connections(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    cluster.start(lanes=1)
    ports, is_waiting, receive_with = cluster.servers[0].ports, threading.Event(), frame_io.receive_with

    def signal_and_wait(sock: socket.socket) -> tuple[Head, list[int]]:
        is_waiting.set()
        return receive_with(sock)

    monkeypatch.setattr(frame_io, "receive_with", signal_and_wait)
    silent = near(cluster)
    assert is_waiting.wait(WAIT_S)
    cluster.servers[0].stop()
    assert silent.recv(1) == b""
    join_lanes("accept-")  # the kernel keeps a name for as long as a thread is within accept()
    assert not listening_near(ports)
    assert not [record.message for record in caplog.records if record.levelname == "ERROR"]


def test_a_lane_whose_name_is_taken_is_reached_by_tcp(cluster: Cluster) -> None:
    sockets = [listen("127.0.0.1", 0) for _ in range(2)]
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as squatter:
        squatter.bind(frame_io.near_name(*sockets[0].getsockname()))
        cluster.serve(sockets, 2)
        cluster.set_up(is_set_by_trainer=True)
        assert connect_near("127.0.0.1", cluster.servers[0].ports[0]) is None
        saved = gradient(cluster, 9, 9)
        cluster.exchange().set(saved)
        part = cluster.layout.slices(2)[1]
        exchange = cluster.over([Link(near(cluster, cluster.servers[0].ports[1]), part)])
        exchange.pull_now()
        assert (exchange.memory.values(0)[part.begin :] == saved[part.begin :]).all()


def test_pservers_on_one_port_of_two_addresses_are_not_confused(cluster: Cluster) -> None:
    first = listen("127.0.0.1", 0)
    port = first.getsockname()[1]
    cluster.serve([first], 1)
    cluster.serve([listen("127.0.0.2", port)], 1)
    cluster.set_up(is_set_by_trainer=True)
    saved, far, links = gradient(cluster, 9, 9), [], []
    for host, part in zip(["127.0.0.1", "127.0.0.2"], cluster.layout.slices(2), strict=True):
        far.append(Link(connect(host, port, timeout_s=WAIT_S, what=host), part))
        links.append(Link(connect_near(host, port) or connect(host, port, timeout_s=WAIT_S, what=host), part))
    cluster._opened += [link.sock for link in (*far, *links)]
    cluster.over(far).set(saved)
    exchange = cluster.over(links)
    exchange.pull_now()
    assert (exchange.memory.values(0) == saved).all()


CHILD = """
import ctypes, faulthandler, sys
from tests.integration.test_carriers import Cluster, Span, open_exchange, push
faulthandler.disable()
cluster = Cluster()
exchange = open_exchange(cluster, Span(0, 1), ["shm"], ports=[int(port) for port in sys.argv[2:]])
assert exchange.carriers == ["shm", "shm"] and exchange.pull_now().round == 0
if sys.argv[1] == "write":
    print("writing", flush=True)
    ctypes.memset(exchange.memory.values(0).ctypes.data, 1, 4)
push(exchange, cluster, 0)
exchange.pull_round(0)  # so the push has landed
print("pushed", flush=True)
sys.stdin.read()
"""
PSERVER = """
import sys
from tests.integration.test_carriers import Cluster
cluster = Cluster()
cluster.start(), cluster.set_up()
print(*cluster.servers[0].ports, flush=True)
sys.stdin.read()
"""


def start(script: str, *arguments: object) -> subprocess.Popen[str]:
    """A process that ends at the latest when its `with` does, because its input is closed then."""
    pipe, command = subprocess.PIPE, [sys.executable, "-c", script, *map(str, arguments)]
    return subprocess.Popen(command, cwd=Path(__file__).parents[2], stdin=pipe, stdout=pipe, text=True)


def line_of(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline().strip()


def segments_here() -> set[str]:
    """Segments that this process maps, by inode."""
    gc.collect()
    return {line.split()[4] for line in Path("/proc/self/maps").read_text().splitlines() if "memfd:bireme-" in line}


def test_a_trainer_that_writes_to_parameters_dies_alone(cluster: Cluster) -> None:
    cluster.start()
    cluster.set_up()
    with start(CHILD, "write", *cluster.servers[0].ports) as process:
        assert line_of(process) == "writing"
        assert process.wait(WAIT_S) == -signal.SIGSEGV
    exchange = cluster.exchange()
    exchange.pull_now()
    assert not trained(cluster, exchange.memory.values(0)).any()


def test_a_killed_trainers_push_counts_and_its_memory_is_freed(cluster: Cluster) -> None:
    cluster.start()
    cluster.set_up()
    before = segments_here()
    with start(CHILD, "push", *cluster.servers[0].ports) as process:
        assert line_of(process) == "pushed"
        assert len(segments_here() - before) == 1
        process.kill()
    join_lanes()
    assert segments_here() == before
    others = cluster.exchange()
    push(others, cluster, 1)
    push(others, cluster, 2)
    others.pull_round(1)
    wanted = -0.5 * (gradient(cluster, 0, 0) + gradient(cluster, 1, 0) + gradient(cluster, 2, 0))
    assert (trained(cluster, others.memory.values(1)) == trained(cluster, wanted)).all()


def test_nothing_is_left_of_a_pserver_that_is_killed(cluster: Cluster) -> None:
    before, files = segments_here(), open_files()
    with start(PSERVER) as process:
        ports = [int(port) for port in line_of(process).split()]
        assert listening_near(ports) == ports
        exchange = open_exchange(cluster, Span(0, 1), ["shm"], ports)
        exchange.pull_now()
        assert len(segments_here() - before) == 3  # our gradients, and the parameters of two lanes
        process.kill()
    with pytest.raises(NetworkError):
        exchange.pull_round(1)
    assert not exchange.memory.values(0)[: cluster.layout.offsets["b"]].any()  # still readable: no bus error
    exchange.close()
    del exchange
    assert segments_here() == before
    assert open_files() == files
    assert not listening_near(ports)
    assert not [path for path in Path("/dev/shm").iterdir() if "bireme" in path.name]
