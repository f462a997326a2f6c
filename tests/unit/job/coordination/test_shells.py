"""The threads and files around the coordinator and the pserver: what they do when something goes wrong beside them."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec
import pytest
from tests.unit.job.story import CUTS, Story, cut_part, only

from bireme.core.errors import NetworkError, SnapshotError, StaleError, StorageError
from bireme.job.coordination import messages as m
from bireme.job.coordination.effects import Commit, Conclude, Load, Write
from bireme.job.coordination.service import CoordinatorService
from bireme.job.node import incarnations, pserver
from bireme.job.node.discovery import SharedDirectory
from bireme.job.node.pserver import PserverOptions, PserverProcess
from bireme.job.output import journal, snapshots
from bireme.job.output.manifest import MANIFEST, Manifest
from bireme.ps.client.carriers import connect
from bireme.ps.lanes.authority import view_of
from bireme.ps.snapshot.snapshot_files import snapshot_name

WAIT_S = 20.0
Call = Callable[[], socket.socket]


@contextmanager
def serving(options: PserverOptions, meet: Path | None = None) -> Iterator[tuple[PserverProcess, Call]]:
    """A pserver whose ports are open, and a way to connect to it."""
    process = PserverProcess(options)
    process._discovery = SharedDirectory(meet, 3) if meet is not None else None
    process._server.start()
    opened: list[socket.socket] = []

    def call() -> socket.socket:
        opened.append(connect("127.0.0.1", process._server.ports[0], timeout_s=1.0, what="the pserver"))
        opened[-1].settimeout(WAIT_S)
        return opened[-1]

    try:
        yield process, call
    finally:
        process._server.stop()
        if process._coordinating is not None:
            process._coordinating.stop()
        for sock in opened:
            sock.close()


def test_an_old_connection_closes_while_a_new_one_leads(monkeypatch: pytest.MonkeyPatch) -> None:
    with serving(PserverOptions(1, host="127.0.0.1")) as (process, _):
        (old, peer), (new, other) = socket.socketpair(), socket.socketpair()
        with old, peer, new, other:
            process._follow(old)
            # The moment at which the thread of the old connection may be held up: it logs the loss.
            monkeypatch.setattr(pserver.log, "warning", lambda *_: process._follow(new))
            process._closed(old)
            assert process._is_led


def test_a_pserver_answers_while_it_enters_a_view(monkeypatch: pytest.MonkeyPatch) -> None:
    entered, go_on = threading.Event(), threading.Event()

    def enter(view: int, history: int) -> None:
        entered.set()
        assert go_on.wait(WAIT_S)

    with serving(PserverOptions(1, host="127.0.0.1")) as (process, call):
        monkeypatch.setattr(process._server, "enter", enter)
        leader, visitor = call(), call()
        m.send(leader, m.ChangeView(view=5, history=3))
        assert entered.wait(WAIT_S)
        m.send(visitor, m.GetStatus())  # as lanes do at the end of a pass, this needs the coordinator
        assert isinstance(m.expect(visitor), m.Status)
        go_on.set()
        ready = m.expect(leader)
        assert isinstance(ready, m.Ready) and ready.view == 5


def test_pserver_0_obeys_no_earlier_coordinator() -> None:
    with serving(PserverOptions(1, host="127.0.0.1", incarnation=5)) as (_, call):
        old = call()
        m.send(old, m.ChangeView(view=view_of(4, 9), history=view_of(4, 1)))
        with pytest.raises(StaleError, match="is not newer than"):
            m.expect(old)


def test_only_pserver_0_of_a_supervised_job_coordinates(tmp_path: Path) -> None:
    with serving(PserverOptions(1, rank=2, host="127.0.0.1"), tmp_path) as (process, call):
        lost = call()
        m.send(lost, m.GetStatus())
        with pytest.raises(NetworkError):
            m.expect(lost)
        assert process._coordinating is None


@pytest.fixture
def coordinating(tmp_path: Path) -> Iterator[CoordinatorService]:
    """A coordinator of a job that trains, whose volume is a directory here."""
    found = CoordinatorService(2, lambda reason: None, incarnation=incarnations.take(tmp_path, "pserver 0"))
    found._machine = Story(snapshots=CUTS, output=str(tmp_path)).train().machine
    yield found
    found.stop()


def test_an_error_of_the_volume_ends_the_job_instead_of_a_thread(
    coordinating: CoordinatorService, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = threading.Event()

    def commit(place: Path, manifest: Manifest) -> Path:
        asked.set()
        raise OSError(116, "Stale file handle")

    monkeypatch.setattr(snapshots, "commit", commit)
    left = threading.Event()
    coordinating._on_leave = lambda reason: left.set()
    machine = coordinating._machine
    machine.receive(20, cut_part(0, machine.history, round_=5, ends_pass=False), 101.0)
    effects = machine.receive(21, cut_part(1, machine.history, round_=5, ends_pass=False), 101.0)
    coordinating._disk_work.put(only(Commit, effects))
    assert asked.wait(WAIT_S) and left.wait(WAIT_S)
    assert coordinating.failure is not None and "Stale file handle" in coordinating.failure.what


def test_unlistable_old_snapshots_stay_and_the_job_continues(
    coordinating: CoordinatorService, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def iterdir(path: Path) -> Iterator[Path]:
        raise OSError(116, "Stale file handle")

    monkeypatch.setattr(Path, "iterdir", iterdir)
    coordinating._forget_old(tmp_path, 2)
    assert f"failed to delete old snapshots cause='cannot look into {tmp_path}: Stale file handle" in caplog.text
    assert (coordinating.failure, coordinating._machine.phase) == (None, "training")


def test_the_log_names_a_lost_member_with_its_view_and_cause(
    coordinating: CoordinatorService, caplog: pytest.LogCaptureFixture
) -> None:
    machine = coordinating._machine
    ours, theirs = socket.socketpair()
    machine.members.pservers[1].connection = id(ours)
    machine.members.lives[1] = 7
    view = machine.view
    coordinating._connections[id(ours)] = ours
    coordinating.lost(ours, "connection reset")
    assert caplog.messages[0] == f"lost pserver=1 incarnation=7 view={view} cause='connection reset'"
    ours.close()
    theirs.close()


def test_a_job_that_ends_without_a_snapshot_says_what_to_do(coordinating: CoordinatorService) -> None:
    coordinating._machine.reason = "there is no snapshot at the end of pass 0: the disk is full"
    coordinating._conclude(Conclude("storage"))
    failure = coordinating.failure
    assert failure is not None and failure.exit_code == StorageError.exit_code
    assert "the disk is full" in failure.what and "comes out differently" in failure.why
    assert failure.fix == "free some space; all that is saved stays"


def test_a_job_with_only_damaged_snapshots_ends_and_names_them(
    coordinating: CoordinatorService, tmp_path: Path
) -> None:
    left = threading.Event()
    coordinating._on_leave = lambda reason: left.set()
    place = tmp_path / "snapshots" / snapshot_name(8, 1 << 32)
    place.mkdir(parents=True)
    (place / MANIFEST).write_bytes(b"{")
    story = Story(snapshots=msgspec.structs.replace(CUTS, path=str(place.parent)), output=str(tmp_path)).train()
    coordinating._machine = story.machine
    story.lose(21)
    coordinating._disk_work.put(only(Load, story.reach(1)))
    assert left.wait(WAIT_S)
    assert coordinating.failure is not None and coordinating.failure.exit_code == SnapshotError.exit_code
    assert f"{place.name}: its manifest is torn" in coordinating.failure.why
    assert story.machine.phase == "failed"


def test_a_coordinator_that_was_replaced_writes_no_ledger(coordinating: CoordinatorService, tmp_path: Path) -> None:
    line = {"pass": 0, "shard": 0}
    coordinating._write(Write(journal.LEDGER, (line,)))
    assert (tmp_path / journal.LEDGER).read_bytes().count(b"\n") == 1
    incarnations.take(tmp_path, "pserver 0")
    coordinating._write(Write(journal.LEDGER, (line,)))
    assert (tmp_path / journal.LEDGER).read_bytes().count(b"\n") == 1
