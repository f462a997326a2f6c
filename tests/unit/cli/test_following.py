"""Following a job on a cluster: how it is told to have ended."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, cast

import pytest

from bireme.cli import following
from bireme.cli.running import choose_view
from bireme.core.errors import ClusterError, ConfigScriptError
from bireme.kube import naming
from bireme.kube.client import JOB, Cluster, Kind

FAILED = {"type": "FailureTarget", "status": "True", "message": "exit code 4 matching FailJob rule"}
CAUSE = ConfigScriptError("there is no layer fc_layerr")


class Namespace:
    """A namespace with one job that has failed, and what its status is at each look; the last one stays."""

    def __init__(self, *statuses: dict[str, Any]) -> None:
        self.namespace = "mine"
        self._statuses = list(statuses)

    def list(self, kind: Kind, labels: object) -> Sequence[Any]:
        if kind is not JOB:
            return []
        status = self._statuses.pop(0) if len(self._statuses) > 1 else self._statuses[0]
        meta = {
            "name": "small",
            "labels": {naming.INSTANCE: "small"},
            "annotations": {naming.STATUS: json.dumps(status)},
        }
        return [{"metadata": meta, "spec": {}, "status": {"conditions": [FAILED]}}]


@pytest.fixture(autouse=True)
def _fast(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(following, "POLL_S", 0.0)


def end_of(namespace: Namespace) -> Exception:
    seen = following.follow(cast(Cluster, namespace), "small", choose_view(is_silent=True))
    assert seen is not None
    return following.ended_with(seen)


def test_a_job_that_kubernetes_ended_first_is_given_time_to_say_why() -> None:
    late = {"phase": "failed", "error": CAUSE.told()}
    error = end_of(Namespace({"phase": "gathering"}, {"phase": "gathering"}, late))
    assert isinstance(error, ConfigScriptError) and "fc_layerr" in error.what


def test_a_job_that_never_says_why_ends_with_kubernetes_words(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(following, "LAST_WORD_S", 0.01)
    error = end_of(Namespace({}))
    assert isinstance(error, ClusterError) and "exit code 4" in error.what and "why small" in error.fix
