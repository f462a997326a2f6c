"""A job begins when all its pods are there: one that no machine takes keeps it waiting, and it says so."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from tools.kube.cluster import Cluster
from tools.kube.victim import RANK, Victim

from tests.e2e.conftest import edit
from tests.kube.ordeal import at_work, disturbed
from tests.kube.stage import There, small_job

SEAT = "bireme.test/seat"


def furnish(cluster: Cluster, machine: str, *, has_seat: bool) -> None:
    """Let a machine have one seat to give away, or none."""
    capacity = {"status": {"capacity": {SEAT: "1" if has_seat else None}}}
    patch = ("--subresource=status", "--type=merge", "-p", json.dumps(capacity))
    cluster.kubectl("patch", "node", machine, *patch)


@pytest.fixture
def two_seats(cluster: Cluster) -> Iterator[Cluster]:
    """The cluster, of which two of three machines have a seat."""
    for machine in ("n1", "n2"):
        furnish(cluster, machine, has_seat=True)
    yield cluster
    for machine in ("n1", "n2", "n3"):
        furnish(cluster, machine, has_seat=False)


def test_a_job_waits_for_a_pod_without_a_machine(there: There, reviews: Path, two_seats: Cluster) -> None:
    job = small_job(there, reviews)
    edit(job, ("resources: {", f"resources: {{limits: {{{SEAT}: 1}}, "))
    there.do("data", "push", job)
    there.do("submit", job)
    victim = Victim(two_seats, there.namespace, "small")
    there.wait(lambda: there.view("small").status.waits_for, "it says for which pods it waits")

    (missing,) = (pod for pod in victim.pods() if pod["status"]["phase"] == "Pending")
    rank = int(missing["metadata"]["labels"][RANK])
    assert there.view("small").status.waits_for == (f"node {rank} (its pod gives no sign of life)",)
    (cause,) = there.ask("why", "small")["causes"]
    assert cause["situation"] == "too-little-else"
    assert f"Pod {missing['metadata']['name']} asks for 1 {SEAT}" in cause["cause"], cause
    shown = there.do("status", "small").out
    assert "2 of 3 pods run" in shown and f"waits for node {rank}" in shown

    assert victim.lines() == [] and victim.lines("view") == [], "nothing was trained"
    for other in {0, 1, 2} - {rank}:
        assert set(victim.processes(other)) == {"entry"}, "nothing but the pods' first processes was started"
    furnish(two_seats, "n3", has_seat=True)
    there.wait_for_end("small")
    assert {pod["spec"]["nodeName"] for pod in victim.pods()} == {"n1", "n2", "n3"}


def test_a_job_whose_pod_never_comes_ends_and_frees_the_others(there: There, reviews: Path, two_seats: Cluster) -> None:
    job = small_job(there, reviews)
    # Five times that is how long pods are waited for.
    hasty = ("connect_timeout_s: 30", "connect_timeout_s: 2")
    edit(job, hasty, ("resources: {", f"resources: {{limits: {{{SEAT}: 1}}, "))
    there.do("data", "push", job)
    there.do("submit", job)
    there.wait(lambda: there.state("small") == "failed", "it is given up")
    error = there.view("small").error
    assert "waited" in error["what"] and "its pod gives no sign of life" in error["what"], error

    def has_failed() -> bool:
        conditions = two_seats.get("job", "small", "-n", there.namespace)["status"]["conditions"]
        return any(each["type"] == "Failed" for each in conditions)

    there.wait(has_failed, "Kubernetes has given it up too")
    victim = Victim(two_seats, there.namespace, "small")
    there.wait(lambda: all(p["status"]["phase"] not in ("Running", "Pending") for p in victim.pods()), "no pod is left")


@pytest.mark.slow  # the test before shows how a job ends that waits in vain
def test_a_job_that_loses_a_pod_for_good_ends_and_names_it(there: There, reviews: Path, two_seats: Cluster) -> None:
    furnish(two_seats, "n3", has_seat=True)
    job = disturbed(small_job(there, reviews), passes=30)
    hasty = ("connect_timeout_s: 30", "connect_timeout_s: 5")
    edit(job, hasty, ("resources: {", f"resources: {{limits: {{{SEAT}: 1}}, "))
    victim = at_work(there, job)
    rank = next(rank for rank in range(3) if victim.machine_of(rank) == "n3")
    furnish(two_seats, "n3", has_seat=False)
    victim.kill_container(rank)  # which cannot say that it leaves
    there.wait(lambda: there.state("small") == "failed", "it is given up")
    # Kubernetes may have given up before the pods could say why.
    there.wait(lambda: there.view("small").error, "it says why", 60)
    error = there.view("small").error
    # (Whose pods are left without a seat once all have failed is up to the cluster.)
    assert re.search(r"waited \d+ s for node \d \(its pod gives no sign of life\)", error["what"]), error
