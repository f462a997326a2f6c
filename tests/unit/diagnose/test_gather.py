"""What `gather` makes of the answers of a cluster."""

from __future__ import annotations

import base64
import time
from typing import Any, cast

import pytest

from bireme.core.certificates import files_of, make_ca
from bireme.diagnose.gather import gather
from bireme.kube.api.client import Cluster

Things = list[dict[str, Any]]
Lines = list[str]
LABELS = {"app.kubernetes.io/instance": "reviews"}
POD = {
    "metadata": {"name": "reviews-0-abcde"},
    "spec": {"volumes": [{"secret": {"secretName": "reviews-tls"}}]},
    "status": {"phase": "Running"},
}


class FakeCluster:
    """The few calls that `gather` makes, for one job of one pod."""

    namespace = "ns"

    def __init__(self, certificate: bytes) -> None:
        self.secret = {"data": {"tls.crt": base64.b64encode(certificate).decode()}}

    def list(self, kind: Any, labels: dict[str, str]) -> Things:
        things: dict[str, Things] = {
            "Job": [{"metadata": {"name": "reviews-pserver", "labels": LABELS}, "spec": {}}],
            "Pod": [POD],
        }
        return things.get(kind.kind, [])

    def nodes(self) -> Things:
        return []

    def get(self, kind: Any, name: str) -> dict[str, Any]:
        assert name == "reviews-tls"
        return self.secret

    def impatient(self, seconds: float) -> FakeCluster:
        return self

    def __enter__(self) -> FakeCluster:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def log(self, name: str, *, container: str | None, tail: int) -> Lines:
        return ["2026-11-16T17:19:34Z waiting", "unable to retrieve container logs for x"]


def test_a_job_is_found_by_its_label_and_its_certificate_read() -> None:
    certificate = files_of(make_ca("reviews"), "reviews", days=2.0)["tls.crt"]
    now = time.time()
    evidence = gather(cast(Cluster, FakeCluster(certificate)), "reviews", now)
    assert [job["metadata"]["name"] for job in evidence.jobs] == ["reviews-pserver"] and evidence.others == ("reviews",)
    assert evidence.certificate["not_after"] == pytest.approx(now + 2 * 86400, abs=120)
    assert evidence.logs == {"reviews-0-abcde": "waiting"} and evidence.denied == ()


def test_a_certificate_that_cannot_be_read_is_left_out() -> None:
    assert gather(cast(Cluster, FakeCluster(b"none")), "reviews", 0.0).certificate == {}
