"""Logs of pods: put together, followed through outages, and refused in words."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, cast

import pytest

from bireme.cli import cluster_logs
from bireme.cli.cluster_logs import Wanted, lines_of
from bireme.core.errors import NetworkError, UsageError
from bireme.kube import naming
from bireme.kube.client import JOB, Cluster, ForbiddenError

LABELS = {naming.INSTANCE: "small", naming.NAME: "bireme", naming.MANAGED_BY: "bireme"}


def stamped(second: int, text: str) -> str:
    return f"2026-11-16T10:00:{second:02d}.000000001Z {text}"


class Pods:
    """A cluster with one pod; each time its log is asked for, the next of these answers comes."""

    namespace = "default"

    def __init__(self, *answers: list[str | Exception], is_over: bool = False) -> None:
        self._answers = list(answers)
        self._is_over = is_over
        self.asked: list[tuple[int | None, int | None]] = []

    def list(self, kind: object, labels: object) -> list[dict[str, Any]]:
        ended = self._is_over or not self._answers
        if kind is JOB:
            conditions = [{"type": "Complete", "status": "True"}] if ended else []
            meta = {"name": "small", "namespace": "default", "labels": LABELS, "uid": "j"}
            return [{"metadata": meta, "spec": {"completions": 1}, "status": {"conditions": conditions}}]
        meta = {"name": "small-0-x", "uid": "p", "labels": LABELS, "annotations": {naming.INDEX: "0"}}
        status = {"phase": "Succeeded" if ended else "Running", "containerStatuses": [{"state": {}}]}
        return [{"metadata": meta, "status": status}]

    def log(
        self, pod: str, *, is_following: bool = False, since_s: int | None = None, tail: int | None = None
    ) -> Iterator[str]:
        self.asked.append((since_s, tail))
        for each in self._answers.pop(0):
            if isinstance(each, Exception):
                raise each
            yield each


def told(pods: Pods, **wanted: Any) -> list[str]:
    return [line for _, line in lines_of(cast(Cluster, pods), "small", Wanted(**wanted), None)]


@pytest.fixture(autouse=True)
def look_often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cluster_logs, "PODS_EVERY_S", 0.0)


def test_a_log_that_its_machine_has_thrown_away_is_no_line() -> None:
    gone = "unable to retrieve container logs for containerd://123"
    assert told(Pods([stamped(1, "one"), gone], is_over=True)) == ["one"]


def test_a_machine_that_cannot_be_asked_leaves_the_log_as_it_is() -> None:
    assert told(Pods([stamped(1, "one"), NetworkError("no route")], is_over=True)) == ["one"]


@pytest.mark.parametrize("is_following", [False, True])
def test_that_logs_may_not_be_seen_is_said(is_following: bool) -> None:
    with pytest.raises(ForbiddenError):
        told(Pods([ForbiddenError("pods/log")], []), is_following=is_following)


def test_a_followed_log_is_taken_up_again_after_the_last_line_that_is_known() -> None:
    lost = NetworkError("reset")
    pods = Pods([stamped(1, "one"), stamped(2, "two"), lost], [stamped(2, "two"), stamped(3, "three")])
    assert told(pods, is_following=True, last=5) == ["one", "two", "three"]
    (since, tail), (again, whole) = pods.asked
    assert since is None and tail == 5
    assert again is not None and whole is None, "from there on, and then everything"


def test_the_volume_cannot_be_followed() -> None:
    with pytest.raises(UsageError, match="cannot be followed"):
        told(Pods(), is_following=True, from_volume=True)
