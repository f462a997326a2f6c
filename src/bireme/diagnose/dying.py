"""Pods that ran and were ended: by their own memory, by their node, by the cluster, or by the Job's limits.

The job's own errors are in training.py; these are the ones that Kubernetes reports.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from bireme.core.text import duration
from bireme.diagnose.facts import (
    Cause,
    Facts,
    Json,
    condition,
    containers_of,
    ended_states,
    error_of,
    events_about,
    grouped,
    has_ended,
    name_of,
    phase_of,
    plain_line,
    situation,
    status_of,
    waiting_states,
)
from bireme.diagnose.words import (
    AGAIN,
    amount_words,
    bireme,
    capital,
    kubectl,
    names,
    nodes_words,
    of,
    pods_words,
    sentence,
)
from bireme.spec.kubernetes import amount

PATIENCE = 3
"""Liveness probes that fail before the kubelet ends a pod of ours."""


@situation("out-of-memory", "A container used more memory than it may", "a container ended with `OOMKilled`")
def out_of_memory(facts: Facts) -> Iterator[Cause]:
    """The kernel ended a container at its memory limit."""

    def group_key(pod: Json) -> str | None:
        ended = [s for s in ended_states(pod) if s.get("reason") == "OOMKilled"]
        return _limit(pod, str(ended[0]["name"])) if ended else None

    for limit, pods in grouped(facts, group_key):
        more = amount_words("memory", 2 * amount(limit)).replace(" ", "").removesuffix("B") if limit else ""
        has = f"its limit of {amount_words('memory', amount(limit))}" if limit else "what its node had"
        raise_ = (
            f"`kubernetes.resources.limits.memory` (to {more}, say)"
            if more
            else "`kubernetes.resources.requests.memory`"
        )
        yield Cause(
            f"{capital(pods_words(pods))} used more memory than {has} and {of(pods, 'was', 'were')} killed for it.",
            f"Raise {raise_} in job.yaml, use smaller batches or more pservers, and {AGAIN}.",
            names(pods),
        )


def _limit(pod: Json, container: str) -> str:
    for spec in (pod.get("spec") or {}).get("containers") or ():
        if spec.get("name") == container:
            return str(((spec.get("resources") or {}).get("limits") or {}).get("memory", ""))
    return ""


@situation("deadline", "The job's time is over", "the Job failed with `DeadlineExceeded`")
def deadline(facts: Facts) -> Iterator[Cause]:
    """activeDeadlineSeconds has passed."""
    for job in facts.jobs:
        # A hopeless job ends itself by a deadline that has passed (pod/giving_up.py): then its own error is the cause.
        if condition(job, "Failed").get("reason") == "DeadlineExceeded" and not status_of(facts).get("error"):
            most = float((job.get("spec") or {}).get("activeDeadlineSeconds") or 0)
            yield Cause(
                f"The job was given {duration(most)} and was not finished when they were over.",
                "Raise `kubernetes.deadline_s` in job.yaml and go on from the last snapshot with "
                f"{bireme(facts, 'resume')}.",
                names(facts.pods),
            )


@situation(
    "probe-failed",
    "The kubelet ended a process that did not answer",
    "an `Unhealthy` event of a pod with a failed liveness or startup probe, and a `Killing` one",
)
def probe_failed(facts: Facts) -> Iterator[Cause]:
    """A liveness or startup probe failed too often."""

    def group_key(pod: Json) -> str | None:
        events = events_about(facts, name_of(pod))
        killing = [str(e.get("message")) for e in events if e.get("reason") == "Killing"]
        failed = [
            e
            for e in events
            if e.get("reason") == "Unhealthy" and re.match(r"(Liveness|Startup) probe", str(e.get("message")))
        ]
        is_said = any(re.search(r"failed (liveness|startup) probe", message) for message in killing)
        # For a pod with restartPolicy Never the kubelet's event has no reason, only that it stops the container.
        is_meant = bool(killing) and any(
            e["message"].startswith("Liveness") and int(e.get("count") or 1) >= PATIENCE for e in failed
        )
        said = [str(e.get("message", "")) for e in failed]
        killed = is_said or is_meant
        return sentence(said[0]) if killed and said and not error_of(facts) else None

    for said, pods in grouped(facts, group_key):
        yield Cause(
            f"{nodes_words(pods)} ended {pods_words(pods)} because it gave no sign of life: {said}.",
            f"Look whether the pod has enough CPU and a volume that answers ({bireme(facts, 'logs')}).",
            names(pods),
        )


@situation(
    "crash-loop",
    "A container ends again and again",
    "a container waits with `CrashLoopBackOff`, or its pods keep failing",
    kind="consequence",
)
def crash_loop(facts: Facts) -> Iterator[Cause]:
    """The generic case: the container ends, and no other rule has a reason."""

    def group_key(pod: Json) -> str | None:
        loops = any(w.get("reason") == "CrashLoopBackOff" for w in waiting_states(pod))
        return str(_code(pod)) if loops or (phase_of(pod) == "Failed" and _code(pod)) else None

    for code, pods in grouped(facts, group_key):
        count = max([sum(int(c.get("restartCount") or 0) for c in containers_of(p)) for p in pods])
        previous = " --previous" if count else ""
        often = f" {count + 1} times" if count else ""
        logs = "\n".join(facts.logs.get(name_of(p), "") for p in pods)
        last = list(filter(None, map(plain_line, logs.splitlines())))
        said = f", its last line: {sentence(last[-1], 160)}" if last else ""
        yield Cause(
            f"{capital(pods_words(pods))} ended{often} with exit code {code}{_signal(int(code))}{said}.",
            f"Read {kubectl(facts, f'logs {name_of(pods[0])}{previous}')} or {bireme(facts, 'logs')}.",
            names(pods),
        )


def _code(pod: Json) -> int:
    return next((int(s.get("exitCode") or 0) for s in ended_states(pod) if s.get("exitCode")), 0)


def _signal(code: int) -> str:
    meanings = {137: "killed", 143: "asked to stop", 139: "a crash of the program itself", 134: "aborted"}
    return f" ({meanings[code]})" if code in meanings else ""


@situation(
    "gave-up",
    "Kubernetes has given the job up",
    "the Job failed with `BackoffLimitExceeded`, `FailedIndexes`, `MaxFailedIndexesExceeded` or `PodFailurePolicy`",
    kind="consequence",
)
def gave_up(facts: Facts) -> Iterator[Cause]:
    """More pods failed than may, or one in a way that makes another try useless."""
    for job in facts.jobs if has_ended(facts) else ():
        failed = condition(job, "Failed")
        if not failed or failed.get("reason") == "DeadlineExceeded":
            continue
        status, spec = job.get("status") or {}, job.get("spec") or {}
        which = f" (index {status['failedIndexes']})" if status.get("failedIndexes") else ""
        count = int(status.get("failed") or 0)
        most = spec.get("backoffLimitPerIndex", spec.get("backoffLimit"))
        limit = f"{most} tries again are allowed{' per node' if 'backoffLimitPerIndex' in spec else ''}"
        yield Cause(
            f"Kubernetes has given the job up after {count} failed pod{'' if count == 1 else 's'}{which}: "
            f"{sentence(str(failed.get('message', '')))}; {limit}.",
            f"Read the logs ({bireme(facts, 'logs')}), solve the problem, and go on with {bireme(facts, 'resume')}.",
            (facts.job,),
        )
