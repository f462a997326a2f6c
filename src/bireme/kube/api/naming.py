"""Names and labels of a job's objects, and paths inside its pods. No I/O.

The command line and the program in the pods must agree on all of this.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from bireme.core.errors import SpecError
from bireme.spec.job import Job

Object = dict[str, Any]
"""An object of Kubernetes, as its JSON."""
FIELD_MANAGER = "bireme"
NAME = "app.kubernetes.io/name"
INSTANCE = "app.kubernetes.io/instance"
MANAGED_BY = "app.kubernetes.io/managed-by"
VERSION = "app.kubernetes.io/version"
COMPONENT = "app.kubernetes.io/component"
VOLUME_OF = "bireme.dev/volume-of"
"""Label of short-lived pods that only look after a job's volume; they are no part of the job."""
STATUS = "bireme.dev/status"
"""Annotation of a Job: the coordinator's last status."""
DIGEST = "bireme.dev/digest"
"""Annotation of a Job: the hash of its submission."""
CANCELLED = "bireme.dev/cancelled"
"""Annotation of a Job that was stopped; a suspended one without it waits in its queue."""
QUEUE = "kueue.x-k8s.io/queue-name"
INDEX = "batch.kubernetes.io/job-completion-index"

CONTAINER = "node"
VOLUME_ROOT = "/job"
JOB_DIRECTORY = "/etc/bireme/job"
PROGRAM_DIRECTORY = "/etc/bireme/program"
TLS_DIRECTORY = "/etc/bireme/tls"
USER = 1000
MAX_NAME = {"": 57, "pserver": 49, "trainer": 49}
"""Pods are named after their Job and index, and a host's name has at most 63 characters."""

Role = Literal["", "pserver", "trainer"]
"""What the pods of a Job run: '' for a pserver and a trainer each."""


def labels_of(name: str) -> dict[str, str]:
    return {NAME: "bireme", INSTANCE: name, MANAGED_BY: "bireme"}


def selector_of(name: str) -> dict[str, str]:
    return {NAME: "bireme", INSTANCE: name}


def roles_of(job: Job, *, is_apart: bool) -> tuple[Role, ...]:
    """The Jobs that a job is made of: one, or two where pservers and trainers run in pods of their own.

    They do where their numbers differ, and where `is_apart` asks for it (`KubernetesFile.is_apart`, or in a pod that
    it has a role).
    """
    return ("pserver", "trainer") if is_apart or job.pservers != job.trainers else ("",)


def job_name(name: str, role: Role) -> str:
    return f"{name}-{role}" if role else name


def main_job(job: Job, *, is_apart: bool) -> str:
    """The Job that owns the other objects and carries the status: the one whose pods include pserver 0."""
    return job_name(job.name, roles_of(job, is_apart=is_apart)[0])


def hosts_of(job: Job, namespace: str, *, is_apart: bool) -> tuple[str, ...]:
    first = main_job(job, is_apart=is_apart)
    return tuple(f"{first}-{rank}.{job.name}.{namespace}.svc" for rank in range(job.pservers))


def check_name(job: Job, *, is_apart: bool) -> None:
    if not job.name[0].isalpha():
        raise SpecError(
            f"the name {job.name} begins with {job.name[0]!r}, which a cluster does not accept",
            why="pods find each other by a Service of that name, and such names begin with a letter",
            fix=f"choose another `name`, e.g. job-{job.name}",
        )
    longest = min(MAX_NAME[role] for role in roles_of(job, is_apart=is_apart))
    if len(job.name) > longest:
        raise SpecError(
            f"the name {job.name} is too long for a cluster: {len(job.name)} characters, {longest} are possible",
            why="pods are called after the job, and a host's name has at most 63 characters",
            fix="choose a shorter `name`",
        )


def queue_of(job: Mapping[str, Any]) -> str:
    """The queue in which a suspended Job waits; '' for one without a queue, or that was stopped."""
    metadata: Mapping[str, Any] = job.get("metadata") or {}
    was_stopped = CANCELLED in (metadata.get("annotations") or {})
    return "" if was_stopped else str((metadata.get("labels") or {}).get(QUEUE) or "")


def is_ours(thing: Mapping[str, Any]) -> bool:
    labels: Mapping[str, str] = thing["metadata"].get("labels") or {}
    return labels.get(MANAGED_BY) == "bireme"
