"""Looks at the job itself: missing, refused, waiting, given up, running or finished."""

from __future__ import annotations

import re
from collections.abc import Iterator

from bireme.core.text import duration
from bireme.diagnose.evidence import Evidence, Json, is_ready, moment, place_of
from bireme.diagnose.table import DiagnosisRule, Match, groups, look
from bireme.diagnose.words import listed, of, pods_words, sentence
from bireme.kube.api.fields import condition, meta, name_of, phase_of, seconds, spec_of, status_of
from bireme.kube.api.naming import queue_of


@look
def not_found(evidence: Evidence, rule: DiagnosisRule) -> Iterator[Match]:
    if evidence.jobs or any(d.get("needed") for d in evidence.denied):
        return
    import difflib

    close = difflib.get_close_matches(evidence.job, evidence.others, n=1)
    others = f"{of(evidence.others, 'is', 'are')} {listed(evidence.others)}" if evidence.others else "is none at all"
    yield Match({"others": others, "close": f"Did you mean {close[0]}? " if close else ""})


@look
def denied(evidence: Evidence, rule: DiagnosisRule) -> Iterator[Match]:
    needed = [d for d in evidence.denied if d.get("needed")]
    if needed:
        permissions = listed(f"{d['verb']} {d['resource']}" for d in needed)
        yield Match({"permissions": permissions, "message": sentence(str(needed[0].get("message", "")))})


@look
def refused(evidence: Evidence, rule: DiagnosisRule) -> Iterator[Match]:
    """The API server's last refusal to create a pod, for each Job that lacks some.

    An event counts only while pods are missing, because it stays for an hour after the problem was solved.
    """
    live = [p for p in evidence.pods if phase_of(p) in ("Pending", "Running", "Succeeded")]
    if evidence.has_ended or evidence.is_suspended or len(live) >= evidence.wanted:
        return
    refusals: dict[str, tuple[str, ...]] = {}
    for job in evidence.jobs:
        events = evidence.events_about(name_of(job))
        made = max((seconds(moment(e)) for e in events if e.get("reason") == "SuccessfulCreate"), default=0.0)
        refusal = next((e for e in events if e.get("reason") == "FailedCreate" and seconds(moment(e)) >= made), None)
        if refusal is not None:
            text = str(refusal.get("message", "")).removeprefix("Error creating: ")
            text = re.sub(r'pods "[^"]*"', "the pod", text)
            refusals[text] = (*refusals.get(text, ()), f"pods of {name_of(job)}")
    for text, about in refusals.items():
        if match := re.search(rule.pattern, text):
            # Quotas write `cpu=1,memory=2Gi`.
            values = {name: re.sub(r",(?=\S)", " and ", value) for name, value in groups(match, 600).items()}
            yield Match(values, about=about)


@look
def queued(evidence: Evidence, rule: DiagnosisRule) -> Iterator[Match]:
    for job in evidence.jobs[:1]:
        queue = queue_of(job)
        if queue and spec_of(job).get("suspend"):
            events = [e for e in evidence.events if (e.get("involvedObject") or {}).get("kind") == "Workload"]
            why = f": {sentence(str(max(events, key=moment).get('message', '')))}" if events else ""
            long = duration(evidence.since(meta(job).get("creationTimestamp")))
            yield Match({"queue": queue, "long": long, "why": why})


@look
def suspended(evidence: Evidence, rule: DiagnosisRule) -> Iterator[Match]:
    for job in evidence.jobs[:1]:
        if spec_of(job).get("suspend") and not queue_of(job):
            begun = condition(job, "Suspended").get("lastTransitionTime")
            yield Match({"long": f" for {duration(evidence.since(begun))}" if begun else "", "far": _far(evidence)})


@look
def job_failed(evidence: Evidence, rule: DiagnosisRule) -> Iterator[Match]:
    for job in evidence.jobs:
        failed, status, spec = condition(job, "Failed"), status_of(job), spec_of(job)
        reason = str(failed.get("reason"))
        # A hopeless job ends itself by a deadline that has passed (`give_up` in kube/pod): its own error is the cause.
        is_own = reason == "DeadlineExceeded" and evidence.status.error
        if failed and evidence.has_ended and not is_own and re.search(rule.pattern, reason):
            per_node = " per node" if "backoffLimitPerIndex" in spec else ""
            count, most = int(status.get("failed") or 0), spec.get("backoffLimitPerIndex", spec.get("backoffLimit"))
            index = f" (index {status['failedIndexes']})" if status.get("failedIndexes") else ""
            values = {
                "time": duration(float(spec.get("activeDeadlineSeconds") or 0)),
                "failed": f"{count} failed pod{'' if count == 1 else 's'}{index}",
                "message": sentence(str(failed.get("message", ""))),
                "limit": f"{most} tries again are allowed{per_node}",
            }
            yield Match(values, evidence.pods, about=None if reason == "DeadlineExceeded" else (evidence.job,))


@look
def waiting_for_pods(evidence: Evidence, rule: DiagnosisRule) -> Iterator[Match]:
    ready, most = [p for p in evidence.pods if is_ready(p)], evidence.wanted
    if not evidence.jobs or len(ready) >= most or evidence.has_ended:
        return
    late = [p for p in evidence.pods if not is_ready(p) and phase_of(p) in ("Pending", "Running")]
    replaced = {place_of(p) for p in ready + late}
    gone = [p for p in evidence.pods if phase_of(p) == "Failed" and place_of(p) not in replaced]
    doing = [_late(evidence, late)] if late else []
    doing += [f"{pods_words(gone)} ended and will be replaced"] if gone else []
    absent = most - len(ready) - len(late) - len(gone)
    doing += [f"{absent} {'is' if absent == 1 else 'are'} not created yet"] if absent > 0 else []
    doing += [f"the job itself waits for {listed(_awaited(evidence))}"] if _awaited(evidence) else []
    values = {"ready": str(len(ready)), "most": str(most), "doing": f": {'; '.join(doing)}" if doing else ""}
    yield Match(values)


def _late(evidence: Evidence, pods: list[Json]) -> str:
    oldest = max(evidence.since(meta(p).get("creationTimestamp")) for p in pods)
    messages = [
        str(e.get("message")) for e in evidence.events_about(name_of(pods[0])) if e.get("reason") != "Unhealthy"
    ]
    last = f" (last: {sentence(messages[0], 120)})" if messages else ""
    doing = "running without being ready" if phase_of(pods[0]) == "Running" else "starting"
    return f"{pods_words(pods)} {of(pods, 'has', 'have')} been {doing} for {duration(oldest)}{last}"


@look
def waiting_for_peers(evidence: Evidence, rule: DiagnosisRule) -> Iterator[Match]:
    if waits := _awaited(evidence):
        is_gathering = evidence.status.phase == "gathering"
        doing = "gathering its processes" if is_gathering else "handing out parameters"
        yield Match({"doing": doing, "waits": listed(waits)})


def _awaited(evidence: Evidence) -> list[str]:
    """The processes that the coordinator waits for before it can train."""
    status = evidence.status
    if status.phase not in ("gathering", "setting-up") or evidence.is_over:
        return []
    return list(status.waits_for) or [f"trainer {rank}" for rank in status.trainers_missing]


@look
def run_here(evidence: Evidence, rule: DiagnosisRule) -> Iterator[Match]:
    if evidence.where == "local" and evidence.record.get("state") == rule.pattern:
        yield Match({"far": _far(evidence)})


@look
def finished(evidence: Evidence, rule: DiagnosisRule) -> Iterator[Match]:
    if evidence.is_finished:
        ends = [seconds(status_of(j).get("completionTime")) for j in evidence.jobs]
        end = max([*ends, float(evidence.record.get("ended") or 0.0)])
        ago = f" {duration(max(0.0, evidence.now - end))} ago" if end else ""
        yield Match({"ago": ago, "far": _far(evidence)})


@look
def running(evidence: Evidence, rule: DiagnosisRule) -> Iterator[Match]:
    status = evidence.status
    if status.phase != "training" or evidence.is_finished or evidence.is_over:
        return
    counts = {"trainer": len(status.trainers), "pserver": len(status.pservers)}
    values = {
        "pass": str(status.pass_id + 1),
        "passes": str(status.total),
        "speed": f" at {status.samples_per_s:,.0f} samples/s" if status.samples_per_s else "",
        "processes": " and ".join(f"{count} {role}{'' if count == 1 else 's'}" for role, count in counts.items()),
    }
    yield Match(values)


@look
def no_status_yet(evidence: Evidence, rule: DiagnosisRule) -> Iterator[Match]:
    """Between the start of processes and the coordinator's first status; also any plain Job of others."""
    is_live = not evidence.is_over if evidence.where == "local" else bool(evidence.jobs)
    if is_live and not evidence.is_finished and evidence.status.phase != "training":
        pods = f"{sum(map(is_ready, evidence.pods))} of {evidence.wanted} pods are ready"
        yield Match({"ready": pods if evidence.jobs else "its process runs"})


def _far(evidence: Evidence) -> str:
    """How far the job came; empty where the number of passes is missing."""
    status, done, most = evidence.status, evidence.record.get("passes_done"), evidence.record.get("passes")
    if done is None or not most:
        done, most = status.done, status.total
    return f", with {done} of {most} passes done" if most else ""
