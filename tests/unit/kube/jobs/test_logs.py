"""Logs of pods: put together, followed through outages, and refused in words."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, cast

import pytest

from bireme.core.errors import BiremeError, ClusterError, NetworkError, UsageError
from bireme.job.output.logs import LogFilter
from bireme.kube.api import naming
from bireme.kube.api.client import JOB, Cluster, ForbiddenError, refusal
from bireme.kube.jobs import logs
from bireme.kube.jobs.logs import TAIL_LINES, lines_of

LABELS = {naming.INSTANCE: "small", naming.NAME: "bireme", naming.MANAGED_BY: "bireme"}


def stamped(second: int, text: str) -> str:
    return f"2026-11-16T10:00:{second:02d}.000000001Z {text}"


class Pods:
    """A cluster with one pod; each time its log is asked for, the next of these answers comes."""

    namespace = "default"

    def __init__(
        self, *answers: Sequence[str | Exception], is_over: bool = False, looks: int = 1000, failed: int = 0
    ) -> None:
        self._failed = failed
        self._answers = list(answers)
        self._is_over = is_over
        self._looks = looks
        """How often it can be listed before the API server is lost for good."""
        self.asked: list[tuple[int | None, int | None]] = []
        self.containers: set[str | None] = set()

    def list(self, kind: object, labels: object) -> list[dict[str, Any]]:
        self._looks -= 1
        if self._looks < 0:
            raise NetworkError("cannot reach the API server")
        ended = self._is_over or not self._answers
        if kind is JOB:
            conditions = [{"type": "Complete", "status": "True"}] if ended else []
            meta = {"name": "small", "namespace": "default", "labels": LABELS, "uid": "j"}
            status: dict[str, Any] = {"conditions": conditions, "failed": self._failed}
            return [{"metadata": meta, "spec": {"completions": 1}, "status": status}]
        meta = {"name": "small-0-x", "uid": "p", "labels": LABELS, "annotations": {naming.INDEX: "0"}}
        status = {"phase": "Succeeded" if ended else "Running", "containerStatuses": [{"state": {}}]}
        return [{"metadata": meta, "status": status}]

    def log(
        self, pod: str, *, container: str | None = None, is_following: bool = False, since_s: int | None = None,
        tail: int | None = None,
    ) -> Iterator[str]:  # fmt: skip
        self.asked.append((since_s, tail))
        self.containers.add(container)
        for each in self._answers.pop(0):
            if isinstance(each, Exception):
                raise each
            yield each


def shown(pods: Pods, **wanted: Any) -> list[str]:
    return [line.text for line in lines_of(cast(Cluster, pods), "small", LogFilter(**wanted), None)]


@pytest.fixture(autouse=True)
def look_often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logs, "PODS_EVERY_S", 0.0)


def test_a_log_that_its_machine_has_thrown_away_is_no_line() -> None:
    gone = "unable to retrieve container logs for containerd://123"
    assert shown(Pods([stamped(1, "one"), gone], is_over=True)) == ["one"]


def test_a_machine_that_cannot_be_asked_leaves_the_log_as_it_is() -> None:
    assert shown(Pods([stamped(1, "one"), NetworkError("no route")], is_over=True)) == ["one"]


@pytest.mark.parametrize("is_following", [False, True])
def test_that_logs_may_not_be_seen_is_reported(is_following: bool) -> None:
    with pytest.raises(ForbiddenError):
        shown(Pods([ForbiddenError("pods/log")], []), is_following=is_following)


def test_a_followed_log_continues_after_the_last_known_line() -> None:
    lost = NetworkError("reset")
    pods = Pods([stamped(1, "one"), stamped(2, "two"), lost], [stamped(2, "two"), stamped(3, "three")])
    assert shown(pods, is_following=True, last=5) == ["one", "two", "three"]
    (since, tail), (again, whole) = pods.asked
    assert since is None and tail == 5
    assert again is not None and whole is None, "from there on, and then everything"


def test_all_lines_of_a_burst_are_heard() -> None:
    burst = [f"2026-11-16T10:00:01.123456{n}00Z line {n}" for n in range(5)]
    pods = Pods([*burst, NetworkError("reset")], [*burst, stamped(3, "after")])
    assert shown(pods, is_following=True) == [*(f"line {n}" for n in range(5)), "after"]


def test_an_api_server_that_stays_away_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logs, "OUTAGE_S", 0.0)
    with pytest.raises(NetworkError, match="cannot reach"):
        shown(Pods([], [], looks=4), is_following=True)


def refused(code: int, message: str) -> BiremeError:
    return refusal("the log of small-0-x", code, "BadRequest", message)


@pytest.mark.parametrize("is_following", [False, True])
def test_the_pods_own_container_is_asked_whatever_runs_beside_it(is_following: bool) -> None:
    pods = Pods([stamped(1, "one")], is_over=True)
    assert shown(pods, is_following=is_following) == ["one"] and pods.containers == {naming.CONTAINER}
    several = "a container name must be specified for pod small-0-x, choose one of: [node mesh]"
    with pytest.raises(ClusterError, match="choose one of"):
        shown(Pods([refused(400, several)], []), is_following=is_following)


@pytest.mark.parametrize(
    "none",
    [
        refused(404, 'pods "small-0-x" not found'),
        refused(400, 'container "node" in pod "small-0-x" is waiting to start: ContainerCreating'),
        refused(400, 'container "node" in pod "small-0-x" is terminated'),
    ],
)
def test_a_gone_or_unstarted_container_has_no_lines(none: BiremeError) -> None:
    assert shown(Pods([none], is_over=True)) == []


def test_only_the_ends_of_long_logs_are_fetched_where_enough() -> None:
    end = [stamped(n % 60, f"{who} | {n}") for n in range(100) for who in ("trainer 0", "pserver 0", "entry")]
    assert len(end) > TAIL_LINES
    pods = Pods(end, is_over=True)
    assert len(shown(pods, last=20)) == 60 and pods.asked == [(None, TAIL_LINES)]
    pods = Pods(end, is_over=True)
    assert len(shown(pods, last=50, role="trainer")) == 50 and pods.asked == [(None, 500)]


def test_a_log_rare_at_the_ends_is_searched_in_the_whole() -> None:
    whole = [stamped(0, "pserver 0 | rare"), *(stamped(n % 60, f"trainer 0 | {n}") for n in range(TAIL_LINES))]
    pods = Pods(whole[-TAIL_LINES:], whole, is_over=True)
    assert "rare" in shown(pods, last=20) and pods.asked == [(None, TAIL_LINES), (None, None)]
    pods = Pods(whole[-TAIL_LINES:], is_over=True)
    assert len(shown(pods, last=20, role="trainer")) == 20 and len(pods.asked) == 1


def test_a_short_log_is_asked_for_once() -> None:
    pods = Pods([stamped(1, "one")], is_over=True)
    assert shown(pods, last=20) == ["one"] and len(pods.asked) == 1


def test_the_volume_cannot_be_followed() -> None:
    with pytest.raises(UsageError, match="cannot be followed"):
        shown(Pods(), is_following=True, from_volume=True)


def test_pods_that_are_gone_are_not_passed_over_in_silence() -> None:
    whole, replaced = (Pods([stamped(1, "trainer 0 | hello")], failed=failed) for failed in (0, 2))
    for cluster in (whole, replaced):
        notes: list[str] = []
        assert len(list(lines_of(cast(Cluster, cluster), "small", LogFilter(), None, notes.append))) == 1
        text = "".join(notes)
        assert ("2 earlier pods are gone" in text and "--from-volume" in text) == (cluster is replaced)
