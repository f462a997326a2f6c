"""Pservers and trainers' exchanges over loopback: real sockets, real threads, all of them gone at the end."""

from __future__ import annotations

import errno
import gc
import os
import queue
import socket
import threading
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray
from tests.setups import make_setup

from bireme.core.errors import FrameError, NetworkError, PortInUseError, RefusedError
from bireme.ps.client.carriers import connect
from bireme.ps.client.memory import TrainerMemory
from bireme.ps.client.push_pull import Exchange, Identity, Link, Position
from bireme.ps.lanes.rounds import PassTotals, Totals
from bireme.ps.lanes.server import PServer, listen
from bireme.ps.plan import Layout
from bireme.ps.tree import Span, share_out
from bireme.ps.wire import frame_io
from bireme.ps.wire.frames import Head, Kind, Record, pack_records
from bireme.spec.model import Optimizer, Parameter

Floats = NDArray[np.float32]
# Seven pages; whatever the number of lanes, the cuts go through "w".
PARAMETERS = (Parameter(name="w", shape=(70, 90)), Parameter(name="b", shape=(5,)))
ME = Identity(job=7, view=3, incarnation=1)
WAIT_S = 10.0


class Cluster:
    """Some pservers in this process, and everything that was opened to talk to them."""

    def __init__(self) -> None:
        self.servers: list[PServer] = []
        self.closed: queue.Queue[int] = queue.Queue()
        self.passes: list[PassTotals] = []
        self.layout = Layout(PARAMETERS)
        self.shards = 3
        self._opened: list[socket.socket] = []

    def start(self, pservers: int = 1, lanes: int = 2, *, sparse_lanes: int = 0) -> None:
        for _ in range(pservers):
            sockets = [listen("127.0.0.1", 0) for _ in range(lanes + sparse_lanes)]
            self.serve(sockets, lanes)

    def serve(self, sockets: list[socket.socket], lanes: int) -> None:
        server = PServer(sockets, lanes, self._refuse_control, lambda sock: self.closed.put(1))
        server.start()
        self.servers.append(server)

    @staticmethod
    def _refuse_control(sock: socket.socket, head: Head) -> None:
        raise FrameError("no control here")

    def set_up(self, *, parameters: tuple[Parameter, ...] = PARAMETERS, shards: int = 3, **changes: object) -> None:
        self.layout, self.shards = Layout([p for p in parameters if not p.is_sparse]), shards
        for rank, server in enumerate(self.servers):
            plain: dict[str, object] = {
                "job": 7, "view": 3, "pserver": rank, "pservers": len(self.servers), "parameters": parameters,
                "ports_num": server._dense_lanes, "ports_num_for_sparse": len(server.ports) - server._dense_lanes,
                "optimizer": Optimizer(learning_rate=0.5, schedule="constant"), "seed": 1, "shards": shards,
                "shares": share_out(shards, shards),
            }  # fmt: skip
            server.set_up(make_setup(**{**plain, **changes}), self.passes.append)

    def connect(self, port: int | None = None) -> socket.socket:
        sock = connect("127.0.0.1", port or self.servers[0].ports[0], timeout_s=WAIT_S, what="pserver 0")
        sock.settimeout(WAIT_S)  # a test that waits for ever should say so
        self._opened.append(sock)
        return sock

    def exchange(self, me: Identity = ME) -> Exchange:
        ports = [port for server in self.servers for port in server.ports[: server._dense_lanes]]
        parts = self.layout.slices(len(ports))
        return self.over([Link(self.connect(port), part) for port, part in zip(ports, parts, strict=True)], me)

    def over(self, links: list[Link], me: Identity = ME) -> Exchange:
        """An exchange that can send for any shard."""
        memory = TrainerMemory(self.layout, [Span(s, s + 1) for s in range(self.shards)], is_shared=False)
        return Exchange(links, memory, me)

    def zeros(self) -> Floats:
        return np.zeros(self.layout.size, dtype=np.float32)

    def stop(self) -> None:
        for server in self.servers:
            server.stop()
        for sock in self._opened:
            sock.close()


def open_files() -> int:
    """Descriptors of this process; lanes' own segments live as long as their lanes (see test_memory)."""
    links = [link.readlink().name for link in Path("/proc/self/fd").iterdir() if link.is_symlink()]
    return sum("bireme-parameters" not in name for name in links)


@pytest.fixture
def cluster() -> Iterator[Cluster]:
    gc.collect()  # what earlier tests left to the collector is closed now, not while this test counts
    gc.freeze()  # the next test collects what this one leaves: not once more what lazy imports and caches hold
    threads, files = set(threading.enumerate()), open_files()
    made = Cluster()
    try:
        yield made
    finally:
        made.stop()
    for kind in ("accept-", ""):  # those who accept are still starting others
        for thread in {t for t in set(threading.enumerate()) - threads if t.name.startswith(kind)}:
            thread.join(WAIT_S)
            assert not thread.is_alive(), f"{thread.name} is left over"
    assert open_files() == files


def run_all(*jobs: Callable[[], None]) -> None:
    """Run each in a thread of its own; the first failure is raised here."""
    errors: list[BaseException] = []

    def guard(job: Callable[[], None]) -> None:
        try:
            job()
        except BaseException as e:
            errors.append(e)

    threads = [threading.Thread(target=guard, args=(job,)) for job in jobs]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(WAIT_S * 2)
        assert not thread.is_alive()
    if errors:
        raise errors[0]


def gradient(cluster: Cluster, shard: int, round_: int) -> Floats:
    """Small whole numbers: their sums are exact in any order, so plain numpy is the judge."""
    drawn = np.random.default_rng([shard, round_]).integers(-50, 50, cluster.layout.size)
    return drawn.astype(np.float32)


def records(shard: int, *, is_last: bool = False) -> list[Record]:
    return [Record(shard, is_last, 10, 5.0)]


def trained(cluster: Cluster, values: Floats) -> Floats:
    """What is not padding."""
    return np.concatenate([view.ravel() for view in cluster.layout.views(values).values()])


def push(exchange: Exchange, cluster: Cluster, shard: int, round_: int = 0, *, is_last: bool = False) -> None:
    exchange.memory.row(Span(shard, shard + 1))[:] = gradient(cluster, shard, round_)
    exchange.push(round_, Span(shard, shard + 1), records(shard, is_last=is_last))


@pytest.mark.parametrize(("pservers", "lanes"), [(1, 2), (2, 1), (2, 2), (1, 9)])
def test_three_trainers_over_all_lanes_equal_a_plain_sum(cluster: Cluster, pservers: int, lanes: int) -> None:
    cluster.start(pservers, lanes)
    cluster.set_up()
    rounds = 4
    starts, ends = [cluster.zeros() for _ in range(3)], [cluster.zeros() for _ in range(3)]

    def train(shard: int) -> None:
        exchange = cluster.exchange()
        assert exchange.pull_now() == Position(0, 0, 0)
        starts[shard][:] = exchange.memory.values(0)
        for round_ in range(rounds):
            is_last = round_ + 1 == rounds
            push(exchange, cluster, shard, round_, is_last=is_last)
            if not is_last:
                at = exchange.pull_round(round_ + 1)
                assert at == Position(round_ + 1, 0, round_ + 1)
        assert exchange.pull_pass(1) == Position(rounds, 1, 0)
        ends[shard][:] = exchange.memory.values(rounds)

    run_all(*(partial(train, shard) for shard in range(3)))
    wanted = starts[0] - 0.5 * sum(gradient(cluster, s, r) for s in range(3) for r in range(rounds))
    assert len({end.tobytes() for end in ends}) == 1
    assert (trained(cluster, ends[0]) == trained(cluster, wanted)).all()
    assert cluster.passes == [PassTotals(0, 120, {s: Totals(40, 20.0) for s in range(3)}, {})]


def test_a_repeat_with_other_bytes_is_refused_by_parameter(cluster: Cluster) -> None:
    cluster.start()
    cluster.set_up()
    first, second = cluster.exchange(), cluster.exchange()
    push(first, cluster, 0)
    first.pull_round(0)  # the push before it has landed on every lane
    row = second.memory.row(Span(0, 1))
    row[:] = gradient(cluster, 0, 0)
    row[cluster.layout.offsets["b"]] += 1.0
    second.push(0, Span(0, 1), records(0))
    with pytest.raises(RefusedError, match="two different gradients for round 0, first in b") as caught:
        second.pull_round(0)
    assert "randomness" in caught.value.fix
    push(first, cluster, 1)
    push(first, cluster, 2)
    assert first.pull_round(1).round == 1


def is_hung_up(sock: socket.socket) -> bool:
    """The kernel says so with a reset where the server left bytes unread."""
    try:
        return sock.recv(1) == b""
    except ConnectionResetError:
        return True


JUNK = {
    "http": b"GET / HTTP/1.1\r\nHost: pserver\r\nUser-Agent: something-long-enough-for-a-head\r\n\r\n",
    "tls": bytes.fromhex("16030100c8010000c40303") + bytes(range(100)),
    "zeros": bytes(64),
    "a flipped bit": Head(Kind.PULL, job=7, view=3).pack().replace(b"BRME\x01\x02", b"BRME\x01\x06"),
    "another job": Head(Kind.PULL, job=8, view=3).pack(),
    "another view": Head(Kind.PULL, job=7, view=2).pack(),
    "a slice": Head(Kind.SLICE, job=7, view=3).pack(),
    "a huge push": Head(Kind.PUSH, job=7, view=3, hi=1, nbytes=1 << 40, records=1).pack() + pack_records(records(0)),
    "a huge set": Head(Kind.SET, job=7, view=3, nbytes=1 << 40).pack(),
    "a push of no trainer": Head(Kind.PUSH, job=7, view=3, lo=5, hi=9).pack(),
    "unknown record flags": Head(Kind.PUSH, job=7, view=3, hi=1, records=1).pack() + b"\xff" * 48,
}  # fmt: skip


@pytest.mark.parametrize("junk", JUNK.values(), ids=JUNK.keys())
def test_junk_is_refused_and_all_others_are_served(cluster: Cluster, junk: bytes) -> None:
    cluster.start()
    cluster.set_up()
    friend = cluster.exchange()
    sock = cluster.connect()
    sock.sendall(junk)
    with pytest.raises(RefusedError):
        frame_io.expect(sock, Kind.SLICE)
    assert is_hung_up(sock)
    for shard in range(3):
        push(friend, cluster, shard)
    assert friend.pull_round(1).round == 1


@pytest.mark.parametrize("length", [1, 63])
def test_half_a_head_and_a_hang_up_leave_the_server_serving(cluster: Cluster, length: int) -> None:
    cluster.start()
    cluster.set_up()
    sock = cluster.connect()
    sock.sendall(Head(Kind.PULL, job=7, view=3).pack()[:length])
    sock.close()
    cluster.closed.get(timeout=WAIT_S)
    assert cluster.exchange().pull_now() == Position(0, 0, 0)


def test_a_trainer_dead_in_mid_payload_is_replaced_and_repeated(cluster: Cluster) -> None:
    cluster.start(lanes=1)
    cluster.set_up()
    dying, others = cluster.connect(), cluster.exchange()
    values = gradient(cluster, 0, 0)
    head = Head(Kind.PUSH, job=7, view=3, hi=1, nbytes=values.nbytes, records=1)
    frame_io.send(dying, head, pack_records(records(0)), values[:50])
    push(others, cluster, 1)
    push(others, cluster, 2)
    dying.close()
    cluster.closed.get(timeout=WAIT_S)
    push(cluster.exchange(), cluster, 0)
    others.pull_round(1)
    end = others.memory.values(1).copy()
    others.pull_round(0)
    start = others.memory.values(0)
    wanted = start - 0.5 * sum(gradient(cluster, s, 0) for s in range(3))
    assert (trained(cluster, end) == trained(cluster, wanted)).all()


def test_a_pull_of_a_gone_round_is_refused_with_the_lanes_round(cluster: Cluster) -> None:
    cluster.start()
    cluster.set_up()
    exchange = cluster.exchange()
    for round_ in range(2):
        for shard in range(3):
            push(exchange, cluster, shard, round_)
        exchange.pull_round(round_ + 1)
    with pytest.raises(RefusedError, match="round 0 is gone: the lane is at round 2"):
        exchange.pull_round(0)


def test_lanes_a_round_apart_are_brought_to_the_older_one(cluster: Cluster) -> None:
    cluster.start(lanes=2)
    cluster.set_up()
    others = cluster.exchange()
    push(others, cluster, 1)
    push(others, cluster, 2)
    half = cluster.over([Link(cluster.connect(), cluster.layout.slices(2)[0])])
    push(half, cluster, 0)
    half.pull_round(1)
    assert cluster.exchange().pull_now() == Position(0, 0, 0)


def test_values_set_by_one_trainer_reach_all_who_wait_for_them(cluster: Cluster) -> None:
    cluster.start(2, 2)
    cluster.set_up(is_set_by_trainer=True, start_pass=2, start_samples=50)
    saved = gradient(cluster, 9, 9)
    found: list[bytes] = []
    places: list[Position] = []
    exchange = cluster.exchange()

    def wait() -> None:
        waiting = cluster.exchange()
        places.append(waiting.pull_now())
        found.append(waiting.memory.values(0).tobytes())

    run_all(wait, wait, lambda: exchange.set(saved))
    assert places == [Position(0, 2, 0)] * 2
    assert found == [saved.tobytes()] * 2


def test_a_refused_push_of_any_size_brings_its_reason_back(cluster: Cluster) -> None:
    cluster.start(lanes=1)
    big = (Parameter(name="w", shape=(8 << 20,)),)  # 32 MiB: more than the kernel keeps between two sockets
    cluster.set_up(parameters=big)
    stale = cluster.exchange(Identity(job=7, view=2, incarnation=1))
    with pytest.raises(RefusedError, match="view 2 is not the current view 3"):
        stale.push(0, Span(0, 1), records(0))
        stale.pull_round(1)


def test_a_port_in_use_is_reported_with_what_to_do() -> None:
    with listen("127.0.0.1", 0) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(PortInUseError, match=f"port {port} on 127.0.0.1 is in use") as caught:
            listen("127.0.0.1", port)
    assert "choose another `port`" in caught.value.fix


def test_an_address_of_another_machine_cannot_be_listened_on() -> None:
    with pytest.raises(NetworkError, match=r"cannot listen on 192\.0\.2\.1:0"):
        listen("192.0.2.1", 0)


def test_a_pserver_that_was_not_started_is_named_with_its_place() -> None:
    with listen("127.0.0.1", 0) as free:
        port = free.getsockname()[1]
    with pytest.raises(NetworkError, match=f"pserver 1 at 127.0.0.1:{port} does not answer") as caught:
        connect("127.0.0.1", port, timeout_s=0.01, what="pserver 1")
    assert "server.log" in caught.value.fix


def test_a_pserver_without_a_job_says_so_on_every_lane(cluster: Cluster) -> None:
    cluster.start(lanes=1, sparse_lanes=1)
    for port in cluster.servers[0].ports:
        sock = cluster.connect(port)
        frame_io.send(sock, Head(Kind.PULL, job=7, view=3))
        with pytest.raises(RefusedError, match="this pserver has no job yet"):
            frame_io.expect(sock, Kind.SLICE)


def test_a_pserver_serves_one_job_with_the_lanes_it_opened(cluster: Cluster) -> None:
    cluster.start(lanes=2)
    with pytest.raises(FrameError, match="the job wants 3 dense and 0 sparse lanes, this pserver opened 2 and 0"):
        cluster.set_up(ports_num=3)
    with pytest.raises(FrameError, match="the job wants 2 dense and 1 sparse lanes, this pserver opened 2 and 0"):
        cluster.set_up(ports_num_for_sparse=1)
    cluster.set_up()
    with pytest.raises(FrameError, match="this pserver already serves a job"):
        cluster.set_up(view=4, job=8)


def test_a_pserver_that_stops_lets_its_trainers_go(cluster: Cluster) -> None:
    cluster.start()
    cluster.set_up()
    exchange = cluster.exchange()
    exchange.pull_now()

    def wait_for_a_round_that_never_comes() -> None:
        with pytest.raises(NetworkError):
            exchange.pull_round(1)

    run_all(wait_for_a_round_that_never_comes, cluster.servers[0].stop)


class BusySocket(socket.socket):
    """A listening socket whose first accept finds the process out of file descriptors."""

    is_busy = True

    def accept(self) -> tuple[socket.socket, tuple[str, int]]:
        if self.is_busy:
            self.is_busy = False
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
        return super().accept()


def test_a_moment_without_file_descriptors_does_not_end_a_lane(cluster: Cluster) -> None:
    cluster.serve([BusySocket(fileno=listen("127.0.0.1", 0).detach())], 1)
    cluster.set_up()
    sock = cluster.connect()
    sock.settimeout(1.0)
    frame_io.send(sock, Head(Kind.PULL, job=7, view=3))
    assert frame_io.expect(sock, Kind.SLICE).round == 0
