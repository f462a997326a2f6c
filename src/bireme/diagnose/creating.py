"""Pods that the API server refuses: the Job's `FailedCreate` events hold the reason.

Such an event counts only while pods are missing, because it stays for an hour after the problem was solved.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from bireme.diagnose.facts import (
    Cause,
    Facts,
    events_about,
    has_ended,
    is_suspended,
    moment,
    name_of,
    phase_of,
    seconds,
    situation,
    wanted,
)
from bireme.diagnose.words import AGAIN, bireme, kubectl, sentence


def refusals(facts: Facts) -> list[str]:
    """The API server's last refusals for each Job that lacks pods; equal messages about several pods count once."""
    if has_ended(facts) or is_suspended(facts):
        return []
    live = [p for p in facts.pods if phase_of(p) in ("Pending", "Running", "Succeeded")]
    if len(live) >= wanted(facts):
        return []
    messages = []
    for job in facts.jobs:
        events = events_about(facts, name_of(job))
        made = max((seconds(moment(e)) for e in events if e.get("reason") == "SuccessfulCreate"), default=0.0)
        refused = [e for e in events if e.get("reason") == "FailedCreate" and seconds(moment(e)) >= made]
        messages += [str(e.get("message", "")).removeprefix("Error creating: ") for e in refused[:1]]
    return list(dict.fromkeys(re.sub(r'pods "[^"]*"', "the pod", text) for text in messages))


@situation("quota", "The quota is used up", "a `FailedCreate` event of the Job says `exceeded quota`")
def quota(facts: Facts) -> Iterator[Cause]:
    """A ResourceQuota is exhausted."""
    for text in refusals(facts):
        match = re.search(r"exceeded quota: ([^,]+), requested: (.+), used: (.+), limited: (.+)$", text)
        if match:
            name, asked, used, most = (text.replace(",", " and ") for text in match.groups())
            yield Cause(
                f"The quota {name} of namespace {facts.namespace} is used up: a pod asks for {asked}, {used} is used, "
                f"{most} is allowed.",
                f"Delete what is not needed, lower `kubernetes.resources` or `nodes` in job.yaml and {AGAIN}, "
                f"or ask for a larger quota ({kubectl(facts, f'describe quota {name}')}).",
            )
        elif "failed quota" in text:
            must = text.partition("must specify ")[2] or "requests and limits"
            yield Cause(
                f"A quota of namespace {facts.namespace} wants every pod to say its {sentence(must)}.",
                f"Set them under `kubernetes.resources` in job.yaml and {AGAIN}.",
            )


@situation(
    "limit-range",
    "A limit of the namespace is passed",
    "a `FailedCreate` event of the Job says `maximum` or `minimum … usage per`",
)
def limit_range(facts: Facts) -> Iterator[Cause]:
    """A LimitRange forbids what a container asks for."""
    for text in refusals(facts):
        match = re.search(r"(?:maximum|minimum) .+? usage per (?:Container|Pod) is .+", text)
        if match:
            yield Cause(
                f"Namespace {facts.namespace} does not allow what a pod asks for: {sentence(match[0].strip('[]'))}.",
                f"Change `kubernetes.resources` in job.yaml and {AGAIN} ({kubectl(facts, 'describe limitrange')}).",
            )


@situation(
    "pod-security", "Pod Security refuses the pods", "a `FailedCreate` event of the Job says `violates PodSecurity`"
)
def pod_security(facts: Facts) -> Iterator[Cause]:
    """The namespace enforces a stricter profile than the pods satisfy."""
    for text in refusals(facts):
        match = re.search(r'violates PodSecurity "([^"]+)": (.+)$', text)
        if match:
            yield Cause(
                f"Namespace {facts.namespace} enforces Pod Security {match[1]} and refuses the job's pods: "
                f"{sentence(match[2], 600)}.",
                f"Take what it names out of `kubernetes.patch` (bireme's own pods satisfy `restricted`) and {AGAIN}, "
                f"or use a namespace that allows it (`kubectl get namespace {facts.namespace} --show-labels`).",
            )


@situation(
    "admission",
    "An admission policy or webhook refuses the pods",
    "a `FailedCreate` event of the Job says `denied the request`, `denied request` or `failed calling webhook`",
)
def admission(facts: Facts) -> Iterator[Cause]:
    """An admission policy or webhook refuses, or the webhook does not answer."""
    for text in refusals(facts):
        broken = re.search(r'failed calling webhook "([^"]+)": (.+)$', text)
        webhook = re.search(r'admission webhook "([^"]+)" denied the request:? ?(.*)$', text)
        policy = re.search(r"ValidatingAdmissionPolicy '([^']+)'.* denied request: (.+)$", text)
        if broken:
            yield Cause(
                f"The admission webhook {broken[1]} must allow every pod and does not answer: {sentence(broken[2])}.",
                "Ask its owner to bring it back (`kubectl get validatingwebhookconfigurations,"
                "mutatingwebhookconfigurations`); the job goes on by itself then.",
            )
        elif webhook or policy:
            kind, said = ("webhook", webhook) if webhook else ("policy", policy)
            assert said is not None
            yield Cause(
                f"The admission {kind} {said[1]} refuses the job's pods: {sentence(said[2]) or 'it gives no reason'}.",
                f"Change the job as it says (labels and the like under `kubernetes.patch`) and {AGAIN}, or ask the "
                f"owner of the {kind} for an exception.",
            )


@situation(
    "service-account",
    "The service account is missing",
    "a `FailedCreate` event of the Job says `error looking up service account`",
)
def service_account(facts: Facts) -> Iterator[Cause]:
    """The pods' service account does not exist."""
    for text in refusals(facts):
        match = re.search(r"error looking up service account ([^:]+):", text)
        if match:
            name = match[1].rpartition("/")[2]
            yield Cause(
                f"The service account {name}, as which the job's pods run, does not exist in "
                f"namespace {facts.namespace}.",
                f"Submit the job again, which makes it, or {kubectl(facts, f'create serviceaccount {name}')}.",
            )


@situation(
    "class-missing",
    "A priority or runtime class is missing",
    "a `FailedCreate` event of the Job says `no PriorityClass with name` or `RuntimeClass … not found`",
)
def class_missing(facts: Facts) -> Iterator[Cause]:
    """The job names a class that the cluster does not have."""
    for text in refusals(facts):
        priority = re.search(r"no PriorityClass with name (\S+) was found", text)
        if priority:
            yield Cause(
                f"The job asks for priority class {priority[1]}, which this cluster does not have.",
                f"Set `kubernetes.priority_class` to one that `kubectl get priorityclasses` lists and {AGAIN}.",
            )
        runtime = re.search(r'RuntimeClass(?:\.node\.k8s\.io)? "([^"]+)" not found', text)
        if runtime:
            yield Cause(
                f"The job asks for runtime class {runtime[1]}, which this cluster does not have.",
                f"Set it under `kubernetes.patch` to one that `kubectl get runtimeclasses` lists and {AGAIN}.",
            )


@situation(
    "not-created",
    "Pods cannot be created, for a reason of its own",
    "a `FailedCreate` event of the Job, and nothing above fits",
    kind="consequence",
)
def not_created(facts: Facts) -> Iterator[Cause]:
    """The API server's message as it is."""
    for text in refusals(facts):
        yield Cause(
            f"The API server refuses the job's pods: {sentence(text)}.",
            f"Change the job as it says and {AGAIN}; {bireme(facts, 'delete')} takes this one away.",
            ("pods of the job",),
        )
