"""Jobs that nothing is wrong with, or that somebody told to wait: not there, suspended, waiting, running, finished."""

from __future__ import annotations

from collections.abc import Iterator

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
from bireme.diagnose.words import bireme, duration, kubectl, listed, of, pods_words, sentence
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
                f"{kubectl(facts, f'describe localqueue {queue}')} tell what is missing.",
            )


@situation("suspended", "The job is suspended", "the Job has `suspend: true` and no queue, or was stopped")
def suspended(facts: Facts) -> Iterator[Cause]:
    """Somebody stopped it, or submitted it to wait."""
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
        f"Give it a moment; if that stays, {kubectl(facts, 'get events --sort-by=.lastTimestamp')} tells more.",
    )


def _late(facts: Facts, pods: list[Json]) -> str:
    if not pods:
        return ""
    oldest = max(since(facts, meta(p).get("creationTimestamp")) for p in pods)
    told = [str(e.get("message")) for e in events_about(facts, name_of(pods[0])) if e.get("reason") != "Unhealthy"]
    said = f" (last: {sentence(told[0], 120)})" if told else ""
    doing = "running without being ready" if phase_of(pods[0]) == "Running" else "starting"
    return f"{pods_words(pods)} {of(pods, 'has', 'have')} been {doing} for {duration(oldest)}{said}"


def _gone(pods: list[Json]) -> str:
    return f"{pods_words(pods)} ended and will be replaced" if pods else ""


def _absent(count: int) -> str:
    return f"{count} {'is' if count == 1 else 'are'} not created yet" if count > 0 else ""


@situation(
    "waiting-for-peers",
    "The job waits for processes",
    "all pods are ready, and the job's status waits for somebody",
    kind="consequence",
)
def waiting_for_peers(facts: Facts) -> Iterator[Cause]:
    """Pods are there; trainers or pservers in them are not yet."""
    told, waits = status_of(facts), _awaited(facts)
    if waits:
        yield Cause(
            f"The job is {'gathering its processes' if told['phase'] == 'gathering' else 'handing out parameters'} and "
            f"waits for {listed(waits)}.",
            f"Give it a moment; if that stays, {bireme(facts, 'logs')} shows what those processes say.",
        )


def _awaited(facts: Facts) -> list[str]:
    """Whom the coordinator waits for before it can train."""
    told = status_of(facts)
    is_over = facts.where == "local" and facts.record.get("state") != "running"
    if told.get("phase") not in ("gathering", "setting-up") or is_over:
        return []
    missing = [f"trainer {rank}" for rank in told.get("trainers_missing") or ()]
    return [str(w) for w in told.get("waits_for") or ()] or missing


@situation("died-here", "The job's process is gone", "a run on this machine has no process and no last word")
def died_here(facts: Facts) -> Iterator[Cause]:
    """Killed with SIGKILL, a crash, or the machine was switched off."""
    if facts.where == "local" and facts.record.get("state") == "died":
        far = _far(status_of(facts), facts.record)
        yield Cause(
            f"The job's process is gone without a last word{f', {far}' if far else ''}: it was killed, or the machine "
            "was switched off.",
            f"Go on from its last snapshot with `{facts.command} resume {facts.record.get('output', '')}`.",
        )


@situation("cancelled-here", "The job was stopped", "a run on this machine ended with `cancelled`")
def cancelled_here(facts: Facts) -> Iterator[Cause]:
    """Somebody stopped it."""
    if facts.where == "local" and facts.record.get("state") == "cancelled":
        far = _far(status_of(facts), facts.record)
        yield Cause(
            f"Somebody stopped the job{f', {far}' if far else ''}.",
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
    # The job's own word wins: pods may leave without a complaint after a job has failed.
    has_failed = status_of(facts).get("phase") == "failed"
    return bool(facts.jobs) and not has_failed and all(is_true(job, "Complete") for job in facts.jobs)


def since_moment(facts: Facts, moment_s: float) -> str:
    """How long ago something was, in words; empty where we do not know."""
    return duration(max(0.0, facts.now - moment_s)) if moment_s else ""


def _space(facts: Facts) -> str:
    return f" --namespace {facts.namespace}" if facts.namespace else ""


@situation("running", "The job runs well", "the job trains, everybody is there and nobody is waited for", kind="calm")
def running(facts: Facts) -> Iterator[Cause]:
    """Nothing is wrong."""
    told = status_of(facts)
    is_local_end = facts.where == "local" and facts.record.get("state") != "running"
    if told.get("phase") != "training" or is_finished(facts) or is_local_end:
        return
    rates = [float(t["rate"]) for t in told.get("trainers") or () if t.get("rate")]
    there = {role: told.get(f"{role}s") or () for role in ("trainer", "pserver")}
    people = " and ".join(f"{len(some)} {role}{of(some, '', 's')}" for role, some in there.items())
    speed = f" at {sum(rates):,.0f} samples/s" if rates else ""
    yield Cause(
        f"The job runs well: it trains pass {int(told.get('pass') or 0) + 1} of {_passes(told)}{speed} with {people}, "
        "and nobody is waited for.",
        f"Watch it with {bireme(facts, 'status')}.",
    )


@situation(
    "no-word-yet",
    "The job has just begun",
    "pods are ready (or the process runs), and the job has said nothing yet",
    kind="calm",
)
def no_word_yet(facts: Facts) -> Iterator[Cause]:
    """Between the start of processes and the coordinator's first word; also any plain Job of others."""
    is_live = facts.record.get("state") == "running" if facts.where == "local" else bool(facts.jobs)
    if is_live and not is_finished(facts) and status_of(facts).get("phase") != "training":
        ready = (
            f"{sum(map(is_ready, facts.pods))} of {wanted(facts)} pods are ready" if facts.jobs else "its process runs"
        )
        yield Cause(
            f"Nothing is wrong that can be seen from here: {ready}, and the job has not said more yet.",
            f"Give it a moment; {bireme(facts, 'logs')} shows what it does.",
        )


def _passes(told: Json) -> int:
    return int(told.get("first_pass") or 0) + int(told.get("passes") or 0)


def _far(told: Json, record: Json | None = None) -> str:
    """How far it came, in words; empty where nobody knows."""
    done = (record or {}).get("passes_done")
    most = (record or {}).get("passes")
    if done is None or not most:
        most = _passes(told)
        done = max(
            int(told.get("saved", -1)) + 1, int(told.get("first_pass") or 0) + len(told.get("passes_done") or ())
        )
    return f"with {done} of {most} passes done" if most else ""
