"""The evidence on a job that `bireme why` explains: the API server's objects as plain dicts, and how to read them.

`Evidence` is a value: gathered from a cluster, from a run on this machine, or read from a file. Functions that
recognise a situation take nothing else, so a recorded situation can be tested without a cluster.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

import msgspec

from bireme.job.status import JobStatus, decode_status
from bireme.kube.api.fields import annotations_in, ended_states, is_true, labels_in, meta, name_of, seconds, spec_of
from bireme.kube.api.naming import INDEX, STATUS

Json = dict[str, Any]

# A pod's log holds copies of its processes' lines, each with the process's name in front.
_COPIED = re.compile(r"^(?:trainer|pserver) \d+ \| ")
_HEAD = re.compile(r"^[IWEF]\d{4} [\d:.]+ +\d+ \S+\] ")
_ERROR = re.compile(r"^(?:(?:trainer|pserver) \d+ \| )?(?:error: |E\d{4} [\d:.]+ +\d+ \S+\] )(.+)$")


@dataclass(frozen=True, slots=True)
class Cause:
    """One answer to "why": a sentence of cause, a sentence of advice, and the objects that it is about."""

    cause: str
    advice: str
    about: tuple[str, ...] = ()
    """Names of the pods (or other objects) that this explains."""
    situation: str = ""


def node_of(pod: Json) -> str:
    return str(spec_of(pod).get("nodeName") or "")


def image_of(pod: Json) -> str:
    containers = spec_of(pod).get("containers") or [{}]
    return str(containers[0].get("image", ""))


def printed_error(text: str) -> Json:
    """The last error in a log, as a command (`error: …`) or a process (`E1116 … pod.py:80] …`) prints it."""
    error: Json = {}
    for line in text.splitlines():
        begun = _ERROR.match(line)
        rest = _COPIED.sub("", line).strip()
        if begun:
            error = {"kind": "", "what": begun[1], "why": "", "fix": ""}
        elif error and rest.startswith(("why: ", "fix: ")):
            error[rest[:3]] = rest[5:]
    return error


def plain_line(line: str) -> str:
    return _HEAD.sub("", _COPIED.sub("", line)).strip()


def is_ready(pod: Json) -> bool:
    return is_true(pod, "Ready") and not meta(pod).get("deletionTimestamp")


def place_of(pod: Json) -> tuple[str, str]:
    """Job and index of a pod: pods with the same ones replace each other."""
    labels = labels_in(pod)
    index = annotations_in(pod).get(INDEX) or labels.get(INDEX) or ""
    return str(labels.get("batch.kubernetes.io/job-name") or labels.get("job-name") or ""), str(index)


def moment(event: Json) -> str:
    series = event.get("series") or {}
    return str(series.get("lastObservedTime") or event.get("lastTimestamp") or event.get("eventTime") or "")


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """All that `explain` looks at."""

    job: str
    where: Literal["kubernetes", "local"] = "kubernetes"
    namespace: str = ""
    now: float = 0.0
    """Seconds since 1970 when this was gathered."""
    version: str = ""
    """Of this command's bireme."""
    command: str = "bireme"
    """What the user types to run bireme."""
    jobs: tuple[Json, ...] = ()
    pods: tuple[Json, ...] = ()
    events: tuple[Json, ...] = ()
    claims: tuple[Json, ...] = ()
    nodes: tuple[Json, ...] = ()
    certificate: Json = field(default_factory=dict)
    """`not_after` of the job's leaf certificate, in seconds since 1970."""
    logs: Mapping[str, str] = field(default_factory=dict)
    """Last lines of what pods printed, by the pod's name."""
    denied: tuple[Json, ...] = ()
    """Requests that the API server refused: verb, resource and message."""
    others: tuple[str, ...] = ()
    """Names of existing jobs, to suggest one for a mistyped name."""
    record: Json = field(default_factory=dict)
    """Of a job on this machine: state, reason, output, error and status."""

    @property
    def status(self) -> JobStatus:
        """The coordinator's last status, empty before its first."""
        if self.where == "local":
            return msgspec.convert(self.record.get("status") or {}, JobStatus)
        statuses = (decode_status(annotations_in(job).get(STATUS) or "{}") for job in self.jobs)
        return next((status for status in statuses if status != JobStatus()), JobStatus())

    @property
    def error(self) -> Json:
        """The job's own error: kind, what, why and fix; empty where it reported none."""
        error = self.record.get("error") if self.where == "local" else self.status.error
        if isinstance(error, dict) and error.get("what"):
            return error
        if self.status.phase == "failed" and self.status.reason:
            return {"kind": "", "what": self.status.reason}
        printed = [printed_error(text) for pod in self.troubled for text in self.final_output(pod)]
        # A process that lost a peer logs an error too, often later than the one with the cause: sort it last.
        errors = sorted((e for e in printed if e), key=lambda e: "went away" in e["what"] or "has left" in e["what"])
        return errors[0] if errors else {}

    @property
    def has_ended(self) -> bool:
        return any(is_true(job, kind) for job in self.jobs for kind in ("Complete", "Failed"))

    @property
    def is_finished(self) -> bool:
        """Whether the job has ended well."""
        if self.where == "local":
            return self.record.get("state") == "finished"
        # The job's own status wins: pods may exit with 0 after a job has failed.
        has_failed = self.status.phase == "failed"
        return bool(self.jobs) and not has_failed and all(is_true(job, "Complete") for job in self.jobs)

    @property
    def is_over(self) -> bool:
        """Whether a run on this machine has ended, so that its last status is of the past."""
        return self.where == "local" and self.record.get("state") != "running"

    @property
    def is_suspended(self) -> bool:
        return any(spec_of(job).get("suspend") for job in self.jobs)

    @property
    def wanted(self) -> int:
        return sum(int(spec_of(job).get("parallelism") or 1) for job in self.jobs)

    @property
    def troubled(self) -> list[Json]:
        """Pods that matter for the job's state now: a failed one whose replacement is ready does not."""
        pods = sorted(self.pods, key=lambda p: str(meta(p).get("creationTimestamp") or ""))
        if self.has_ended:
            return pods
        ready = {place_of(p) for p in pods if is_ready(p)}
        is_whole = sum(map(is_ready, pods)) >= self.wanted
        return [p for p in pods if is_ready(p) or not (is_whole or (place_of(p)[1] and place_of(p) in ready))]

    def final_output(self, pod: Json) -> Iterator[str]:
        for state in ended_states(pod):
            if state.get("message"):
                yield str(state["message"])
        if name_of(pod) in self.logs:
            yield self.logs[name_of(pod)]

    def events_about(self, name: str) -> list[Json]:
        events = [e for e in self.events if (e.get("involvedObject") or {}).get("name") == name]
        return sorted(events, key=moment, reverse=True)

    def since(self, stamp: object) -> float:
        """Seconds from a time of the API server until the evidence was gathered."""
        return max(0.0, self.now - seconds(stamp)) if stamp else 0.0


def evidence_from(plain: Json) -> Evidence:
    fields: Json = {name: tuple(value) if isinstance(value, list) else value for name, value in plain.items()}
    return Evidence(**fields)
