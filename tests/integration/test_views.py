"""A pserver that goes from view to view: what it keeps, which connections it still serves, and what it refuses."""

from __future__ import annotations

import queue
import socket
import threading
from collections.abc import Sequence
from contextlib import closing, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from tests.integration.test_server_and_client import (
    ME,
    WAIT_S,
    Cluster,
    gradient,
    is_hung_up,
    push,
    records,
    run_all,
    trained,
)
from tests.integration.test_server_and_client import cluster as cluster  # a fixture
from tests.setups import make_setup

from bireme.core.errors import BiremeError, NetworkError, StaleError
from bireme.ps.client.carriers import CarrierName, connect_near
from bireme.ps.client.memory import TrainerMemory
from bireme.ps.client.push_pull import Exchange, Link, Position
from bireme.ps.setup import Setup
from bireme.ps.snapshot.writer import FileWritten
from bireme.ps.tree import Span, share_out
from bireme.ps.wire import frame_io
from bireme.ps.wire.frames import Flag, Head, Kind, pack_records
from bireme.spec.model import Optimizer, Snapshots

HISTORY = ME.view
CARRIERS: list[CarrierName] = ["shm", "unix", "tcp"]


def trainer(cluster: Cluster, view: int, carrier: CarrierName = "tcp", shards: Sequence[int] = (0, 1, 2)) -> Exchange:
    """A trainer of a view, with connections of its own."""
    links = []
    ports = [port for server in cluster.servers for port in server.ports]
    for port, part in zip(ports, cluster.layout.slices(len(ports)), strict=True):
        sock = cluster.connect(port) if carrier == "tcp" else connect_near("127.0.0.1", port)
        assert sock is not None
        sock.settimeout(WAIT_S)
        cluster._opened.append(sock)
        links.append(Link(sock, part))
    memory = TrainerMemory(cluster.layout, [Span(s, s + 1) for s in shards], is_shared=carrier == "shm")
    return Exchange(links, memory, replace(ME, view=view))


def train_round(exchange: Exchange, cluster: Cluster, round_: int, *, is_last: bool = False) -> bytes:
    """All shards' gradients of a round; returns the parameters after it."""
    for shard in range(cluster.shards):
        push(exchange, cluster, shard, round_, is_last=is_last)
    at = exchange.pull_pass(1) if is_last else exchange.pull_round(round_ + 1)
    return trained(cluster, exchange.memory.values(at.round)).tobytes()


def wanted(cluster: Cluster, rounds: int) -> bytes:
    """Plain descent from zero, which is what these parameters begin with."""
    total = sum(gradient(cluster, s, r) for s in range(cluster.shards) for r in range(rounds))
    return trained(cluster, cluster.zeros() - np.float32(0.5) * np.asarray(total, np.float32)).tobytes()


@pytest.mark.parametrize("carrier", CARRIERS)
def test_a_mend_keeps_the_parameters_and_the_round(cluster: Cluster, carrier: CarrierName) -> None:
    cluster.start()
    cluster.set_up()
    old = trainer(cluster, 3, carrier)
    train_round(old, cluster, 0)
    push(old, cluster, 1, 1)
    old.pull_round(1)  # so the push has landed: what it brought is forgotten all the same
    cluster.servers[0].enter(4, HISTORY)
    new = trainer(cluster, 4, carrier)
    assert set(new.carriers) == {carrier}
    assert new.pull_now() == Position(1, 0, 1)
    assert train_round(new, cluster, 1) == wanted(cluster, rounds=2)
    old.close()
    new.close()


@pytest.mark.parametrize("carrier", CARRIERS)
def test_connections_of_an_older_view_are_closed_while_waiting(cluster: Cluster, carrier: CarrierName) -> None:
    cluster.start()
    cluster.set_up()
    waits, idle = trainer(cluster, 3, carrier, shards=[0]), trainer(cluster, 3, carrier, shards=[1])
    idle.pull_now()
    waits.ask_round(1)
    waits.flush()
    cluster.servers[0].enter(4, HISTORY)
    with pytest.raises((NetworkError, StaleError)):
        waits.receive()
    assert all(is_hung_up(link.sock) for link in idle._links)
    waits.close()
    idle.close()


def test_an_unused_connection_serves_the_next_view(cluster: Cluster) -> None:
    cluster.start(lanes=1)
    cluster.set_up()
    sock = cluster.connect()
    cluster.servers[0].enter(4, HISTORY)
    frame_io.send(sock, Head(Kind.PULL, Flag.NOW, job=7, view=4))
    assert frame_io.expect(sock, Kind.SLICE).round == 0


def test_a_view_change_in_mid_payload_drops_what_had_arrived(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    cluster.start(lanes=1)
    cluster.set_up()
    store, has_begun = cluster.servers[0].lanes[0]._store, threading.Event()
    receive = store.receive

    def begin(sock: socket.socket, head: Head, row: int) -> None:
        has_begun.set()
        receive(sock, head, row)

    monkeypatch.setattr(store, "receive", begin)
    sock, packed = cluster.connect(), pack_records(records(1))
    nbytes = 4 * len(cluster.layout.slices(1)[0])
    head = Head(Kind.PUSH, job=7, view=3, lo=1, hi=2, nbytes=nbytes, records=1)
    sock.sendall(head.pack() + packed + b"\xff" * (nbytes // 2))
    assert has_begun.wait(WAIT_S)
    cluster.servers[0].enter(4, HISTORY)
    assert is_hung_up(sock)
    new = trainer(cluster, 4)
    assert new.pull_now() == Position(0, 0, 0)
    assert train_round(new, cluster, 0) == wanted(cluster, rounds=1)


def test_shared_rows_are_free_and_closed_to_the_old_view(cluster: Cluster) -> None:
    cluster.start()
    cluster.set_up()
    paused = trainer(cluster, 3, "shm")
    paused.pull_now()
    cluster.servers[0].enter(4, HISTORY)
    new = trainer(cluster, 4, "shm")
    assert set(new.carriers) == {"shm"}
    new.pull_now()
    for shard in range(3):
        push(new, cluster, shard)
        paused.memory.row(Span(shard, shard + 1))[:] = np.nan
    at = new.pull_round(1)
    assert trained(cluster, new.memory.values(at.round)).tobytes() == wanted(cluster, rounds=1)
    paused.close()
    new.close()


@pytest.mark.parametrize("carrier", CARRIERS)
@pytest.mark.parametrize("view", [2, 3, 5], ids=["an older view", "the view before", "a view to come"])
def test_frames_of_another_view_are_refused_as_stale(cluster: Cluster, view: int, carrier: CarrierName) -> None:
    cluster.start(lanes=1)
    cluster.set_up()
    cluster.servers[0].enter(4, HISTORY)
    with pytest.raises(StaleError, match=f"view {view} is not the current view 4"):
        trainer(cluster, view, carrier).pull_now()
    assert trainer(cluster, 4).pull_now() == Position(0, 0, 0)


def test_a_push_of_another_view_changes_nothing(cluster: Cluster) -> None:
    cluster.start(lanes=1)
    cluster.set_up()
    cluster.servers[0].enter(4, HISTORY)
    stranger = trainer(cluster, 3)
    push(stranger, cluster, 0, 0)
    with pytest.raises(StaleError):
        stranger.pull_now()
    assert train_round(trainer(cluster, 4), cluster, 0) == wanted(cluster, rounds=1)


@pytest.mark.parametrize("view", [2, 3])
def test_a_view_that_is_not_newer_is_refused_and_changes_nothing(cluster: Cluster, view: int) -> None:
    cluster.start()
    cluster.set_up()
    exchange = trainer(cluster, 3)
    exchange.pull_now()
    with pytest.raises(StaleError, match="is not newer than view 3"):
        cluster.servers[0].enter(view, HISTORY)
    with pytest.raises(StaleError, match="is not newer than view 3"):
        cluster.set_up(view=view)
    assert train_round(exchange, cluster, 0) == wanted(cluster, rounds=1)


def test_a_view_of_another_history_is_refused(cluster: Cluster) -> None:
    cluster.start()
    with pytest.raises(StaleError, match="keeps nothing of history 3"):
        cluster.servers[0].enter(4, HISTORY)
    cluster.set_up(view=4)
    with pytest.raises(StaleError, match="keeps nothing of history 3"):
        cluster.servers[0].enter(5, HISTORY)
    cluster.servers[0].enter(5, 4)
    assert trainer(cluster, 5).pull_now() == Position(0, 0, 0)


@pytest.mark.parametrize("carrier", CARRIERS)
def test_a_rewind_without_a_cut_begins_anew(cluster: Cluster, carrier: CarrierName) -> None:
    cluster.start()
    cluster.set_up()
    old = trainer(cluster, 3, carrier)
    train_round(old, cluster, 0)
    cluster.set_up(view=4)
    with pytest.raises((NetworkError, StaleError)):
        old.pull_now()
    new = trainer(cluster, 4, carrier)
    assert new.pull_now() == Position(0, 0, 0)
    assert train_round(new, cluster, 0) == wanted(cluster, rounds=1)
    old.close()
    new.close()


def saving(cluster: Cluster, path: Path, **changes: object) -> Setup:
    plain: dict[str, object] = {
        "job": 7, "view": 3, "pserver": 0, "pservers": 1, "parameters": cluster.layout.parameters, "ports_num": 2,
        "optimizer": Optimizer(learning_rate=0.5, schedule="constant"), "seed": 1, "shards": 3,
        "shares": share_out(3, 3), "snapshots": Snapshots(path=str(path), every_s=0.0),
    }  # fmt: skip
    return make_setup(**{**plain, **changes})


def test_a_rewind_takes_all_lanes_back_to_the_cut(cluster: Cluster, tmp_path: Path) -> None:
    cluster.start()
    server, parts = cluster.servers[0], queue.Queue[FileWritten]()
    server.set_up(saving(cluster, tmp_path), cluster.passes.append, parts.put)
    first = trainer(cluster, 3)
    first.pull_now()
    train_round(first, cluster, 0)
    at_cut = train_round(first, cluster, 1, is_last=True)
    part = parts.get(timeout=WAIT_S)
    train_round(first, cluster, 2)
    server.set_up(saving(cluster, tmp_path, view=4, base=((str(part.path),),)), cluster.passes.append, parts.put)
    second = trainer(cluster, 4)
    assert second.pull_now() == Position(2, 1, 0)
    assert trained(cluster, second.memory.values(2)).tobytes() == at_cut
    assert train_round(second, cluster, 2) == wanted(cluster, rounds=3)
    assert [totals.pass_id for totals in cluster.passes] == [0]


def test_lanes_one_round_apart_continue_from_the_older_one(cluster: Cluster) -> None:
    cluster.start(pservers=2, lanes=1)
    cluster.set_up()
    old = trainer(cluster, 3)
    old.pull_now()
    ahead = min(old._links, key=lambda link: link.part.begin)
    for shard in range(3):  # to the first lane only, as if its sender died before it came to the second
        row = gradient(cluster, shard, 0)[ahead.part.begin : ahead.part.end]
        head = Head(Kind.PUSH, job=7, view=3, lo=shard, hi=shard + 1, nbytes=row.nbytes, records=1)
        frame_io.send(ahead.sock, head, pack_records(records(shard)), row)
    frame_io.send(ahead.sock, Head(Kind.PULL, Flag.NOW, job=7, view=3))
    assert frame_io.expect(ahead.sock, Kind.SLICE).round == 1
    for server in cluster.servers:
        server.enter(4, HISTORY)
    new = trainer(cluster, 4)
    assert new.pull_now() == Position(0, 0, 0)
    assert train_round(new, cluster, 0) == wanted(cluster, rounds=1)
    assert train_round(new, cluster, 1) == wanted(cluster, rounds=2)


def test_trainers_come_and_go_while_views_keep_changing(cluster: Cluster) -> None:
    """A trainer that loses its view asks again; in the last view the job continues unchanged."""
    cluster.start(lanes=1)
    cluster.set_up()
    last = HISTORY + 30
    changed = threading.Semaphore(0)

    def change() -> None:
        for view in range(HISTORY + 1, last + 1):
            changed.acquire(timeout=WAIT_S)
            cluster.servers[0].enter(view, HISTORY)

    def come_and_go(shard: int) -> None:
        for _ in range(20):
            with suppress(BiremeError):  # whatever the moment at which the view changed
                exchange = trainer(cluster, cluster.servers[0].authority.view, CARRIERS[shard], shards=[shard])
                with closing(exchange):
                    push(exchange, cluster, shard, exchange.pull_now().round)
                    changed.release()
                    exchange.pull_now()
                    continue
            changed.release()

    run_all(change, partial(come_and_go, 0), partial(come_and_go, 1))
    at = trainer(cluster, last).pull_now()
    assert at == Position(0, 0, 0), "shard 2 never came, so no round was closed"
    assert train_round(trainer(cluster, last), cluster, 0) == wanted(cluster, rounds=1)
