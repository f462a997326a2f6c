"""Jobs sent to a real cluster: the same bits as here, sent twice safely, stopped, resumed, and reported."""

from __future__ import annotations

import re
import signal
from collections.abc import Callable
from pathlib import Path

import pytest
from tools.kube.crowd import dismiss_crowd, gather_crowd

from bireme.job.status import JobStatus
from bireme.kube.jobs.listing import pod_views
from tests.e2e.conftest import edit, save_often
from tests.kube.ordeal import MOST_PASSES, PACE, at_work, disturbed
from tests.kube.stage import There, hash_there, local_hash, small_job


def test_a_job_ends_with_the_bits_of_a_run_here(there: There, reviews: Path) -> None:
    job = small_job(there, reviews)
    assert there.ask("data", "push", job)["files"] > 0
    ended = there.ask("submit", job, "--wait")
    assert (ended["state"], ended["phase"], len(ended["passes_done"])) == ("finished", "finished", 2)
    assert hash_there(there, "small", 2) == local_hash(there, job)

    status = there.ask("status", "small")
    assert (status["state"], status["passes_done"], status["passes"]) == ("finished", 2, 2)
    assert [(pod["rank"], pod["role"], pod["restarts"]) for pod in status["pod_list"]] == [
        (0, "node", 0), (1, "node", 0), (2, "node", 0),
    ]  # fmt: skip
    assert {pod["machine"] for pod in status["pod_list"]} <= {"n1", "n2", "n3"}
    assert [row["name"] for row in there.ask("list")["cluster"]] == ["small"]
    assert "already finished" in there.do("resume", "small").out

    from_pods = there.do("logs", "small", "-n", "1000").out.splitlines()
    there.cluster.kubectl("delete", "pods", "--all", "-n", there.namespace)
    from_volume = there.do("logs", "small", "-n", "1000").out.splitlines()
    for lines in (from_pods, from_volume):
        times = [found[0] for line in lines if (found := re.search(r"\d\d:\d\d:\d\d\.\d+", line))]
        assert times == sorted(times) and len(times) > 20
        assert {line.split(":")[0] for line in lines if "Pass=1" in line} == {
            f"node_{node}/train.log" for node in range(3)
        }

    there.do("delete", "small")
    left = there.cluster.kubectl(
        "get", "jobs,pods,services,secrets,roles,rolebindings,netpol,pdb", "-n", there.namespace, "-o", "name"
    )
    assert left.strip() == ""
    there.do("fetch", "small", there.home / "later", "--image", there.image)
    assert (there.home / "later/pass-00001/done").is_file()
    assert there.run("verify", there.home / "later").code == 0
    there.do("delete", "small", "--volume")
    assert "small" not in there.cluster.kubectl("get", "pvc", "-n", there.namespace, "-o", "name")


def test_objects_that_the_server_only_checks_are_not_made(there: There, reviews: Path) -> None:
    job = small_job(there, reviews)
    there.do("submit", job, "--dry-run=server")
    ours = ("-l", "app.kubernetes.io/name=bireme")
    assert there.cluster.get("jobs,services,configmaps,pvc", "-n", there.namespace, *ours)["items"] == []
    edit(job, ("requests: {cpu: 100m", "requests: {cpu: 100q"))
    refused = there.do("submit", job, "--dry-run=server", code=3)
    assert "an amount as Kubernetes writes it" in refused.err
    edit(job, ("requests: {cpu: 100q", "requests: {cpu: 4"))
    job.write_text(job.read_text() + "  patch: {Job: {spec: {completionMode: Sideways}}}\n")
    assert "Unsupported value" in there.do("submit", job, "--dry-run=server", code=18).err


def test_a_job_sent_twice_is_one_job_and_a_changed_one_refused(there: There, reviews: Path) -> None:
    job = small_job(there, reviews, more="  suspend: true\n")
    assert there.ask("submit", job)["outcome"] == "created"
    assert there.ask("submit", job)["outcome"] == "unchanged"
    there.cluster.kubectl("delete", "service", "small", "-n", there.namespace)
    assert there.ask("submit", job)["outcome"] == "unchanged"
    there.cluster.kubectl("get", "service", "small", "-n", there.namespace)
    edit(job, ("passes: 2", "passes: 5"))
    refused = there.ask("submit", job, code=7)
    assert refused["why"] == "passes 2 → 5" and "submit it with `--replace`" in refused["fix"]
    assert there.ask("submit", job, "--replace")["outcome"] == "replaced"
    edit(job, ("passes: 5", "passes: 2"))
    assert there.ask("submit", job, "--replace")["outcome"] == "replaced"
    assert there.ask("submit", job, "--wait")["state"] == "suspended", "it is not followed"
    (job.parent / "quick_start/dataprovider_bow.py").write_text("# other\n")
    refused = there.run("submit", job, "--namespace", there.namespace)
    assert refused.code != 0


def test_names_of_others_are_left_alone(there: There, reviews: Path) -> None:
    there.cluster.kubectl("create", "service", "clusterip", "small", "--tcp=80", "-n", there.namespace)
    refused = there.do("submit", small_job(there, reviews), code=7)
    assert "the name small is taken: there is a Service of something that is not bireme's" in refused.err
    assert there.cluster.get("jobs", "-n", there.namespace)["items"] == []


def test_an_expiring_certificate_is_renewed_by_submitting_again(there: There, reviews: Path) -> None:
    job = small_job(there, reviews, more="  suspend: true\n  certificate_days: 10\n")
    there.do("submit", job)
    before = there.cluster.get("secret", "small-tls", "-n", there.namespace)["data"]
    assert there.ask("submit", job)["outcome"] == "renewed"
    after = there.cluster.get("secret", "small-tls", "-n", there.namespace)["data"]
    assert before["ca.crt"] == after["ca.crt"] and before["tls.crt"] != after["tls.crt"]
    assert "ca.key" not in after


@pytest.mark.slow  # Kubernetes takes a minute to bring a changed Secret to pods
@pytest.mark.parametrize("passes", [MOST_PASSES])
def test_pods_take_a_renewed_certificate_without_a_restart(
    there: There, reviews: Path, ends_well: Callable[[], None], passes: int
) -> None:
    job = disturbed(small_job(there, reviews, more="  certificate_days: 10\n"), passes)
    victim = at_work(there, job)

    def good_until() -> float:
        until = there.view("small").status.certificate_until
        return until if isinstance(until, float) else 0.0

    there.wait(lambda: good_until() > 0.0, "it says how long its certificate is good")
    until = good_until()
    assert there.do("submit", job, "--json", BIREME_FAULTS=PACE).json["outcome"] == "renewed"
    there.wait(lambda: good_until() > until, "pods have the new one")
    victim.survive(lambda: victim.kill_process(1, "trainer"))
    assert sum(pod.restarts for pod in pod_views(victim.pods(), JobStatus())) == 0
    ends_well()


@pytest.mark.slow  # test_leaving stops and resumes one within a pass
def test_a_stopped_and_resumed_job_ends_with_the_same_bits(there: There, reviews: Path) -> None:
    job = save_often(small_job(there, reviews), passes=5)
    there.do("data", "push", job)
    # Without waits it might end before the command that is to stop it has started.
    there.do("submit", job, BIREME_FAULTS="delay:seed=7,max_ms=50")
    there.wait(lambda: there.view("small").status.saved >= 1, "two passes are done")
    assert there.ask("cancel", "small")["state"] == "suspended"
    live = [pod for pod in there.pods() if pod["status"]["phase"] not in ("Succeeded", "Failed")]
    assert live == [] and there.state("small") == "suspended"
    # As after an interrupted resume, which makes the Job anew.
    there.cluster.kubectl("delete", "job", "small", "-n", there.namespace, "--cascade=orphan")
    there.do("resume", "small")
    there.wait_for_end("small")
    assert hash_there(there, "small", 5) == local_hash(there, job)
    there.do("resume", "small", "--passes", "6")
    there.wait_for_end("small")
    assert there.ask("status", "small")["passes"] == 6


def test_a_failed_job_says_why_and_continues_once_repaired(there: There, reviews: Path) -> None:
    job = small_job(there, reviews)
    failure = there.ask("submit", job, "--wait", code=5)
    assert failure["error"] == "DataError" and "shard" in failure["what"] + failure["why"] + failure["fix"]
    assert there.state("small") == "failed"
    there.do("data", "push", job)
    again = there.ask("submit", job, "--wait", code=18)
    assert "has failed before" in again["what"] and "bireme resume small" in again["fix"]
    there.do("resume", "small")
    there.wait_for_end("small")


def test_groups_counted_apart_are_two_jobs_with_the_same_bits(there: There, reviews: Path) -> None:
    job = small_job(there, reviews)
    job.write_text(job.read_text() + "pservers: 2\ntrainers: 3\n")
    there.do("data", "push", job)
    there.ask("submit", job, "--wait")
    roles = [(pod["role"], pod["rank"]) for pod in there.ask("status", "small")["pod_list"]]
    assert roles == [("pserver", 0), ("pserver", 1), ("trainer", 0), ("trainer", 1), ("trainer", 2)]
    assert hash_there(there, "small", 2) == local_hash(there, job)


def test_a_suspended_job_has_no_pods_until_it_is_resumed(there: There, reviews: Path) -> None:
    job = small_job(there, reviews, more="  suspend: true\n")
    there.do("data", "push", job)
    there.do("submit", job)
    assert there.state("small") == "suspended" and there.pods("app.kubernetes.io/instance=small") == []
    there.do("resume", "small")
    there.wait(lambda: len(there.pods("app.kubernetes.io/instance=small")) == 3, "there are three pods")
    queued = small_job(there, reviews, "night", more="  queue: evening\n")
    there.do("submit", queued)
    assert there.state("night") == "queued"
    made = there.cluster.get("job", "night", "-n", there.namespace)
    assert made["metadata"]["labels"]["kueue.x-k8s.io/queue-name"] == "evening" and made["spec"]["suspend"]


WORKLOADS = {
    "apiVersion": "apiextensions.k8s.io/v1",
    "kind": "CustomResourceDefinition",
    "metadata": {"name": "workloads.kueue.x-k8s.io"},
    "spec": {
        "group": "kueue.x-k8s.io",
        "names": {"kind": "Workload", "plural": "workloads"},
        "scope": "Namespaced",
        "versions": [
            {
                "name": "v1beta1",
                "served": True,
                "storage": True,
                "schema": {
                    "openAPIV3Schema": {"type": "object", "x-kubernetes-preserve-unknown-fields": True},
                },
            }
        ],
    },
}
"""What Kueue's objects look like from outside; Kueue itself is not there."""


@pytest.mark.alone  # it makes a kind of objects for the whole cluster
def test_a_queued_job_is_stopped_and_resumed_by_the_queue(there: There, reviews: Path) -> None:
    there.do("submit", small_job(there, reviews, "night", more="  queue: evening\n"))
    there.cluster.apply(WORKLOADS)
    there.cluster.kubectl("wait", "--for=condition=Established", "crd/workloads.kueue.x-k8s.io", "--timeout=30s")
    owner = there.cluster.get("job", "night", "-n", there.namespace)["metadata"]
    owned = {"apiVersion": "batch/v1", "kind": "Job", "name": "night", "uid": owner["uid"]}
    meta = {"name": "job-night-1a2b3", "namespace": there.namespace, "ownerReferences": [owned]}
    kind = {"apiVersion": "kueue.x-k8s.io/v1beta1", "kind": "Workload"}
    there.cluster.apply({**kind, "metadata": meta, "spec": {"active": True}})

    def is_active() -> bool:
        found = there.cluster.get("workloads.kueue.x-k8s.io", "job-night-1a2b3", "-n", there.namespace)
        return bool(found["spec"]["active"])

    try:
        there.do("cancel", "night")
        assert not is_active()
        there.do("resume", "night")
        assert is_active() and there.cluster.get("job", "night", "-n", there.namespace)["spec"]["suspend"]
    finally:
        there.cluster.kubectl("delete", "crd", "workloads.kueue.x-k8s.io", "--wait=false")


def test_leaving_does_not_end_a_job(there: There, reviews: Path) -> None:
    job = disturbed(small_job(there, reviews), passes=2)
    there.do("data", "push", job)
    following = there.start("submit", job, "--wait", "--namespace", there.namespace, BIREME_FAULTS=PACE)
    assert following.stdout is not None
    begun = ("handing out parameters", "training", "pass ")
    assert any(line.startswith(begun) for line in following.stdout), "it is followed"
    following.send_signal(signal.SIGINT)
    out, err = following.communicate(timeout=60)
    assert following.returncode == 130, out + err
    assert "keeps running" in err
    there.wait_for_end("small")


@pytest.mark.slow  # test_recovery drains a node
def test_one_pod_at_a_time_may_be_drained_away(there: There, reviews: Path) -> None:
    job = save_often(small_job(there, reviews), passes=4)
    edit(job, ("passes: 4", "passes: 200"))
    there.do("data", "push", job)
    there.do("submit", job)

    def allowed() -> int:
        budget = there.cluster.get("pdb", "small", "-n", there.namespace)
        return int(budget.get("status", {}).get("disruptionsAllowed", 0))

    there.wait(lambda: allowed() == 1, "one pod may go")
    there.do("delete", "small")


# The controller makes and removes about twenty pods a second, and those of other tests wait meanwhile.
@pytest.mark.parametrize("count", [50, pytest.param(500, marks=pytest.mark.slow)])
def test_the_status_of_a_job_of_many_pods_has_each(there: There, count: int) -> None:
    gather_crowd(there.cluster, there.namespace, count)
    status = there.ask("status", "crowd")
    dismiss_crowd(there.cluster, there.namespace)
    assert len(status["pod_list"]) == count and status["state"] == "pending"
