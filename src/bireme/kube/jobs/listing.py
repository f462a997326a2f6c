"""The state of a job on a cluster, from its Jobs, its pods and the coordinator's last status. No I/O.

Kubernetes has the state of pods, the coordinator that of training; a `JobView` holds both. For an ended job Kubernetes
wins, because the coordinator cannot report its own end.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from bireme.core.text import shortened
from bireme.job.status import JobStatus, TrainerStatus, decode_status
from bireme.kube.api import naming
from bireme.kube.api.naming import Object

FAILURES = "batch.kubernetes.io/job-index-failure-count"
MAX_WORDS = 160


@dataclass(frozen=True, slots=True)
class PodView:
    """One pod of a job."""

    name: str
    rank: int
    role: str
    """`node`, `pserver` or `trainer`."""
    machine: str
    phase: str
    is_ready: bool
    restarts: int
    trains: TrainerStatus | None = None
    """The last report of its trainer."""
    is_straggler: bool = False
    waits: str = ""
    """What it waits for before it runs, or why it has failed: Kubernetes' reason."""


@dataclass(frozen=True, slots=True)
class JobView:
    """One job on a cluster."""

    name: str
    namespace: str
    state: str
    """queued, suspended, pending, starting, running, finished, failed or cancelled."""
    reason: str
    started: float
    pods: int
    """The wanted number."""
    ready: int
    status: JobStatus
    """The coordinator's last status; empty before its first."""
    error: Mapping[str, str] = field(default_factory=dict)
    """kind, what, why and fix, where it has failed and reported an error."""


def moment(text: str | None) -> float:
    """Seconds since 1970 of a time as Kubernetes writes it; 0 for none."""
    return datetime.fromisoformat(text.replace("Z", "+00:00")).timestamp() if text else 0.0


def by_name(jobs: Iterable[Object]) -> dict[str, list[Object]]:
    """The Jobs of each job, the one with the status first; Jobs that only split data are left out."""
    groups: dict[str, list[Object]] = {}
    for each in jobs:
        if name := each["metadata"]["labels"].get(naming.INSTANCE):
            groups.setdefault(name, []).append(each)
    for parts in groups.values():
        parts.sort(key=lambda each: str(each["metadata"]["name"]))  # -pserver before -trainer
    return groups


def job_view(jobs: Sequence[Object]) -> JobView:
    main = jobs[0]
    status = status_in(main)
    state, reason = _state(jobs, status)
    error = status.error or {}
    return JobView(
        name=main["metadata"]["labels"].get(naming.INSTANCE, main["metadata"]["name"]),
        namespace=main["metadata"].get("namespace", ""),
        state=state,
        reason=error.get("what", "") or reason,
        started=moment(main["metadata"].get("creationTimestamp")),
        pods=sum(each["spec"].get("completions") or 0 for each in jobs),
        ready=sum((each.get("status") or {}).get("ready") or 0 for each in jobs),
        status=status,
        error=error,
    )


def status_in(main: Object) -> JobStatus:
    """The coordinator's last status on a Job; empty where there is none that can be parsed."""
    return decode_status((main["metadata"].get("annotations") or {}).get(naming.STATUS) or "{}")


def condition(thing: Object, kind: str) -> Mapping[str, Any] | None:
    """A condition of an object that holds now."""
    for each in (thing.get("status") or {}).get("conditions") or ():
        if each.get("type") == kind and each.get("status") == "True":
            return dict(each)
    return None


def _state(jobs: Sequence[Object], status: JobStatus) -> tuple[str, str]:
    for each in jobs:
        if failed := condition(each, "Failed") or condition(each, "FailureTarget"):
            return "failed", str(failed.get("message") or failed.get("reason") or "")
    if all(condition(each, "Complete") or condition(each, "SuccessCriteriaMet") for each in jobs):
        return "finished", ""
    phase = status.phase
    if jobs[0]["spec"].get("suspend"):
        queue = naming.queue_of(jobs[0])
        return ("queued", f"in the queue {queue}") if queue else ("suspended", "")
    if phase in ("finished", "cancelled"):
        return phase, status.reason
    if phase == "failed":  # Kubernetes still replaces pods, up to its backoff limit
        return "starting", f"again, after: {status.reason or 'a failure'}"
    if phase:
        return ("running" if phase == "training" else "starting"), ""
    ready = sum((each.get("status") or {}).get("ready") or 0 for each in jobs)
    return ("starting" if ready else "pending"), ""


def is_ended(state: str) -> bool:
    return state in ("finished", "failed", "cancelled")


def pod_views(pods: Iterable[Object], status: JobStatus) -> list[PodView]:
    """The newest pod of each rank, pservers before trainers where they are apart."""
    newest: dict[tuple[str, int], Object] = {}
    older: dict[tuple[str, int], int] = {}
    for pod in sorted(pods, key=lambda pod: str(pod["metadata"].get("creationTimestamp"))):
        key = role_of(pod), rank_of(pod)
        older[key] = older.get(key, -1) + 1
        newest[key] = pod
    trains = {each.trainer: each for each in status.trainers}
    late = " ".join(status.waits_for).replace(",", " ") + " "
    return [_pod(pod, older[key], trains, late) for key, pod in sorted(newest.items(), key=lambda item: item[0])]


def role_of(pod: Object) -> str:
    return str(pod["metadata"]["labels"].get(naming.COMPONENT, "node"))


def rank_of(pod: Object) -> int:
    """The rank of a pod; -1 for one that belongs to no Job."""
    return int((pod["metadata"].get("annotations") or {}).get(naming.INDEX, -1))


def _pod(pod: Object, older: int, trains: Mapping[int, TrainerStatus], late: str) -> PodView:
    role, rank, status = role_of(pod), rank_of(pod), pod.get("status") or {}
    failures = int((pod["metadata"].get("annotations") or {}).get(FAILURES, 0))
    within = sum(each.get("restartCount", 0) for each in status.get("containerStatuses") or ())
    names = ["pserver", "trainer"] if role == "node" else [role]
    return PodView(
        name=pod["metadata"]["name"],
        rank=rank,
        role=role,
        machine=(pod.get("spec") or {}).get("nodeName", ""),
        phase="Terminating" if pod["metadata"].get("deletionTimestamp") else status.get("phase", ""),
        is_ready=condition(pod, "Ready") is not None,
        restarts=max(older, failures) + within,
        trains=trains.get(rank) if "trainer" in names else None,
        is_straggler=any(f"{name} {rank} " in late for name in names),
        waits=waits_for(pod),
    )


def waits_for(pod: Object) -> str:
    status = pod.get("status") or {}
    if status.get("phase") == "Failed":
        ends = [(each.get("state") or {}).get("terminated") or {} for each in status.get("containerStatuses") or ()]
        return str(status.get("reason") or next((end["reason"] for end in ends if end.get("reason")), ""))
    if status.get("phase") != "Pending":
        return ""
    for each in (*(status.get("initContainerStatuses") or ()), *(status.get("containerStatuses") or ())):
        waiting = (each.get("state") or {}).get("waiting") or {}
        if waiting.get("reason") not in (None, "ContainerCreating", "PodInitializing"):
            return shortened(f"{waiting['reason']}: {waiting.get('message', '')}".rstrip(": "), MAX_WORDS)
    for each in status.get("conditions") or ():
        if each.get("type") == "PodScheduled" and each.get("status") == "False":
            return shortened(str(each.get("message") or each.get("reason") or "a machine"), MAX_WORDS)
    return "its container" if (pod.get("spec") or {}).get("nodeName") else "a machine"


def gathering(view: JobView, pods: Sequence[PodView]) -> str:
    """The state of a job that has not begun to train, in one line."""
    if view.state in ("suspended", "queued"):
        return view.state + (f", {view.reason}" if view.reason else "")
    running = sum(pod.phase == "Running" for pod in pods)
    waiting = [pod for pod in pods if pod.waits]
    text = f"{running} of {view.pods} pods run"
    if waiting:
        first = waiting[0]
        text += (
            f"; {first.name} waits for {first.waits}" if first.waits[0].islower() else f"; {first.name}: {first.waits}"
        )
    return text
