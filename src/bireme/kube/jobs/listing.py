"""The state of a job on a cluster, from its Jobs, its pods and the coordinator's last status. No I/O.

Kubernetes has the state of pods, the coordinator that of training; a `JobView` holds both. For an ended job Kubernetes
wins, because the coordinator cannot report its own end.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from bireme.core.text import shortened
from bireme.job.status import JobStatus, TrainerStatus, decode_status
from bireme.kube.api import fields, naming
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


def by_name(jobs: Iterable[Object]) -> dict[str, list[Object]]:
    """The Jobs of each job, the one with the status first; Jobs that only split data are left out."""
    groups: dict[str, list[Object]] = {}
    for each in jobs:
        if name := fields.labels_in(each).get(naming.INSTANCE):
            groups.setdefault(name, []).append(each)
    for parts in groups.values():
        parts.sort(key=fields.name_of)  # -pserver before -trainer
    return groups


def job_view(jobs: Sequence[Object]) -> JobView:
    main = jobs[0]
    status = status_in(main)
    state, reason = _state(jobs, status)
    error = status.error or {}
    return JobView(
        name=fields.labels_in(main).get(naming.INSTANCE, fields.name_of(main)),
        namespace=fields.meta(main).get("namespace", ""),
        state=state,
        reason=error.get("what", "") or reason,
        started=fields.seconds(fields.meta(main).get("creationTimestamp")),
        pods=sum(each["spec"].get("completions") or 0 for each in jobs),
        ready=_ready(jobs),
        status=status,
        error=error,
    )


def status_in(main: Object) -> JobStatus:
    """The coordinator's last status on a Job; empty where there is none that can be parsed."""
    return decode_status(fields.annotations_in(main).get(naming.STATUS) or "{}")


def _state(jobs: Sequence[Object], status: JobStatus) -> tuple[str, str]:
    for each in jobs:
        for kind in ("Failed", "FailureTarget"):
            if fields.is_true(each, kind):
                failed = fields.condition(each, kind)
                return "failed", str(failed.get("message") or failed.get("reason") or "")
    if all(fields.is_true(each, "Complete") or fields.is_true(each, "SuccessCriteriaMet") for each in jobs):
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
    return ("starting" if _ready(jobs) else "pending"), ""


def _ready(jobs: Iterable[Object]) -> int:
    return sum(fields.status_of(each).get("ready") or 0 for each in jobs)


def is_ended(state: str) -> bool:
    return state in ("finished", "failed", "cancelled")


def pod_views(pods: Iterable[Object], status: JobStatus) -> list[PodView]:
    """The newest pod of each rank, pservers before trainers where they are apart."""
    newest: dict[tuple[str, int], Object] = {}
    older: dict[tuple[str, int], int] = {}
    for pod in sorted(pods, key=lambda pod: str(fields.meta(pod).get("creationTimestamp"))):
        key = role_of(pod), fields.rank_of(pod)
        older[key] = older.get(key, -1) + 1
        newest[key] = pod
    trains = {each.trainer: each for each in status.trainers}
    late = " ".join(status.waits_for).replace(",", " ") + " "
    return [_pod(pod, older[key], trains, late) for key, pod in sorted(newest.items(), key=lambda item: item[0])]


def role_of(pod: Object) -> str:
    return str(fields.labels_in(pod).get(naming.COMPONENT, "node"))


def _pod(pod: Object, older: int, trains: Mapping[int, TrainerStatus], late: str) -> PodView:
    role, rank, status = role_of(pod), fields.rank_of(pod), fields.status_of(pod)
    failures = int(fields.annotations_in(pod).get(FAILURES, 0))
    within = sum(each.get("restartCount", 0) for each in status.get("containerStatuses") or ())
    names = ["pserver", "trainer"] if role == "node" else [role]
    return PodView(
        name=fields.name_of(pod),
        rank=rank,
        role=role,
        machine=fields.spec_of(pod).get("nodeName", ""),
        phase="Terminating" if fields.meta(pod).get("deletionTimestamp") else status.get("phase", ""),
        is_ready=fields.is_true(pod, "Ready"),
        restarts=max(older, failures) + within,
        trains=trains.get(rank) if "trainer" in names else None,
        is_straggler=any(f"{name} {rank} " in late for name in names),
        waits=waits_for(pod),
    )


def waits_for(pod: Object) -> str:
    status = fields.status_of(pod)
    if status.get("phase") == "Failed":
        return str(
            status.get("reason") or next((end["reason"] for end in fields.final_states(pod) if end.get("reason")), "")
        )
    if status.get("phase") != "Pending":
        return ""
    for waiting in fields.waiting_states(pod):
        if waiting.get("reason") not in (None, "ContainerCreating", "PodInitializing"):
            return shortened(f"{waiting['reason']}: {waiting.get('message', '')}".rstrip(": "), MAX_WORDS)
    scheduled = fields.condition(pod, "PodScheduled")
    if scheduled.get("status") == "False":
        return shortened(str(scheduled.get("message") or scheduled.get("reason") or "a machine"), MAX_WORDS)
    return "its container" if fields.spec_of(pod).get("nodeName") else "a machine"


def gathering(view: JobView, pods: Sequence[PodView]) -> str:
    if view.state in ("suspended", "queued"):
        return view.state + (f", {view.reason}" if view.reason else "")
    running = sum(pod.phase == "Running" for pod in pods)
    text = f"{running} of {view.pods} pods run"
    first = next((pod for pod in pods if pod.waits), None)
    if first is None:
        return text
    return f"{text}; {first.name}{' waits for ' if first.waits[0].islower() else ': '}{first.waits}"
