"""How a pod finds out where it stands, from its environment and from what it sees of the others."""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest

from bireme.core.errors import ClusterError, ConfigScriptError, NetworkError, SpecError, UsageError
from bireme.job.node.failure_reports import report_failure
from bireme.job.output import volume_probe
from bireme.kube.api.client import ForbiddenError
from bireme.kube.plain import peers
from bireme.kube.plain.peers import (
    ABSENCE_S,
    ApiPeerLister,
    HeartbeatFiles,
    RankBook,
    VisiblePods,
    create_once,
    peer_of,
    take_rank,
)
from bireme.kube.plain.ranks import Peer, RankAll, RankWait, TakeRank
from bireme.kube.pod import entry as pod_module
from bireme.kube.pod.environment import PATIENCE, own_address, place_of
from bireme.kube.pod.liveness import Probes
from bireme.spec.job import Job

JOB = Job(
    name="demo", config="c.py", config_args={}, data="/d", shards=3, pservers=2, trainers=3, port=7164, ports_num=1,
    ports_num_for_sparse=1, passes=4, seed=1, output="/o", log_period=50, connect_timeout_s=60.0,
)  # fmt: skip


def never(wait: RankWait) -> bool:
    raise AssertionError(f"there is nothing to wait for: {wait.why}")


@pytest.fixture
def variables(tmp_path: Path) -> dict[str, str]:
    """The environment of a pod that `submit` has made."""
    path = tmp_path / "job.json"
    path.write_bytes(msgspec.json.encode(JOB))
    return {
        "BIREME_JOB": str(path), "JOB_COMPLETION_INDEX": "2", "POD_IP": "10.1.2.3", "POD_NAME": "demo-2-x",
        "POD_NAMESPACE": "ml", "NODE_NAME": "n1", "BIREME_KUBE_JOB": "demo", "KUBERNETES_SERVICE_HOST": "10.96.0.1",
    }  # fmt: skip


def test_a_pod_of_an_indexed_job_gets_its_place(variables: dict[str, str]) -> None:
    place = place_of(variables, never)
    assert place is not None
    assert (place.rank, place.role, place.host, place.kube_job) == (2, None, "10.1.2.3", "demo")
    assert (place.pod.name, place.pod.namespace, place.pod.machine, place.pod.grace_s) == ("demo-2-x", "ml", "n1", 25.0)
    assert place.all_jobs == ("demo-pserver", "demo-trainer")
    assert place.job.connect_timeout_s == PATIENCE * 60.0


def test_outside_of_a_cluster_no_status_is_reported(variables: dict[str, str]) -> None:
    del variables["KUBERNETES_SERVICE_HOST"]
    place = place_of(variables, never)
    assert place is not None and place.kube_job == ""


def test_a_pod_with_a_role_counts_both_jobs(variables: dict[str, str]) -> None:
    Path(variables["BIREME_JOB"]).write_bytes(msgspec.json.encode(msgspec.structs.replace(JOB, pservers=3)))
    for role, jobs in (("trainer", ("demo-pserver", "demo-trainer")), ("", ("demo",))):
        place = place_of({**variables, "BIREME_ROLE": role}, never)
        assert place is not None and place.all_jobs == jobs


def test_a_job_on_an_unfit_volume_is_ended_without_a_retry(
    variables: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    output = tmp_path / "output"
    Path(variables["BIREME_JOB"]).write_bytes(msgspec.json.encode(msgspec.structs.replace(JOB, output=str(output))))
    ended: list[tuple[str, ...]] = []
    monkeypatch.setattr(pod_module, "note_signals", list)
    monkeypatch.setattr(pod_module, "give_up", lambda jobs, names, error: ended.append(names))
    monkeypatch.setitem(volume_probe.ABILITIES, "append to a file", lambda place: False)
    with pytest.raises(SpecError, match=r"output is on .*, which cannot append to a file"):
        pod_module.run_pod({**variables, "BIREME_PROBES": str(tmp_path / "probes")})
    assert ended == [("demo",)] and list(output.iterdir()) == []


def test_ranks_are_counted_by_role_where_groups_are_apart(variables: dict[str, str]) -> None:
    place = place_of({**variables, "BIREME_ROLE": "trainer"}, never)
    assert place is not None and place.role == "trainer"
    with pytest.raises(UsageError, match="JOB_COMPLETION_INDEX is 2, but the job has only 2 pservers"):
        place_of({**variables, "BIREME_ROLE": "pserver"}, never)


@pytest.mark.parametrize(
    ("name", "value"), [("BIREME_GRACE_S", "soon"), ("JOB_COMPLETION_INDEX", "-1"), ("BIREME_ROLE", "both")]
)
def test_a_variable_that_makes_no_sense_is_named(variables: dict[str, str], name: str, value: str) -> None:
    with pytest.raises(UsageError, match=name):
        place_of({**variables, name: value}, never)


def test_a_job_that_cannot_be_read_is_reported(variables: dict[str, str], tmp_path: Path) -> None:
    with pytest.raises(SpecError, match="cannot read the job from"):
        place_of({**variables, "BIREME_JOB": str(tmp_path / "none.json")}, never)


def test_a_node_without_variables_says_what_is_missing() -> None:
    with pytest.raises(UsageError, match="neither BIREME_JOB nor JOB_NAME and JOB_PATH are set"):
        place_of({}, never)


def test_a_pods_own_address_is_that_of_its_interface() -> None:
    assert own_address("lo") == "127.0.0.1"


def test_a_job_whose_nodes_do_not_come_gives_back_what_it_holds(
    variables: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hasty = msgspec.structs.replace(JOB, output=str(tmp_path / "output"), connect_timeout_s=0.02, pservers=3)
    Path(variables["BIREME_JOB"]).write_bytes(msgspec.json.encode(hasty))
    place = place_of(variables, never)
    assert place is not None
    ended: list[tuple[tuple[str, ...], str]] = []
    monkeypatch.setattr(pod_module, "give_up", lambda jobs, names, error: ended.append((names, error.what)))
    with pytest.raises(pod_module.NodesMissingError, match=r"waited .* for node 0"):
        pod_module.PodNode(place, Probes(tmp_path / "probes"), []).run()
    ((names, what),) = ended
    assert names == ("demo",) and "node 0" in what


def member(variables: dict[str, str], job: Job, rank: int) -> pod_module.PodNode:
    Path(variables["BIREME_JOB"]).write_bytes(msgspec.json.encode(job))
    place = place_of({**variables, "JOB_COMPLETION_INDEX": str(rank)}, never)
    assert place is not None
    return pod_module.PodNode(place, Probes(Path(job.output) / f"probes-{rank}"), [])


def test_files_of_a_lost_machines_pod_are_no_sign_of_life(variables: dict[str, str], tmp_path: Path) -> None:
    hasty = msgspec.structs.replace(JOB, output=str(tmp_path / "output"), connect_timeout_s=0.1, pservers=3)
    lost, first, second = (member(variables, hasty, rank) for rank in range(3))
    lost._heartbeats.beat()
    with pytest.raises(pod_module.NodesMissingError, match=r"waited .* for node 0 .*; node 2"):
        first._gather(hasty)
    first._place = replace(first._place, job=msgspec.structs.replace(hasty, connect_timeout_s=60.0))
    with staying(lost, second):
        first._gather(hasty)


@contextlib.contextmanager
def staying(*members: pod_module.PodNode) -> Iterator[None]:
    """Pods that are there."""
    over = threading.Event()

    def stay() -> None:
        while not over.wait(0.05):
            for each in members:
                each._heartbeats.beat()

    thread = threading.Thread(target=stay)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def test_a_pod_that_comes_when_the_job_is_over_waits_for_none(variables: dict[str, str], tmp_path: Path) -> None:
    job = msgspec.structs.replace(JOB, output=str(tmp_path / "output"), pservers=3)
    late = member(variables, job, 1)
    (tmp_path / "output" / "status.json").write_text('{"phase": "finished"}')
    late._gather(job)
    assert late._is_finished(job)


def test_a_pod_fails_with_one_that_failed_and_left_unseen(variables: dict[str, str], tmp_path: Path) -> None:
    job = msgspec.structs.replace(JOB, output=str(tmp_path / "output"), connect_timeout_s=1.0, pservers=3)
    reports = tmp_path / "output" / "run" / "reports"
    reports.mkdir(parents=True)
    report_failure(reports.parent, "trainer 0", ConfigScriptError("of yesterday"))
    late = member(variables, job, 1)
    report_failure(reports.parent, "node 2", NetworkError("no answer"))
    with pytest.raises(pod_module.NodesMissingError):
        late._gather(job)  # others will come in their place
    report_failure(reports.parent, "trainer 0", ConfigScriptError("not today"))
    with pytest.raises(ConfigScriptError, match="trainer 0: not today"):
        late._gather(job)


def test_a_pod_without_a_rank_ends_and_names_the_missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rest = pod_module._waiting(Probes(tmp_path), [])
    assert rest(RankWait("1 of 3 pods are there"))
    monkeypatch.setattr(pod_module, "CONNECT_TIMEOUT_S", 0.0)
    with pytest.raises(pod_module.NodesMissingError, match=r"waited 0 s for the other pods: 2 of 3 pods are there"):
        rest(RankWait("2 of 3 pods are there"))
    assert rest(RankWait("all ranks belong to pods that live", is_surplus=True)), "a surplus pod is harmless"


def test_a_job_unreadable_to_its_pods_is_ended_without_a_retry(
    variables: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    Path(variables["BIREME_JOB"]).write_text('{"name": "demo", "unknown": 1}')
    ended: list[tuple[str, ...]] = []
    monkeypatch.setattr(pod_module, "note_signals", list)
    monkeypatch.setattr(pod_module, "give_up", lambda jobs, names, error: ended.append(names))
    environment = {**variables, "BIREME_PROBES": str(tmp_path / "probes")}
    with pytest.raises(SpecError, match="cannot read the job") as refusal:
        pod_module.run_pod(environment)
    assert "another version" in refusal.value.fix
    with pytest.raises(SpecError):
        pod_module.run_pod({**environment, "BIREME_ROLE": "trainer", "BIREME_KUBE_JOB": "demo-pserver"})
    assert ended == [("demo",), ("demo-pserver", "demo-trainer")]


def pod(name: str, ip: str, phase: str = "Running", **metadata: Any) -> dict[str, Any]:
    return {"metadata": {"name": name, **metadata}, "status": {"phase": phase, "podIP": ip}}


def test_a_pod_is_read_from_the_api_servers_words() -> None:
    assert peer_of(pod("a", "10.0.0.1")) == Peer("a", "10.0.0.1", "Running")
    assert peer_of(pod("a", "10.0.0.1", deletionTimestamp="2026-01-01T00:00:00Z")).is_deleted
    assert peer_of({"metadata": {"name": "a"}, "status": {"phase": "Pending"}}) == Peer("a", "", "Pending")


class Watch:
    """Events one after the other; the connection stays open afterwards until the test is over."""

    def __init__(self, *events: tuple[str, dict[str, Any]]) -> None:
        self._events = events
        self.over = threading.Event()
        self.begun = 0

    def __call__(self) -> Iterator[tuple[str, dict[str, Any]]]:
        self.begun += 1
        yield from self._events
        self.over.wait(10.0)


def listed(*pods: dict[str, Any]) -> tuple[str, dict[str, Any]]:
    return "LISTED", {"items": list(pods)}


@pytest.fixture
def open_eyes() -> Iterator[Callable[[Watch], ApiPeerLister]]:
    """Opens eyes, and closes them in the end: a watch that is over would be begun again and again."""
    opened: list[tuple[ApiPeerLister, Watch]] = []

    def begin(watch: Watch) -> ApiPeerLister:
        opened.append((ApiPeerLister(watch), watch))
        return opened[-1][0]

    yield begin
    for eyes, watch in opened:
        eyes.close()
        watch.over.set()
        eyes._thread.join(10.0)
        assert not eyes._thread.is_alive()


def look_until(eyes: ApiPeerLister, names: set[str]) -> VisiblePods:
    while True:
        seen = eyes.look()
        if seen is not None and {peer.name for peer in seen.peers} == names:
            return seen


def test_pods_are_watched_as_they_come_and_go(open_eyes: Callable[[Watch], ApiPeerLister]) -> None:
    there = listed(pod("a", "10.0.0.1"), pod("c", "10.0.0.2"))
    watch = Watch(there, ("ADDED", pod("b", "")), ("DELETED", pod("a", "10.0.0.1")))
    look_until(open_eyes(watch), {"b", "c"})


def test_of_a_pod_without_an_address_nothing_is_known_yet(open_eyes: Callable[[Watch], ApiPeerLister]) -> None:
    gone = [pod("old", "", "Failed"), pod("ending", "", deletionTimestamp="2026-01-01T00:00:00Z")]
    watch = Watch(listed(pod("a", "10.0.0.1"), pod("new", "", "Pending"), pod("begun", ""), *gone))
    assert look_until(open_eyes(watch), {"a", "new", "begun", "old", "ending"}).unsure == {"new", "begun"}


def test_before_the_api_server_has_answered_nothing_is_known(open_eyes: Callable[[Watch], ApiPeerLister]) -> None:
    eyes = open_eyes(Watch())
    assert eyes.look() is None and not eyes.is_blind


def test_a_watch_that_ends_at_once_is_renewed_after_a_pause() -> None:
    begun_s: list[float] = []
    is_enough = threading.Event()

    def watch() -> Iterator[tuple[str, dict[str, Any]]]:
        begun_s.append(time.monotonic())
        yield listed(pod("a", "10.0.0.1"))
        if len(begun_s) == 3:
            is_enough.set()

    eyes = ApiPeerLister(watch)
    assert is_enough.wait(10.0)
    eyes.close()
    eyes._thread.join(10.0)
    assert begun_s[2] - begun_s[0] >= 0.9, "the API server is asked as fast as it answers"
    assert not eyes.is_blind


def test_a_watch_that_is_quiet_for_long_is_begun_anew() -> None:
    begun = threading.Event()
    turns = iter([[pod("a", "10.0.0.1")], [pod("b", "10.0.0.2")]])

    def watch() -> Iterator[tuple[str, dict[str, Any]]]:
        found = next(turns, None)
        if found is None:
            begun.wait(10.0)
            return
        yield listed(*found)
        raise NetworkError("nothing for 30 s")

    eyes = ApiPeerLister(watch)
    look_until(eyes, {"b"})
    eyes.close()
    begun.set()
    eyes._thread.join(10.0)
    assert not eyes._thread.is_alive() and not eyes.is_blind


@pytest.mark.parametrize("error", [ForbiddenError("no"), ClusterError("broken"), KeyError("metadata")])
def test_an_api_server_that_refuses_is_given_up(error: Exception, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(peers, "TRIES", 1)
    monkeypatch.setattr(threading, "excepthook", lambda *_: None)  # one of them is no refusal, but an accident

    def refuse() -> Iterator[tuple[str, dict[str, Any]]]:
        raise error

    eyes = ApiPeerLister(refuse)
    eyes._thread.join(10.0)
    assert eyes.is_blind and eyes.look() is None


def test_a_file_that_is_made_once_belongs_to_the_first(tmp_path: Path) -> None:
    assert create_once(tmp_path / "f", b"first") and not create_once(tmp_path / "f", b"second")
    assert (tmp_path / "f").read_bytes() == b"first"
    assert [path.name for path in tmp_path.iterdir()] == ["f"]


def test_a_volume_without_links_will_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(os, "link", refuse)
    assert create_once(tmp_path / "f", b"first") and not create_once(tmp_path / "f", b"second")


def test_the_record_of_ranks_is_what_was_written_first(tmp_path: Path) -> None:
    book = RankBook(tmp_path)
    assert book.read().first == ()
    assert book.write(RankAll(("a", "b"))) and not book.write(RankAll(("b", "a")))
    assert book.write(TakeRank(1, 1, "c")) and not book.write(TakeRank(1, 1, "d"))
    record = book.read()
    assert tuple(record.first) == ("a", "b") and list(record.taken) == [TakeRank(1, 1, "c")]


class Seen:
    """A sight that changes with each look, and is blind once it is through; None: nothing is known yet."""

    def __init__(self, *sights: list[Peer] | None) -> None:
        self._sights = list(sights)

    @property
    def is_blind(self) -> bool:
        return not self._sights

    def look(self) -> VisiblePods | None:
        seen = self._sights.pop(0)
        unsure = {peer.name for peer in seen or () if not peer.ip}
        return None if seen is None else VisiblePods(seen, unsure, time.monotonic())


A, B = Peer("a", "10.0.0.9"), Peer("b", "10.0.0.10")


def test_a_pod_waits_for_the_others_and_takes_its_rank(tmp_path: Path) -> None:
    waits: list[str] = []

    def rest(wait: RankWait) -> bool:
        waits.append(wait.why)
        return True

    eyes = (Seen([A], [A, B], [A, B]), HeartbeatFiles(tmp_path / "pods", "b", "10.0.0.10"))
    assert take_rank("b", 2, RankBook(tmp_path / "ranks"), eyes, rest) == 1
    assert waits == ["1 of 2 pods are there"]


@pytest.fixture
def now(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The clock, in one number that a test may change."""
    clock = [100.0]
    monkeypatch.setattr(time, "monotonic", lambda: clock[0])
    return clock


def test_a_replacement_that_has_seen_no_pod_takes_no_rank(tmp_path: Path) -> None:
    book = RankBook(tmp_path / "ranks")
    book.write(RankAll(("a", "b")))
    c, gone = Peer("c", "10.0.0.11"), Peer("b", "10.0.0.10", "Failed")
    eyes = (Seen(None, [A, c, gone], [A, c, gone]), HeartbeatFiles(tmp_path / "pods", "c", "10.0.0.11"))
    assert take_rank("c", 2, book, eyes, lambda why: True) == 1


def test_a_pod_that_is_not_listed_is_gone_only_after_a_while(tmp_path: Path, now: list[float]) -> None:
    book = RankBook(tmp_path / "ranks")
    book.write(RankAll(("a", "b")))
    waits: list[float] = []

    def rest(wait: RankWait) -> bool:
        waits.append(now[0])
        now[0] += 1.0
        return True

    eyes = (Seen(*[[A]] * 9), HeartbeatFiles(tmp_path / "pods", "c", "10.0.0.11"))
    assert take_rank("c", 2, book, eyes, rest) == 1
    assert waits == [100.0, 101.0, 102.0] and now[0] - 100.0 >= ABSENCE_S


def test_two_replacements_without_addresses_take_two_ranks(tmp_path: Path, now: list[float]) -> None:
    book = RankBook(tmp_path / "ranks")
    book.write(RankAll(("a", "b", "x")))
    gone = [Peer("b", "10.0.0.10", "Failed"), Peer("x", "10.0.0.8", is_deleted=True)]
    with_both, without = [A, Peer("c"), Peer("d"), *gone], [A, Peer("d"), *gone]
    ranks = []
    for name, sight in (("c", with_both), ("d", without)):  # what d has seen is older than the record
        eyes = (Seen(*[sight] * 5), HeartbeatFiles(tmp_path / "pods", name, "10.0.0.11"))
        ranks.append(take_rank(name, 3, book, eyes, never))
    assert ranks == [1, 2]
    late = (Seen(with_both), HeartbeatFiles(tmp_path / "pods", "e", "10.0.0.12"))
    assert take_rank("e", 3, book, late, lambda why: False) is None, "all ranks belong to pods that may live"


def test_a_pod_that_is_asked_to_end_stops_waiting(tmp_path: Path) -> None:
    eyes = (Seen([A], [A]), HeartbeatFiles(tmp_path / "pods", "a", "10.0.0.9"))
    assert take_rank("a", 2, RankBook(tmp_path / "ranks"), eyes, lambda why: False) is None


def test_pods_that_see_nothing_meet_on_the_volume(tmp_path: Path, now: list[float]) -> None:
    mine, other = (HeartbeatFiles(tmp_path / "pods", name, ip) for name, ip in (("a", "10.0.0.9"), ("b", "10.0.0.10")))

    def rest(wait: RankWait) -> bool:
        now[0] += 1.0
        other.beat()
        return True

    assert take_rank("a", 2, RankBook(tmp_path / "ranks"), (Seen(), mine), rest) == 0
