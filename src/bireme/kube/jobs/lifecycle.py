"""Stop, resume and delete a job on a cluster.

A stop suspends the Jobs: their pods take a snapshot and end, and the other objects stay. Resuming undoes that. A job
that has ended cannot be restarted, so its Jobs are created again from its ConfigMap.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Literal

import msgspec
from msgspec.structs import replace

from bireme.core.errors import NetworkError, SpecError, UsageError
from bireme.kube.api import naming
from bireme.kube.api.client import CLAIM, CONFIG_MAP, JOB, KINDS, POD, SECRET, WORKLOAD, AbsentError, Cluster, Kind
from bireme.kube.api.fields import claims_of, has_ended, labels_in, meta, name_of, spec_of
from bireme.kube.api.naming import Object
from bireme.kube.jobs.listing import JobView, by_name, job_view, status_in
from bireme.kube.submit.indexed_jobs import GRACE_S
from bireme.kube.submit.objects import build
from bireme.kube.submit.placement import directory_of
from bireme.kube.submit.submission import Submission
from bireme.kube.submit.submit import disown, read_back, send, submitted_map
from bireme.spec.load import command_name

WAIT_EVERY_S = 0.5
PATIENCE_S = GRACE_S + 15.0


def jobs_of(cluster: Cluster, name: str) -> list[Object]:
    return by_name(cluster.list(JOB, naming.labels_of(name))).get(name, [])


def find_job(cluster: Cluster, name: str) -> list[Object]:
    jobs = jobs_of(cluster, name)
    if jobs:
        return jobs
    names = sorted(by_name(cluster.list(JOB, {naming.MANAGED_BY: "bireme"})))
    where = f"in the namespace {cluster.namespace} of context {cluster.context}"
    hint = f"known jobs there: {', '.join(names)}" if names else "bring one there with `bireme submit JOB.yaml`"
    raise UsageError(f"there is no job {name!r} {where}", fix=hint)


def suspend(cluster: Cluster, name: str, *, is_hasty: bool) -> bool:
    """Stop a job's pods and wait until they have ended; False if some still run. Hasty: without a snapshot."""
    jobs = find_job(cluster, name)
    _set_queue_active(cluster, jobs, is_active=False)
    for each in jobs:
        stopped = {"metadata": {"annotations": {naming.CANCELLED: "true"}}, "spec": {"suspend": True}}
        cluster.patch(JOB, name_of(each), stopped)
    if is_hasty:
        for pod in cluster.list(POD, naming.selector_of(name)):
            cluster.delete(POD, name_of(pod), grace_s=0)
    return wait_until(lambda: not _live_pods(cluster, name), PATIENCE_S)


def unsuspend(cluster: Cluster, name: str) -> None:
    """Resume a suspended job as it is; one in a queue goes back there, and the queue starts it."""
    jobs = find_job(cluster, name)
    is_queued = _set_queue_active(cluster, jobs, is_active=True)
    for each in jobs:
        change = resume_patch(each)
        if is_queued:  # Kueue unsuspends the Job when it admits it
            del change["spec"]
        cluster.patch(JOB, name_of(each), change)


def _set_queue_active(cluster: Cluster, jobs: Iterable[Object], *, is_active: bool) -> bool:
    """Set whether Kueue may start a job: else it would restart a stopped one. False where Kueue does not manage it."""
    owners = {each["metadata"]["uid"] for each in jobs if naming.QUEUE in labels_in(each)}
    if not owners:
        return False
    try:
        loads = cluster.list(WORKLOAD, {})
    except AbsentError:
        return False  # Kueue is not installed
    own = [w for w in loads if owners & {o.get("uid") for o in w["metadata"].get("ownerReferences") or ()}]
    for each in own:
        cluster.patch(WORKLOAD, name_of(each), {"spec": {"active": is_active}})
    return bool(own)


def resume_patch(job: Object) -> Object:
    """The patch that resumes a Job; it clears the members in its last status, as no pod runs yet."""
    annotations: Object = {naming.CANCELLED: None}
    status = status_in(job)
    if status.phase:
        rested = replace(
            status, phase="gathering", trainers=(), pservers=(), waits_for=(), stragglers=(), warnings=(), error=None
        )
        annotations[naming.STATUS] = msgspec.json.encode(rested).decode()
    return {"metadata": {"annotations": annotations}, "spec": {"suspend": False}}


def start_again(cluster: Cluster, name: str, changes: Mapping[str, Any]) -> None:
    """Create a job's Jobs again, so that they resume from the newest snapshot; `changes` are fields of the job.

    The Jobs may be gone already, if an earlier call was interrupted.
    """
    then = read_back(cluster, name)
    now = resumed(then, changes)
    others = [each for each in build(then) if each["kind"] not in ("Job", "PersistentVolumeClaim")]
    disown(cluster, others)  # first: deleting their owner would delete them too
    for each in jobs_of(cluster, name):
        cluster.delete(JOB, name_of(each))
    wait_until_gone(cluster, name)
    send(cluster, build(now))


def wait_until_gone(cluster: Cluster, name: str) -> None:
    """Wait until the pods of deleted Jobs have ended: they may be taking a snapshot.

    A pod on a lost machine never ends for the API server. It does not count: its successor takes over its lease.
    """
    if wait_until(lambda: not jobs_of(cluster, name) and not _live_pods(cluster, name), PATIENCE_S):
        return
    staying = [pod for pod in _live_pods(cluster, name) if not meta(pod).get("deletionTimestamp")]
    if staying or jobs_of(cluster, name):
        raise UsageError(f"the pods of {name} have not left yet", fix="try again in a moment")


def resumed(then: Submission, changes: Mapping[str, Any]) -> Submission:
    job = msgspec.structs.replace(then.job, is_resumed=bool(changes) or then.job.is_resumed, **changes)
    if job.trainers > job.shards:
        raise SpecError(f"{job.trainers} trainers but only {job.shards} data shards", fix="ask for fewer trainers")
    is_apart = then.settings.is_apart
    job = msgspec.structs.replace(job, hosts=naming.hosts_of(job, then.namespace, is_apart=is_apart))
    naming.check_name(job, is_apart=is_apart)
    settings = msgspec.structs.replace(then.settings, suspend=False)
    return Submission(job, settings, then.namespace, then.image, then.program, then.certificates)


@dataclass(frozen=True, slots=True)
class Deleted:
    """The deleted objects of a job, and what became of its volume."""

    things: list[str]
    claim: str
    volume: Literal["deleted", "kept", "absent"]
    ignored: str = ""
    """Why the volume was kept although its deletion was requested; else empty."""
    fetching: str = ""
    """The command that fetches models from a kept volume."""

    def words(self, name: str) -> Iterator[str]:
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
    """Delete a job; its volume claim only on request, if bireme made it and no other job uses it."""
    kinds = [kind for kind in KINDS.values() if kind.kind not in ("Pod", "Event", CLAIM.kind)]
    kinds += [CLAIM] if with_volume else []
    things = [(kind, called) for kind in kinds for called in _own_names(cluster, kind, name)]
    if not things:
        find_job(cluster, name)
    _refuse_shared(cluster, name, {called for kind, called in things if kind is CLAIM})
    claim, fetching = _files_of(cluster, name)
    # Jobs first: pods take a snapshot before they end, and need the other objects for it.
    gone = _delete_all(cluster, [each for each in things if each[0] is JOB])
    wait_until_gone(cluster, name)
    gone += _delete_all(cluster, [each for each in things if each[0] is not JOB])
    if f"{CLAIM.kind} {claim}" in gone:
        return Deleted(gone, claim, "deleted")
    there = cluster.find(CLAIM, claim)
    if there is None or meta(there).get("deletionTimestamp"):
        return Deleted(gone, claim, "absent")
    ignored = _whose(there, cluster.namespace) if with_volume else ""
    return Deleted(gone, claim, "kept", ignored, fetching)


def _own_names(cluster: Cluster, kind: Kind, name: str) -> list[str]:
    """Names of a job's objects of one kind; the Secret is looked up by name, as a list would read all Secrets."""
    if kind is not SECRET:
        return [name_of(each) for each in cluster.list(kind, naming.labels_of(name))]
    there = cluster.find(SECRET, f"{name}-tls")
    is_own = there is not None and naming.is_ours(there) and labels_in(there).get(naming.INSTANCE) == name
    return [f"{name}-tls"] if is_own else []


def _delete_all(cluster: Cluster, things: Iterable[tuple[Kind, str]]) -> list[str]:
    return [f"{kind.kind} {called}" for kind, called in things if cluster.delete(kind, called)]


def _refuse_shared(cluster: Cluster, name: str, claims: set[str]) -> None:
    """Refuse claims that other jobs use, including resumable ones whose Jobs are gone."""
    if not claims:
        return
    users = set()
    for each in cluster.list(JOB, {naming.MANAGED_BY: "bireme"}):
        if claims.intersection(_claims_in(each)):
            labels = labels_in(each)
            # A Job that splits data names its job in another label.
            users.add(labels.get(naming.INSTANCE) or labels.get(naming.VOLUME_OF) or name_of(each))
    for each in cluster.list(CONFIG_MAP, {naming.MANAGED_BY: "bireme"}):
        if _submitted_claim(each, name_of(each)) in claims:
            users.add(name_of(each))
    if others := sorted(users - {name}):
        raise UsageError(
            f"the volume claim {', '.join(sorted(claims))} is used by other jobs too: {', '.join(others)}",
            why="their models and data would be gone with it; nothing was deleted",
            fix=f"delete those first, or leave --volume away: `{command_name()} delete {name} --namespace "
            f"{cluster.namespace}` keeps the volume",
        )


def _claims_in(job: Object) -> list[str]:
    """The volume claims that a Job's pods mount, the one with the job's files first."""
    template = spec_of(job).get("template") or {}
    volumes = sorted(spec_of(template).get("volumes") or (), key=lambda each: each.get("name") != "volume")
    return claims_of({"spec": {"volumes": volumes}})


def _json_in(config_map: Object | None, key: str) -> dict[str, Any]:
    """The JSON object under a key of a job's ConfigMap; empty where it cannot be parsed."""
    try:
        parsed = json.loads(((config_map or {}).get("data") or {}).get(key) or "{}")
    except ValueError:
        return {}
    return parsed if isinstance(parsed, dict) else {}


def _submitted_claim(config_map: Object | None, name: str) -> str:
    return (_json_in(config_map, "settings.json").get("volume") or {}).get("claim") or name


def _files_of(cluster: Cluster, name: str) -> tuple[str, str]:
    """A job's volume claim, and the command that fetches its models after it is deleted.

    That names the job if its files are in the usual place, else its file.
    """
    own = submitted_map(cluster, name)
    claims = [claim for each in jobs_of(cluster, name) for claim in _claims_in(each)]
    claim = claims[0] if claims else _submitted_claim(own, name)
    image = _json_in(own, "settings.json").get("image") or "NAME"
    is_usual = claim == name and _json_in(own, "job.json").get("output", "") in ("", str(directory_of(name) / "output"))
    job = name if is_usual else "JOB.yaml"
    return claim, f"{command_name()} fetch {job} DIR --image {image} --namespace {cluster.namespace}"


def _whose(claim: Object, namespace: str) -> str:
    called, other = name_of(claim), labels_in(claim).get(naming.INSTANCE)
    if naming.is_ours(claim):
        how = f"`{command_name()} delete {other} --volume --namespace {namespace}` deletes it"
        return f"the claim {called} was made for the job {other}; {how}"
    return f"bireme did not make the claim {called}; `kubectl delete pvc {called} -n {namespace}` deletes it"


def view_of(cluster: Cluster, name: str) -> JobView:
    return job_view(find_job(cluster, name))


def _live_pods(cluster: Cluster, name: str) -> list[Object]:
    return [pod for pod in cluster.list(POD, naming.selector_of(name)) if not has_ended(pod)]


def wait_until(is_so: Callable[[], bool], patience_s: float) -> bool:
    """Poll a condition until it holds or `patience_s` is over; retry while the API server is unreachable."""
    deadline = time.monotonic() + patience_s
    while time.monotonic() <= deadline:
        with suppress(NetworkError):
            if is_so():
                return True
        time.sleep(WAIT_EVERY_S)
    return is_so()


def resume(cluster: Cluster, name: str, changes: Mapping[str, Any]) -> Literal["resumed", "finished"]:
    """Resume a job that was stopped, has failed, or is to have more passes."""
    if jobs_of(cluster, name) or submitted_map(cluster, name) is None:
        view = view_of(cluster, name)
        if view.state in ("running", "starting", "pending"):
            fix = f"`{command_name()} status {name} --namespace {cluster.namespace}` shows its state"
            raise UsageError(f"{name} runs already: it is {view.state}", fix=fix)
        if view.state == "finished" and changes.get("passes", view.status.total) <= view.status.done:
            return "finished"
        if view.state in ("suspended", "queued") and not changes:
            unsuspend(cluster, name)
            return "resumed"
    start_again(cluster, name, changes)
    return "resumed"
