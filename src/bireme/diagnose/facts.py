"""What is known about a job when somebody asks why: plain dicts as the API server gives them, and how to read them.

`Facts` is a value: it can be gathered from a cluster, from a run on this machine, or read from a file. Everything that
recognises a situation takes it and nothing else, so a situation seen once can be looked at again without a cluster.
"""

from __future__ import annotations

import datetime
import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from bireme.kube.api.naming import INDEX, STATUS

Json = dict[str, Any]


Kind = Literal["cause", "consequence", "calm"]
# A pod's log has the lines of its processes too, each with the process's name in front.
_COPIED = re.compile(r"^(?:trainer|pserver) \d+ \| ")
_HEAD = re.compile(r"^[IWEF]\d{4} [\d:.]+ +\d+ \S+\] ")
_ERROR = re.compile(r"^(?:(?:trainer|pserver) \d+ \| )?(?:error: |E\d{4} [\d:.]+ +\d+ \S+\] )(.+)$")


@dataclass(frozen=True, slots=True)
class Cause:
    """One answer to "why": a sentence of cause, a sentence of advice, and whom it is about."""

    cause: str
    advice: str
    about: tuple[str, ...] = ()
    """Names of the pods (or other objects) that this explains."""
    situation: str = ""


@dataclass(frozen=True, slots=True)
class Situation:
    """A row of the table: its name, how it is recognised in words, and the function that does."""

    name: str
    title: str
    signs: str
    find: Callable[[Facts], Iterable[Cause]]
    kind: Kind = "cause"
    """A consequence is told only of what no cause explains; calm is told only if there is nothing else."""


def situation(
    name: str, title: str, signs: str, kind: Kind = "cause"
) -> Callable[[Callable[[Facts], Iterable[Cause]]], Situation]:
    """Make a row of the table of a function that recognises it."""

    def make(find: Callable[[Facts], Iterable[Cause]]) -> Situation:
        return Situation(name, title, signs, find, kind)

    return make


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """All that `explain` looks at."""

    job: str
    where: Literal["kubernetes", "local"] = "kubernetes"
    namespace: str = ""
    now: float = 0.0
    """Seconds since 1970 when this was gathered."""
    version: str = ""
    """Of the bireme that asks."""
    command: str = "bireme"
    """What the user types to run bireme."""
    jobs: tuple[Json, ...] = ()
    pods: tuple[Json, ...] = ()
    events: tuple[Json, ...] = ()
    claims: tuple[Json, ...] = ()
    nodes: tuple[Json, ...] = ()
    certificate: Json = field(default_factory=dict)
    """`not_before` and `not_after` of the job's leaf certificate, in seconds since 1970."""
    logs: Mapping[str, str] = field(default_factory=dict)
    """Last lines of what pods printed, by the pod's name."""
    denied: tuple[Json, ...] = ()
    """What the API server did not let us see: verb, resource and message."""
    others: tuple[str, ...] = ()
    """Jobs that there are, for whoever mistyped a name."""
    record: Json = field(default_factory=dict)
    """Of a job on this machine: state, reason, output, error and status."""


def facts_from(plain: Json) -> Facts:
    """Facts as they were written down: a JSON object with the same names."""
    known: Json = {name: tuple(value) if isinstance(value, list) else value for name, value in plain.items()}
    return Facts(**known)


def meta(thing: Json) -> Json:
    """The metadata of an object."""
    found: Json = thing.get("metadata") or {}
    return found


def name_of(thing: Json) -> str:
    """The name of an object."""
    return str(meta(thing).get("name", ""))


def condition(thing: Json, kind: str) -> Json:
    """The condition of this kind, empty where an object has none."""
    found = ((thing.get("status") or {}).get("conditions")) or []
    return next((c for c in found if c.get("type") == kind), {})


def is_true(thing: Json, kind: str) -> bool:
    """Whether an object's condition holds."""
    return condition(thing, kind).get("status") == "True"


def seconds(stamp: object) -> float:
    """A time of the API server in seconds since 1970; 0 where there is none."""
    if not isinstance(stamp, str) or not stamp:
        return 0.0
    return datetime.datetime.fromisoformat(stamp.replace("Z", "+00:00")).timestamp()


def since(facts: Facts, stamp: object) -> float:
    """Seconds from a time of the API server until the facts were gathered."""
    return max(0.0, facts.now - seconds(stamp)) if stamp else 0.0


def status_of(facts: Facts) -> Json:
    """The coordinator's last word, empty while it has said none."""
    if facts.where == "local":
        return dict(facts.record.get("status") or {})
    for job in facts.jobs:
        text = (meta(job).get("annotations") or {}).get(STATUS)
        if text:
            try:
                told = json.loads(text)
            except ValueError:
                continue  # somebody else wrote there
            return told if isinstance(told, dict) else {}
    return {}


def error_of(facts: Facts) -> Json:
    """What the job itself said that went wrong: kind, what, why and fix; empty where it said nothing."""
    told = facts.record.get("error") if facts.where == "local" else status_of(facts).get("error")
    if isinstance(told, dict) and told.get("what"):
        return told
    if status_of(facts).get("phase") == "failed" and status_of(facts).get("reason"):
        return {"kind": "", "what": str(status_of(facts)["reason"])}
    said = [printed_error(text) for pod in troubled(facts) for text in last_words(facts, pod)]
    # Whoever lost a peer says so too, often later than the one who knows why.
    found = sorted((e for e in said if e), key=lambda e: "went away" in e["what"] or "has left" in e["what"])
    return found[0] if found else {}


def printed_error(text: str) -> Json:
    """The last error in a log, as a command (`error: …`) or a process (`E1116 … pod.py:80] …`) says it."""
    found: Json = {}
    for line in text.splitlines():
        begun = _ERROR.match(line)
        rest = _COPIED.sub("", line).strip()
        if begun:
            found = {"kind": "", "what": begun[1], "why": "", "fix": ""}
        elif found and rest.startswith(("why: ", "fix: ")):
            found[rest[:3]] = rest[5:]
    return found


def plain_line(line: str) -> str:
    """A line of a log without who said it when."""
    return _HEAD.sub("", _COPIED.sub("", line)).strip()


def last_words(facts: Facts, pod: Json) -> Iterator[str]:
    """What a pod left: its termination message and the end of its log."""
    for state in ended_states(pod):
        if state.get("message"):
            yield str(state["message"])
    if name_of(pod) in facts.logs:
        yield facts.logs[name_of(pod)]


def has_ended(facts: Facts) -> bool:
    """Whether Kubernetes has given its last word on the job, good or bad."""
    return any(is_true(job, kind) for job in facts.jobs for kind in ("Complete", "Failed"))


def is_suspended(facts: Facts) -> bool:
    """Whether the job is told to have no pods."""
    return any((job.get("spec") or {}).get("suspend") for job in facts.jobs)


def wanted(facts: Facts) -> int:
    """How many pods the job is to have."""
    return sum(int((job.get("spec") or {}).get("parallelism") or 1) for job in facts.jobs)


def is_ready(pod: Json) -> bool:
    """Whether a pod takes part."""
    return is_true(pod, "Ready") and not meta(pod).get("deletionTimestamp")


def phase_of(pod: Json) -> str:
    """Pending, Running, Succeeded, Failed or Unknown."""
    return str((pod.get("status") or {}).get("phase", "Unknown"))


def place_of(pod: Json) -> tuple[str, str]:
    """Which pods replace each other: those of one Job with one index."""
    labels, notes = meta(pod).get("labels") or {}, meta(pod).get("annotations") or {}
    index = notes.get(INDEX) or labels.get(INDEX) or ""
    return str(labels.get("batch.kubernetes.io/job-name") or labels.get("job-name") or ""), str(index)


def troubled(facts: Facts) -> list[Json]:
    """Pods whose state explains how the job is now: a failed one whose replacement is ready is history."""
    pods = sorted(facts.pods, key=lambda p: str(meta(p).get("creationTimestamp") or ""))
    if has_ended(facts):
        return pods
    ready = {place_of(p) for p in pods if is_ready(p)}
    is_whole = sum(map(is_ready, pods)) >= wanted(facts)
    return [p for p in pods if is_ready(p) or not (is_whole or (place_of(p)[1] and place_of(p) in ready))]


def waiting_states(pod: Json) -> Iterator[Json]:
    """Reason and message of every container that does not run yet or again, with the container's name and image."""
    for container in containers_of(pod):
        state = (container.get("state") or {}).get("waiting")
        if state:
            yield {**state, "name": container.get("name"), "image": container.get("image")}


def ended_states(pod: Json) -> Iterator[Json]:
    """How containers ended, the current life first; with the container's name and image."""
    for container in containers_of(pod):
        for when in ("state", "lastState"):
            ended = (container.get(when) or {}).get("terminated")
            if ended:
                known = {"name": container.get("name"), "image": container.get("image")}
                yield {**ended, **known, "restarts": container.get("restartCount", 0)}


def containers_of(pod: Json) -> Iterator[Json]:
    """Container statuses, init containers first."""
    status = pod.get("status") or {}
    yield from status.get("initContainerStatuses") or ()
    yield from status.get("containerStatuses") or ()


def events_about(facts: Facts, *names: str) -> list[Json]:
    """Events about objects with these names, newest first."""
    found = [e for e in facts.events if (e.get("involvedObject") or {}).get("name") in names]
    return sorted(found, key=moment, reverse=True)


def moment(event: Json) -> str:
    """When an event happened last."""
    series = event.get("series") or {}
    return str(series.get("lastObservedTime") or event.get("lastTimestamp") or event.get("eventTime") or "")


def grouped(facts: Facts, tell: Callable[[Json], str | None]) -> list[tuple[str, list[Json]]]:
    """Pods by what a function reads off them; those it says nothing about are left out."""
    found: dict[str, list[Json]] = {}
    for pod in troubled(facts):
        said = tell(pod)
        if said is not None:
            found.setdefault(said, []).append(pod)
    return list(found.items())


def waiting_words(pod: Json) -> list[str]:
    """What the kubelet says about containers that do not run."""
    return [str(w.get("message", "")) for w in waiting_states(pod)]
