"""Jobs without an error: missing, queued, suspended, waiting, running, cancelled or finished."""

from __future__ import annotations

from collections.abc import Iterator

from bireme.core.text import duration
from bireme.diagnose.facts import (
    Cause,
    Facts,
    Json,
    condition,
    events_about,
    is_ready,
    is_true,
    meta,
    moment,
    name_of,
    phase_of,
    place_of,
    seconds,
    since,
    situation,
    status_of,
    wanted,
)
from bireme.diagnose.words import bireme, kubectl, listed, of, pods_words, sentence
from bireme.kube.api.naming import queue_of


@situation("not-found", "There is no such job", "no Job has the name, neither on the cluster nor on this machine")
def not_found(facts: Facts) -> Iterator[Cause]:
    """A wrong name or a wrong namespace, or it was deleted."""
    if facts.where != "kubernetes" or facts.jobs or any(d.get("needed") for d in facts.denied):
        return
    import difflib

    close = difflib.get_close_matches(facts.job, facts.others, n=1)
    hint = f"Did you mean {close[0]}? " if close else ""
    there = (
        f"there {'is' if len(facts.others) == 1 else 'are'} {listed(facts.others)}"
        if facts.others
        else "there is none at all"
    )
    yield Cause(
        f"There is no job {facts.job} in namespace {facts.namespace}; {there}.",
        f"{hint}`{facts.command} list` shows jobs here, `--namespace` looks into another namespace, and "
        f"`{facts.command} submit JOB.yaml` starts one.",
    )


@situation("queued", "The job waits in a queue", "the Job is suspended and has the label `kueue.x-k8s.io/queue-name`")
def queued(facts: Facts) -> Iterator[Cause]:
    """Kueue has not admitted it."""
    for job in facts.jobs[:1]:
        queue = queue_of(job)
        if queue and (job.get("spec") or {}).get("suspend"):
            said = [e for e in facts.events if (e.get("involvedObject") or {}).get("kind") == "Workload"]
            why = f": {sentence(str(max(said, key=moment).get('message', '')))}" if said else ""
            long = duration(since(facts, meta(job).get("creationTimestamp")))
            yield Cause(
                f"The job has waited for {long} in the queue {queue}, which has not admitted it yet{why}.",
                f"Wait for your turn; {kubectl(facts, 'get workloads')} and "
                f"{kubectl(facts, f'describe localqueue {queue}')} show what is missing.",
            )


@situation("suspended", "The job is suspended", "the Job has `suspend: true` and no queue, or was stopped")
def suspended(facts: Facts) -> Iterator[Cause]:
    """It was stopped, or submitted with `suspend`."""
    for job in facts.jobs[:1]:
        if (job.get("spec") or {}).get("suspend") and not queue_of(job):
            since_when = condition(job, "Suspended").get("lastTransitionTime")
            long = f" for {duration(since(facts, since_when))}" if since_when else ""
            far = _far(status_of(facts))
            yield Cause(
                f"The job has been suspended{long}, by `{facts.command} cancel` or when it was submitted"
                f"{f', {far}' if far else ''}.",
                f"Go on with {bireme(facts, 'resume')}.",
            )


@situation(
    "waiting-for-pods",
    "The job waits for pods",
    "fewer pods are ready than the job has, and nothing else explains it",
    kind="consequence",
)
def waiting_for_pods(facts: Facts) -> Iterator[Cause]:
    """A job never half-starts: it waits for all."""
    if facts.where != "kubernetes" or not facts.jobs:
        return
    ready, most = [p for p in facts.pods if is_ready(p)], wanted(facts)
    if len(ready) >= most or any(is_true(j, "Complete") or is_true(j, "Failed") for j in facts.jobs):
        return
    late = [p for p in facts.pods if not is_ready(p) and phase_of(p) in ("Pending", "Running")]
    replaced = {place_of(p) for p in ready + late}
    gone = [p for p in facts.pods if phase_of(p) == "Failed" and place_of(p) not in replaced]
    waits = f"the job itself waits for {listed(_awaited(facts))}" if _awaited(facts) else ""
    absent = _absent(most - len(ready) - len(late) - len(gone))
    doing = "; ".join(filter(None, [_late(facts, late), _gone(gone), absent, waits]))
    yield Cause(
        f"{len(ready)} of {most} pods are ready, and the job waits for all{f': {doing}' if doing else ''}.",
        f"Give it a moment; if that stays, {kubectl(facts, 'get events --sort-by=.lastTimestamp')} shows more.",
    )


def _late(facts: Facts, pods: list[Json]) -> str:
    if not pods:
        return ""
    oldest = max(since(facts, meta(p).get("creationTimestamp")) for p in pods)
    messages = [str(e.get("message")) for e in events_about(facts, name_of(pods[0])) if e.get("reason") != "Unhealthy"]
    said = f" (last: {sentence(messages[0], 120)})" if messages else ""
    doing = "running without being ready" if phase_of(pods[0]) == "Running" else "starting"
    return f"{pods_words(pods)} {of(pods, 'has', 'have')} been {doing} for {duration(oldest)}{said}"


def _gone(pods: list[Json]) -> str:
    return f"{pods_words(pods)} ended and will be replaced" if pods else ""


def _absent(count: int) -> str:
    return f"{count} {'is' if count == 1 else 'are'} not created yet" if count > 0 else ""


@situation(
    "waiting-for-peers",
    "The job waits for processes",
    "all pods are ready, and the job's status waits for processes",
    kind="consequence",
)
def waiting_for_peers(facts: Facts) -> Iterator[Cause]:
    """Pods are there; trainers or pservers in them are not yet."""
    status, waits = status_of(facts), _awaited(facts)
    if waits:
        yield Cause(
            f"The job is {'gathering its processes' if status['phase'] == 'gathering' else 'handing out parameters'} "
            f"and waits for {listed(waits)}.",
            f"Give it a moment; if that stays, {bireme(facts, 'logs')} shows what those processes say.",
        )


def _awaited(facts: Facts) -> list[str]:
    """The processes that the coordinator waits for before it can train."""
    status = status_of(facts)
    is_over = facts.where == "local" and facts.record.get("state") != "running"
    if status.get("phase") not in ("gathering", "setting-up") or is_over:
        return []
    missing = [f"trainer {rank}" for rank in status.get("trainers_missing") or ()]
    return [str(w) for w in status.get("waits_for") or ()] or missing


@situation("died-here", "The job's process is gone", "a run on this machine has no process and no final state")
def died_here(facts: Facts) -> Iterator[Cause]:
    """Killed with SIGKILL, a crash, or the machine was switched off."""
    if facts.where == "local" and facts.record.get("state") == "died":
        far = _far(status_of(facts), facts.record)
        yield Cause(
            f"The job's process is gone and left no final state{f', {far}' if far else ''}: it was killed, or the "
            "machine was switched off.",
            f"Go on from its last snapshot with `{facts.command} resume {facts.record.get('output', '')}`.",
        )


@situation("cancelled-here", "The job was stopped", "a run on this machine ended with `cancelled`")
def cancelled_here(facts: Facts) -> Iterator[Cause]:
    """It was stopped by a command or a signal."""
    if facts.where == "local" and facts.record.get("state") == "cancelled":
        far = _far(status_of(facts), facts.record)
        yield Cause(
            f"The job was stopped{f', {far}' if far else ''}.",
            f"Go on with `{facts.command} resume {facts.record.get('output', '')}`.",
        )


@situation("finished", "The job is finished", "the Job is Complete, or the run on this machine finished", kind="calm")
def finished(facts: Facts) -> Iterator[Cause]:
    """Nothing is wrong."""
    if not is_finished(facts):
        return
    far = _far(status_of(facts), facts.record)
    if facts.where == "local":
        ago = since_moment(facts, float(facts.record.get("ended") or 0.0))
        advice = f"Its models are in {facts.record.get('output', '')}."
    else:
        ago = since_moment(facts, max(seconds((j.get("status") or {}).get("completionTime")) for j in facts.jobs))
        advice = f"Fetch its models with `{facts.command} fetch {facts.job} DIR{_space(facts)}`."
    yield Cause(f"The job finished{f' {ago} ago' if ago else ''}{f', {far}' if far else ''}: nothing is wrong.", advice)


def is_finished(facts: Facts) -> bool:
    """Whether the job has ended well."""
    if facts.where == "local":
        return facts.record.get("state") == "finished"
    # The job's own status wins: pods may exit with 0 after a job has failed.
    has_failed = status_of(facts).get("phase") == "failed"
    return bool(facts.jobs) and not has_failed and all(is_true(job, "Complete") for job in facts.jobs)


def since_moment(facts: Facts, moment_s: float) -> str:
    """How long ago a moment was, in words; empty for 0."""
    return duration(max(0.0, facts.now - moment_s)) if moment_s else ""


def _space(facts: Facts) -> str:
    return f" --namespace {facts.namespace}" if facts.namespace else ""


@situation("running", "The job runs well", "the job trains with all its processes and waits for none", kind="calm")
def running(facts: Facts) -> Iterator[Cause]:
    """Nothing is wrong."""
    status = status_of(facts)
    is_local_end = facts.where == "local" and facts.record.get("state") != "running"
    if status.get("phase") != "training" or is_finished(facts) or is_local_end:
        return
    rates = [float(t["rate"]) for t in status.get("trainers") or () if t.get("rate")]
    there = {role: status.get(f"{role}s") or () for role in ("trainer", "pserver")}
    people = " and ".join(f"{len(some)} {role}{of(some, '', 's')}" for role, some in there.items())
    speed = f" at {sum(rates):,.0f} samples/s" if rates else ""
    yield Cause(
        f"The job runs well: it trains pass {int(status.get('pass') or 0) + 1} of {_passes(status)}{speed} with "
        f"{people}, and waits for none of them.",
        f"Watch it with {bireme(facts, 'status')}.",
    )


@situation(
    "no-word-yet",
    "The job has just begun",
    "pods are ready (or the process runs), and the job has no status yet",
    kind="calm",
)
def no_status_yet(facts: Facts) -> Iterator[Cause]:
    """Between the start of processes and the coordinator's first status; also any plain Job of others."""
    is_live = facts.record.get("state") == "running" if facts.where == "local" else bool(facts.jobs)
    if is_live and not is_finished(facts) and status_of(facts).get("phase") != "training":
        ready = (
            f"{sum(map(is_ready, facts.pods))} of {wanted(facts)} pods are ready" if facts.jobs else "its process runs"
        )
        yield Cause(
            f"Nothing is wrong that can be seen from here: {ready}, and the job has not reported more yet.",
            f"Give it a moment; {bireme(facts, 'logs')} shows what it does.",
        )


def _passes(status: Json) -> int:
    return int(status.get("first_pass") or 0) + int(status.get("passes") or 0)


def _far(status: Json, record: Json | None = None) -> str:
    """How far it came, in words; empty where the number of passes is missing."""
    done = (record or {}).get("passes_done")
    most = (record or {}).get("passes")
    if done is None or not most:
        most = _passes(status)
        done = max(
            int(status.get("saved", -1)) + 1, int(status.get("first_pass") or 0) + len(status.get("passes_done") or ())
        )
    return f"with {done} of {most} passes done" if most else ""
