"""Stopping a job on a cluster, going on with it, and taking it away.

A stop is a suspension: pods are asked to leave, take a snapshot and go, and all that describes the job stays. Going on
undoes that. A job that has ended cannot be started again as it is, so its Jobs are made anew from what they left.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import msgspec

from bireme.core.errors import NetworkError, SpecError, UsageError
from bireme.kube.api import naming
from bireme.kube.api.client import CLAIM, CONFIG_MAP, JOB, KINDS, POD, SECRET, WORKLOAD, AbsentError, Cluster, Kind
from bireme.kube.jobs.listing import JobView, by_name, job_view, status_in
from bireme.kube.submit.indexed_jobs import GRACE_S
from bireme.kube.submit.objects import build
from bireme.kube.submit.placement import directory_of
from bireme.kube.submit.submission import Object, Submission
from bireme.kube.submit.submit import disown, read_back, send
from bireme.spec.load import command_name

WAIT_EVERY_S = 0.5
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
        stopped = {"metadata": {"annotations": {naming.CANCELLED: "true"}}, "spec": {"suspend": True}}
        cluster.patch(JOB, each["metadata"]["name"], stopped)
    if is_hasty:
        for pod in cluster.list(POD, naming.selector_of(name)):
            cluster.delete(POD, pod["metadata"]["name"], grace_s=0)
    return wait_until(lambda: not _live_pods(cluster, name), PATIENCE_S)


def unsuspend(cluster: Cluster, name: str) -> None:
    """Let a suspended job go on as it is; one in a queue goes back there, and the queue starts it."""
    jobs = find_job(cluster, name)
    is_queued = _tell_queue(cluster, jobs, is_active=True)
    for each in jobs:
        change: Object = going_on(each)
        if is_queued:  # it is the queue that starts it
            del change["spec"]
        cluster.patch(JOB, each["metadata"]["name"], change)


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
    said: Object = {naming.CANCELLED: None}
    status = status_in(job)
    if status:
        status |= {"phase": "gathering", "trainers": [], "pservers": []}
        status |= {"waits_for": [], "stragglers": [], "warnings": [], "error": None}
        said[naming.STATUS] = json.dumps(status)
    return {"metadata": {"annotations": said}, "spec": {"suspend": False}}


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
    see_off(cluster, name)
    send(cluster, build(now))
    return now


def see_off(cluster: Cluster, name: str) -> None:
    """Wait until the pods of Jobs that were deleted have left: they may be taking a snapshot.

    One on a machine that is gone is never seen to leave; whoever comes next takes its seat, and it has no say any more.
    """
    if wait_until(lambda: not jobs_of(cluster, name) and not _live_pods(cluster, name), PATIENCE_S):
        return
    staying = [pod for pod in _live_pods(cluster, name) if not pod["metadata"].get("deletionTimestamp")]
    if staying or jobs_of(cluster, name):
        raise UsageError(f"the pods of {name} have not left yet", fix="try again in a moment")


def has_left_its_plan(cluster: Cluster, name: str) -> bool:
    """Whether what a job was submitted with is still there."""
    there = cluster.find(CONFIG_MAP, name)
    return there is not None and naming.is_ours(there)


def resumed(then: Submission, changes: Mapping[str, Any]) -> Submission:
    """A submission that goes on where another has stopped; the same one goes on by itself."""
    job = msgspec.structs.replace(then.job, is_resumed=bool(changes) or then.job.is_resumed, **changes)
    if job.trainers > job.shards:
        raise SpecError(f"{job.trainers} trainers but only {job.shards} data shards", fix="ask for fewer trainers")
    is_apart = then.settings.is_apart
    job = msgspec.structs.replace(job, hosts=naming.hosts_of(job, then.namespace, is_apart=is_apart))
    naming.check_name(job, is_apart=is_apart)
    settings = msgspec.structs.replace(then.settings, suspend=False)
    return Submission(job, settings, then.namespace, then.image, then.program, then.certificates)


class _Stay(NamedTuple):
    """Where a job's files are and which image can read them, as far as what is on the cluster tells."""

    claim: str
    output: str
    image: str


@dataclass(frozen=True, slots=True)
class Deleted:
    """What was taken away of a job, and what has become of its volume."""

    things: list[str]
    claim: str
    volume: Literal["deleted", "kept", "absent"]
    ignored: str = ""
    """Why the volume is still there although it was to be deleted; empty if it was not."""
    fetching: str = ""
    """The command that brings models from a volume that is still there."""

    def words(self, name: str) -> Iterator[str]:
        """What the user is told of it."""
        called = "its volume" if self.claim == name else f"its volume {self.claim}"
        if self.volume == "deleted":
            yield f"{name} is deleted, with {called}"
        elif self.volume == "absent":
            yield f"{name} is deleted; its volume claim {self.claim} is not there any more"
        else:
            yield f"{name} is deleted; {called} is still there"
            if self.ignored:
                yield f"--volume was ignored: {self.ignored}"
            yield f"models can be brought from it with `{self.fetching}`"


def delete(cluster: Cluster, name: str, *, with_volume: bool) -> Deleted:
    """Take a job away; the volume claim only if that is asked for, if it is ours and if no other job uses it."""
    kinds = [kind for kind in KINDS.values() if kind.kind not in ("Pod", "Event", CLAIM.kind)]
    kinds += [CLAIM] if with_volume else []
    found = [(kind, called) for kind in kinds for called in _own_names(cluster, kind, name)]
    if not found:
        find_job(cluster, name)
    refuse_shared(cluster, name, {called for kind, called in found if kind is CLAIM})
    stay = _stay_of(cluster, name)
    # Jobs first: pods take a snapshot before they leave, for which they need what is around them.
    gone = _delete_all(cluster, [each for each in found if each[0] is JOB])
    see_off(cluster, name)
    gone += _delete_all(cluster, [each for each in found if each[0] is not JOB])
    if f"{CLAIM.kind} {stay.claim}" in gone:
        return Deleted(gone, stay.claim, "deleted")
    there = cluster.find(CLAIM, stay.claim)
    if there is None or there["metadata"].get("deletionTimestamp"):
        return Deleted(gone, stay.claim, "absent")
    ignored = _whose(there, cluster.namespace) if with_volume else ""
    return Deleted(gone, stay.claim, "kept", ignored, _fetching(name, stay, cluster.namespace))


def _own_names(cluster: Cluster, kind: Kind, name: str) -> list[str]:
    """What a job has on the cluster of one kind; its Secret by name, as to list them would be to read them all."""
    if kind is not SECRET:
        return names_of(cluster.list(kind, naming.labels_of(name)))
    there = cluster.find(SECRET, f"{name}-tls")
    is_own = there is not None and naming.is_ours(there) and there["metadata"]["labels"].get(naming.INSTANCE) == name
    return [f"{name}-tls"] if is_own else []


def _delete_all(cluster: Cluster, things: Iterable[tuple[Kind, str]]) -> list[str]:
    return [f"{kind.kind} {called}" for kind, called in things if cluster.delete(kind, called)]


def refuse_shared(cluster: Cluster, name: str, claims: set[str]) -> None:
    """Refuse to delete volume claims that other jobs use: their models are on the same volume."""
    used = claims_by_job(cluster) if claims else {}
    others = sorted(other for other, theirs in used.items() if other != name and theirs & claims)
    if others:
        raise UsageError(
            f"the volume claim {', '.join(sorted(claims))} is used by other jobs too: {', '.join(others)}",
            why="their models and data would be gone with it; nothing was deleted",
            fix=f"delete those first, or leave --volume away: `{command_name()} delete {name} --namespace "
            f"{cluster.namespace}` keeps the volume",
        )


def claims_by_job(cluster: Cluster) -> dict[str, set[str]]:
    """The volume claims that each job of the namespace uses, also one whose Jobs are gone but which can be resumed."""
    found: dict[str, set[str]] = {}
    for each in cluster.list(JOB, {naming.MANAGED_BY: "bireme"}):
        labels = each["metadata"]["labels"]
        # (Data is split on a volume for a job that may not be there yet.)
        whose = labels.get(naming.INSTANCE) or labels.get(naming.VOLUME_OF) or each["metadata"]["name"]
        found.setdefault(whose, set()).update(_claims_in(each))
    for each in cluster.list(CONFIG_MAP, {naming.MANAGED_BY: "bireme"}):
        name = str(each["metadata"]["name"])
        found.setdefault(name, set()).add(_claim_told(name, _told_in(each, "settings.json")))
    return found


def _claims_in(job: Object) -> list[str]:
    """The volume claims that a Job's pods mount, the one with the job's files first."""
    volumes = (((job.get("spec") or {}).get("template") or {}).get("spec") or {}).get("volumes") or ()
    ordered = sorted(volumes, key=lambda each: each.get("name") != "volume")
    return [str(v["persistentVolumeClaim"]["claimName"]) for v in ordered if v.get("persistentVolumeClaim")]


def _claim_told(name: str, settings: Mapping[str, Any]) -> str:
    """The claim that a job was submitted with."""
    return naming.claim_of(name, (settings.get("volume") or {}).get("claim"))


def _told_in(config_map: Object | None, key: str) -> dict[str, Any]:
    """What a job's ConfigMap says under a key; empty where another version has written it so that we cannot read it."""
    try:
        told = json.loads(((config_map or {}).get("data") or {}).get(key) or "{}")
    except ValueError:
        return {}
    return told if isinstance(told, dict) else {}


def _stay_of(cluster: Cluster, name: str) -> _Stay:
    there = cluster.find(CONFIG_MAP, name)
    own = there if there is not None and naming.is_ours(there) else None
    settings = _told_in(own, "settings.json")
    claims = [claim for each in jobs_of(cluster, name) for claim in _claims_in(each)]
    claim = claims[0] if claims else _claim_told(name, settings)
    return _Stay(claim, str(_told_in(own, "job.json").get("output", "")), str(settings.get("image") or "NAME"))


def _whose(claim: Object, namespace: str) -> str:
    """Why a claim is not deleted with a job."""
    called, labels = claim["metadata"]["name"], claim["metadata"].get("labels") or {}
    if naming.is_ours(claim):
        other = labels.get(naming.INSTANCE)
        how = f"`{command_name()} delete {other} --volume --namespace {namespace}` deletes it"
        return f"the claim {called} was made for the job {other}; {how}"
    return f"bireme did not make the claim {called}; `kubectl delete pvc {called} -n {namespace}` deletes it"


def _fetching(name: str, stay: _Stay, namespace: str) -> str:
    """The command that brings a deleted job's models: by its name where most have their files, else by its file."""
    is_usual = stay.claim == name and stay.output in ("", str(directory_of(name) / "output"))
    job = name if is_usual else "JOB.yaml"
    return f"{command_name()} fetch {job} DIR --image {stay.image} --namespace {namespace}"


def view_of(cluster: Cluster, name: str) -> JobView:
    """How a job is doing."""
    return job_view(find_job(cluster, name))


def _live_pods(cluster: Cluster, name: str) -> list[Object]:
    return [pod for pod in cluster.list(POD, naming.selector_of(name)) if is_live(pod)]


def is_live(pod: Object) -> bool:
    """Whether a pod's processes may still run."""
    return (pod.get("status") or {}).get("phase") not in ("Succeeded", "Failed")


def wait_until(is_so: Callable[[], bool], patience_s: float) -> bool:
    """Look again and again whether something is so, for a while; an API server that is busy is asked again."""
    deadline = time.monotonic() + patience_s
    while True:
        is_last = time.monotonic() > deadline
        try:
            if is_so():
                return True
        except NetworkError:
            if is_last:
                raise
        if is_last:
            return False
        time.sleep(WAIT_EVERY_S)


def names_of(things: Iterable[Object]) -> list[str]:
    """What objects are called."""
    return [str(each["metadata"]["name"]) for each in things]
