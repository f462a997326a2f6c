"""Stopping a job on a cluster, going on with it, and taking it away.

A stop is a suspension: pods are asked to leave, take a snapshot and go, and all that describes the job stays. Going on
undoes that. A job that has ended cannot be started again as it is, so its Jobs are made anew from what they left.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import msgspec

from bireme.core.errors import SpecError, UsageError
from bireme.kube import naming
from bireme.kube.client import CLAIM, CONFIG_MAP, JOB, KINDS, POD, WORKLOAD, AbsentError, Cluster
from bireme.kube.indexed import GRACE_S
from bireme.kube.listing import JobView, by_name, job_view, status_in
from bireme.kube.objects import build
from bireme.kube.submission import Object, Submission
from bireme.kube.submit import disown, read_back, send

WAIT_EVERY_S = 0.2
PATIENCE_S = GRACE_S + 15.0


def jobs_of(cluster: Cluster, name: str) -> list[Object]:
    """The Jobs of a job, the one with the status first; empty where there is none."""
    return by_name(cluster.list(JOB, naming.labels_of(name))).get(name, [])


def find_job(cluster: Cluster, name: str) -> list[Object]:
    """The Jobs of a job; says which jobs there are if it is not among them."""
    found = jobs_of(cluster, name)
    if found:
        return found
    known = sorted(by_name(cluster.list(JOB, {naming.MANAGED_BY: "bireme"})))
    where = f"in the namespace {cluster.namespace} of context {cluster.context}"
    hint = f"known jobs there: {', '.join(known)}" if known else "bring one there with `bireme submit JOB.yaml`"
    raise UsageError(f"there is no job {name!r} {where}", fix=hint)


def suspend(cluster: Cluster, name: str, *, is_hasty: bool) -> bool:
    """Ask a job's pods to leave and wait until they have; False if some are still there. Hasty: without a snapshot."""
    jobs = find_job(cluster, name)
    _tell_queue(cluster, jobs, is_active=False)
    for each in jobs:
        cluster.patch(JOB, each["metadata"]["name"], {"spec": {"suspend": True}})
    if is_hasty:
        for pod in cluster.list(POD, naming.selector_of(name)):
            cluster.delete(POD, pod["metadata"]["name"], grace_s=0)
    return wait_until(lambda: not _live_pods(cluster, name), PATIENCE_S)


def unsuspend(cluster: Cluster, name: str) -> None:
    """Let a suspended job go on as it is; one in a queue goes back there, and the queue starts it."""
    jobs = find_job(cluster, name)
    if _tell_queue(cluster, jobs, is_active=True):
        return
    for each in jobs:
        cluster.patch(JOB, each["metadata"]["name"], going_on(each))


def _tell_queue(cluster: Cluster, jobs: Iterable[Object], *, is_active: bool) -> bool:
    """Tell Kueue whether a job wants to run: else it would start again what was stopped. False where it has no say."""
    owners = {each["metadata"]["uid"] for each in jobs if naming.QUEUE in (each["metadata"].get("labels") or {})}
    if not owners:
        return False
    try:
        loads = cluster.list(WORKLOAD, {})
    except AbsentError:
        return False  # there is no Kueue
    own = [w for w in loads if owners & {o.get("uid") for o in w["metadata"].get("ownerReferences") or ()}]
    for each in own:
        cluster.patch(WORKLOAD, each["metadata"]["name"], {"spec": {"active": is_active}})
    return bool(own)


def going_on(job: Object) -> Object:
    """What lets a suspended Job go on; its last status would look as if its pods were there already."""
    change: Object = {"spec": {"suspend": False}}
    status = status_in(job)
    if status:
        status |= {"phase": "gathering", "trainers": [], "pservers": [], "waits_for": []}
        change["metadata"] = {"annotations": {naming.STATUS: json.dumps(status)}}
    return change


def start_again(cluster: Cluster, name: str, changes: Mapping[str, Any]) -> Submission:
    """Make a job's Jobs anew, so that they go on from the newest snapshot; `changes` are fields of the job.

    The Jobs may be gone already: whoever tried this before may have been interrupted.
    """
    then = read_back(cluster, name)
    now = resumed(then, changes)
    others = [each for each in build(then) if each["kind"] not in ("Job", "PersistentVolumeClaim")]
    disown(cluster, others)
    for each in jobs_of(cluster, name):
        cluster.delete(JOB, each["metadata"]["name"])
    if not wait_until(lambda: not jobs_of(cluster, name) and not _live_pods(cluster, name), PATIENCE_S):
        # A pod on a machine that is gone stays for ever; the new ones take its seat, and it has no say any more.
        staying = [pod for pod in _live_pods(cluster, name) if not pod["metadata"].get("deletionTimestamp")]
        if staying or jobs_of(cluster, name):
            raise UsageError(f"the pods of {name} have not left yet", fix="try again in a moment")
    send(cluster, build(now))
    return now


def has_left_its_plan(cluster: Cluster, name: str) -> bool:
    """Whether what a job was submitted with is still there."""
    there = cluster.find(CONFIG_MAP, name)
    return there is not None and naming.is_ours(there)


def resumed(then: Submission, changes: Mapping[str, Any]) -> Submission:
    """A submission that goes on where another has stopped; the same one goes on by itself."""
    job = msgspec.structs.replace(then.job, is_resumed=bool(changes) or then.job.is_resumed, **changes)
    if job.trainers > job.shards:
        raise SpecError(f"{job.trainers} trainers but only {job.shards} data shards", fix="ask for fewer trainers")
    job = msgspec.structs.replace(job, hosts=naming.hosts_of(job, then.namespace))
    naming.check_name(job)
    settings = msgspec.structs.replace(then.settings, suspend=False)
    return Submission(job, settings, then.namespace, then.image, then.program, then.certificates)


def delete(cluster: Cluster, name: str, *, with_volume: bool) -> list[str]:
    """Take a job away and return what was deleted; the volume claim only if that is asked for, and if it is ours."""
    kinds = [kind for kind in KINDS.values() if kind.kind not in ("Pod", "Event", CLAIM.kind)]
    kinds += [CLAIM] if with_volume else []
    found = [(kind, called) for kind in kinds for called in names_of(cluster.list(kind, naming.labels_of(name)))]
    if not found:
        find_job(cluster, name)
    # Jobs first: what is deleted under running pods would only make them fail.
    ordered = sorted(found, key=lambda each: each[0] is not JOB)
    gone = [f"{kind.kind} {called}" for kind, called in ordered if cluster.delete(kind, called)]
    wait_until(lambda: not jobs_of(cluster, name), PATIENCE_S)
    return gone


def view_of(cluster: Cluster, name: str) -> JobView:
    """How a job is doing."""
    return job_view(find_job(cluster, name))


def _live_pods(cluster: Cluster, name: str) -> list[Object]:
    return [pod for pod in cluster.list(POD, naming.selector_of(name)) if is_live(pod)]


def is_live(pod: Object) -> bool:
    """Whether a pod's processes may still run."""
    return (pod.get("status") or {}).get("phase") not in ("Succeeded", "Failed")


def wait_until(is_so: Callable[[], bool], patience_s: float) -> bool:
    """Look again and again whether something is so, for a while."""
    deadline = time.monotonic() + patience_s
    while not is_so():
        if time.monotonic() > deadline:
            return False
        time.sleep(WAIT_EVERY_S)
    return True


def names_of(things: Iterable[Object]) -> list[str]:
    """What objects are called."""
    return [str(each["metadata"]["name"]) for each in things]
