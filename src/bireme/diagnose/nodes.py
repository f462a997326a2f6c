"""Pods that a node or the cluster ended: evicted, preempted, drained, or lost with their machine."""

from __future__ import annotations

import re
from collections.abc import Iterator

from bireme.core.text import duration
from bireme.diagnose.facts import (
    Cause,
    Facts,
    Json,
    condition,
    grouped,
    is_true,
    name_of,
    phase_of,
    since,
    situation,
    troubled,
)
from bireme.diagnose.words import AGAIN, capital, names, node_of, nodes_words, of, pods_words, sentence

SICK_S = 5.0
"""How long a node must be unready before the sentence has a duration: conditions flicker."""


@situation("evicted", "A node threw the pod out", "a pod failed with the reason `Evicted`")
def evicted(facts: Facts) -> Iterator[Cause]:
    """The kubelet needed room, or the pod wrote more than it may."""

    def group_key(pod: Json) -> str | None:
        status = pod.get("status") or {}
        return str(status.get("message", "")) if status.get("reason") == "Evicted" else None

    for said, pods in grouped(facts, group_key):
        node = node_of(pods[0]) or "the node"
        low = re.search(r"low on resource: ([\w-]+)", said)
        advice = "Keep scratch files on the job's volume or raise the limit that it names"
        if low and "memory" in low[1]:
            advice = "Raise `kubernetes.resources.requests.memory` to what a pod really uses, so that it gets the room"
        elif low:
            advice = f"Free disk on {node} or keep pods off it (`kubectl cordon {node}`)"
        yield Cause(
            f"{nodes_words(pods)} evicted {pods_words(pods)}: {sentence(said)}.",
            f"{advice}, then {AGAIN} if the job has ended.",
            names(pods),
        )


_REFUSALS = (
    r"OutOf\w+|Node(?:Affinity|Ports|Shutdown)|UnexpectedAdmissionError|Terminated|Shutdown|TopologyAffinityError"
)
_DISRUPTIONS = {
    "EvictionByEvictionAPI": (
        "evicted through the API, as a drain of its node does",
        "Nothing needs to be done: the job goes on from its snapshot; `kubectl get nodes` shows cordoned ones",
    ),
    "PreemptionByScheduler": (
        "preempted by a pod of higher priority",
        "Give the job a higher `kubernetes.priority_class`, or wait until there is room for it again",
    ),
    "TerminationByKubelet": (
        "ended by its node, which is shutting down or short of something",
        "Look after the node; the pod is replaced elsewhere by itself",
    ),
}


@situation(
    "disrupted",
    "The pod was evicted or preempted on purpose",
    "a pod's condition `DisruptionTarget` names the API, the scheduler or the kubelet",
)
def disrupted(facts: Facts) -> Iterator[Cause]:
    """The cluster evicted the pod."""

    def group_key(pod: Json) -> str | None:
        reason = str(condition(pod, "DisruptionTarget").get("reason"))
        is_evicted = (pod.get("status") or {}).get("reason") == "Evicted"
        return reason if reason in _DISRUPTIONS and not is_evicted else None

    for reason, pods in grouped(facts, group_key):
        what, advice = _DISRUPTIONS[reason]
        said = sentence(str(condition(pods[0], "DisruptionTarget").get("message", "")))
        yield Cause(
            f"{capital(pods_words(pods))} {of(pods, 'was', 'were')} {what}{f' ({said})' if said else ''}.",
            f"{advice}.",
            names(pods),
        )


@situation(
    "node-lost",
    "A node does not answer any more",
    "a node with pods of the job has `Ready` not True, is gone, or its pods were deleted for that",
)
def node_lost(facts: Facts) -> Iterator[Cause]:
    """The machine under a pod is gone or cut off."""
    nodes = {name_of(n): n for n in facts.nodes}
    lost: dict[str, list[Json]] = {}
    for pod in troubled(facts):
        node = node_of(pod)
        is_taken = condition(pod, "DisruptionTarget").get("reason") in ("DeletionByTaintManager", "DeletionByPodGC")
        is_sick = node in nodes and not is_true(nodes[node], "Ready")
        if node and phase_of(pod) != "Succeeded" and (is_taken or is_sick or (nodes and node not in nodes)):
            lost.setdefault(node, []).append(pod)
    for node, pods in lost.items():
        ready = condition(nodes.get(node, {}), "Ready")
        long = since(facts, ready.get("lastTransitionTime")) if ready.get("status") != "True" else 0.0
        state = f"has not answered for {duration(long)}" if long > SICK_S else "was lost"
        state = state if node in nodes or not nodes else "is no longer in the cluster"
        said = sentence(str(ready.get("message", ""))) if ready.get("status") != "True" else ""
        yield Cause(
            f"Node {node} {state}{f' ({said})' if said else ''}, and with it {pods_words(pods)}.",
            "Pods are replaced on other nodes by themselves if there is room; bring the node back, or "
            f"`kubectl delete node {node}` if it is gone for good.",
            names(pods),
        )


@situation(
    "kubelet-refused",
    "A node took the pod and sent it away",
    "a pod failed with a reason such as `OutOfcpu`, `NodeAffinity`, `UnexpectedAdmissionError` or `NodeShutdown`",
)
def kubelet_refused(facts: Facts) -> Iterator[Cause]:
    """Scheduler and kubelet disagree about a node."""

    def group_key(pod: Json) -> str | None:
        status = pod.get("status") or {}
        reason = str(status.get("reason") or "")
        is_it = phase_of(pod) == "Failed" and re.fullmatch(_REFUSALS, reason)
        return f"{reason}: {sentence(str(status.get('message', '')))}" if is_it else None

    for said, pods in grouped(facts, group_key):
        yield Cause(
            f"{nodes_words(pods)} took {pods_words(pods)} and sent it away ({said}).",
            f"The pod is tried again by itself; if that goes on, look at `kubectl describe node {node_of(pods[0])}`.",
            names(pods),
        )
