"""Pods that no node takes. The scheduler's message has a count of nodes for each reason:

    0/3 nodes are available: 1 Insufficient cpu, 2 node(s) had untolerated taint {dedicated: infra}. preemption: …

It is parsed once; each situation below handles one reason. A pod may be kept off different nodes by different reasons:
then each is reported, and solving any of them may be enough.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator

from bireme.diagnose.facts import Cause, Facts, Json, condition, is_suspended, meta, name_of, situation, troubled
from bireme.diagnose.words import (
    AGAIN,
    amount_words,
    capital,
    kubectl,
    listed,
    names,
    of,
    pods_words,
    requests,
    sentence,
)
from bireme.kube.api.naming import COMPONENT
from bireme.spec.kubernetes import amount

_REASON = re.compile(r"(\d+) ((?:(?!, \d+ (?:node\(s\)|Insufficient|Too many|Preemption|persistentvolume)).)+)")


OWN_TAINTS = "node.kubernetes.io/"
_SICK = {
    "not-ready": "not ready",
    "unreachable": "unreachable",
    "unschedulable": "cordoned",
    "disk-pressure": "short of disk",
    "memory-pressure": "short of memory",
    "pid-pressure": "short of processes",
    "network-unavailable": "without a network",
}


def unscheduled(facts: Facts) -> dict[str, list[Json]]:
    """Pods that the scheduler could not place, by its message about them."""
    pods: dict[str, list[Json]] = {}
    for pod in troubled(facts) if not is_suspended(facts) else ():
        scheduled = condition(pod, "PodScheduled")
        is_waiting = scheduled.get("status") == "False" and scheduled.get("reason") == "Unschedulable"
        if is_waiting and not meta(pod).get("deletionTimestamp"):
            pods.setdefault(str(scheduled.get("message", "")), []).append(pod)
    return pods


def reasons(message: str) -> dict[str, int]:
    """The scheduler's reasons, each with its number of nodes; the text after the full stop is about preemption."""
    _, _, body = message.partition(": ")
    return {text.strip(" ."): int(count) for count, text in _REASON.findall(body.split(". ")[0])}


def kept_off(facts: Facts, matches: Callable[[str], bool]) -> Iterator[tuple[list[Json], str, int, int]]:
    """Pods that a reason of this kind keeps off nodes, with the reason, how many nodes it is about and of how many."""
    for message, pods in unscheduled(facts).items():
        total = re.search(r"0/(\d+) nodes", message)
        for reason, count in reasons(message).items():
            if matches(reason):
                yield pods, reason, count, int(total[1]) if total else count


def _insufficient(facts: Facts, resource: str) -> Iterator[Cause]:
    has = {name_of(n): amount(((n.get("status") or {}).get("allocatable") or {}).get(resource)) for n in facts.nodes}
    largest = max(has, key=lambda n: has[n], default="")
    for pods, _, count, total in kept_off(facts, lambda r: r == f"Insufficient {resource}"):
        asked = requests(pods[0]).get(resource, 0.0)
        most = f"; the largest, {largest}, has {amount_words(resource, has[largest])} in all" if largest else ""
        lower = f"lower `kubernetes.resources.requests.{resource}` in job.yaml and {AGAIN}"
        is_never = bool(largest) and has[largest] < asked
        advice = f"{lower}, or add a larger node" if is_never else f"wait until others leave, add a node, or {lower}"
        yield Cause(
            f"{capital(pods_words(pods))} {of(pods, 'asks', 'ask')} for {amount_words(resource, asked)}"
            f"{of(pods, '', ' each')}, and {count} of {total} nodes have too little {resource} free{most}.",
            f"{capital(advice)} ({kubectl_nodes()} shows what is taken).",
            names(pods),
        )


def kubectl_nodes() -> str:
    """The command that shows what is allocated on nodes."""
    return "`kubectl describe nodes`"


@situation("too-little-cpu", "Too little CPU", "the scheduler says `Insufficient cpu`")
def too_little_cpu(facts: Facts) -> Iterator[Cause]:
    """No node has the CPUs that a pod asks for."""
    yield from _insufficient(facts, "cpu")


@situation("too-little-memory", "Too little memory", "the scheduler says `Insufficient memory`")
def too_little_memory(facts: Facts) -> Iterator[Cause]:
    """No node has the memory that a pod asks for."""
    yield from _insufficient(facts, "memory")


@situation("too-little-else", "Too little of something else", "the scheduler says `Insufficient` and a resource's name")
def too_little_else(facts: Facts) -> Iterator[Cause]:
    """No node has the disk, the accelerators or another resource that a pod requests."""
    lacks = {reason for _, reason, _, _ in kept_off(facts, lambda r: r.startswith("Insufficient "))}
    for resource in sorted(r.removeprefix("Insufficient ") for r in lacks):
        if resource not in ("cpu", "memory"):
            yield from _insufficient(facts, resource)


@situation("taint", "A taint is not tolerated", "the scheduler says `untolerated taint`, and a node has one")
def taint(facts: Facts) -> Iterator[Cause]:
    """Nodes are reserved for other pods; Kubernetes' own taints belong to `sick_nodes`."""
    for pods, reason, _, total in kept_off(facts, lambda r: "untolerated taint" in r):
        for (key, value, effect), nodes in untolerated(facts, pods[0], reason).items():
            if key.startswith(OWN_TAINTS):
                continue
            worth = f", value: '{value}'" if value else ""
            yield Cause(
                f"{len(nodes)} of {total} nodes have the taint {key}{'=' if value else ''}{value}, "
                f"which {pods_words(pods)} {of(pods, 'does', 'do')} not tolerate.",
                f"Add `{{key: {key}{worth}, effect: {effect}}}` to `kubernetes.tolerations` in job.yaml and {AGAIN}, "
                f"or take the taint away with `kubectl taint nodes {nodes[0]} {key}-`.",
                names(pods),
            )


def untolerated(facts: Facts, pod: Json, reason: str) -> dict[tuple[str, str, str], list[str]]:
    """Taints that keep a pod off, each with its nodes: newer schedulers count them without their names."""
    taints: dict[tuple[str, str, str], list[str]] = {}
    for node in facts.nodes:
        for mark in (node.get("spec") or {}).get("taints") or ():
            kind = (str(mark.get("key")), str(mark.get("value") or ""), str(mark.get("effect")))
            if kind[2] != "PreferNoSchedule" and not _is_tolerated(pod, kind):
                taints.setdefault(kind, []).append(name_of(node))
    said = re.search(r"\{([^:}]*):? ?([^}]*)\}", reason)
    return taints or ({(said[1], said[2], "NoSchedule"): ["NODE"]} if said else {})


def _is_tolerated(pod: Json, kind: tuple[str, str, str]) -> bool:
    for rule in (pod.get("spec") or {}).get("tolerations") or ():
        is_key = rule.get("key") in (None, "", kind[0])
        is_value = rule.get("operator") == "Exists" or str(rule.get("value") or "") == kind[1]
        if is_key and is_value and rule.get("effect") in (None, "", kind[2]):
            return True
    return False


@situation(
    "sick-nodes",
    "Nodes are not ready or under pressure",
    "the scheduler says `untolerated taint`, and a node's taint begins with `node.kubernetes.io/`",
)
def sick_nodes(facts: Facts) -> Iterator[Cause]:
    """Nodes with taints that Kubernetes itself has set."""
    for pods, reason, _, total in kept_off(facts, lambda r: "untolerated taint" in r):
        sick: dict[str, list[str]] = {}
        for (key, _value, _effect), nodes in untolerated(facts, pods[0], reason).items():
            if key.startswith(OWN_TAINTS):
                sick.setdefault(key.removeprefix(OWN_TAINTS), []).extend(nodes)
        for kind, nodes in sick.items():
            which = list(dict.fromkeys(nodes))
            yield Cause(
                f"{len(which)} of {total} nodes are {_SICK.get(kind, kind)} ({listed(which)}), so "
                f"{pods_words(pods)} cannot go there.",
                f"Bring {of(which, 'it', 'them')} back or add nodes ({kubectl_nodes()} shows what is wrong); the job "
                "goes on by itself then.",
                names(pods),
            )


@situation("cordoned", "Nodes are cordoned", "the scheduler says `node(s) were unschedulable`")
def cordoned(facts: Facts) -> Iterator[Cause]:
    """Nodes are closed for new pods."""
    for pods, _, count, total in kept_off(facts, lambda r: r == "node(s) were unschedulable"):
        closed = [name_of(n) for n in facts.nodes if (n.get("spec") or {}).get("unschedulable")]
        which = f" ({listed(closed)})" if closed else ""
        yield Cause(
            f"{count} of {total} nodes are cordoned{which}, so {pods_words(pods)} cannot go there.",
            f"Open them with `kubectl uncordon {closed[0] if closed else 'NODE'}`, or add nodes.",
            names(pods),
        )


@situation(
    "node-selector", "No node matches the selector", "the scheduler says `didn't match Pod's node affinity/selector`"
)
def node_selector(facts: Facts) -> Iterator[Cause]:
    """The job asks for nodes with labels that nodes do not have."""
    for pods, _, count, total in kept_off(facts, lambda r: "node affinity/selector" in r):
        labels = (pods[0].get("spec") or {}).get("nodeSelector") or {}
        asked = ", ".join(f"{k}={v}" for k, v in labels.items()) or "its node affinity"
        example = next(iter(f"{k}={v}" for k, v in labels.items()), "KEY=VALUE")
        role = (meta(pods[0]).get("labels") or {}).get(COMPONENT)
        keys = "`kubernetes.node_selector`" + (" or `kubernetes.groups`" if role in ("pserver", "trainer") else "")
        yield Cause(
            f"{count} of {total} nodes do not have what {pods_words(pods)} must have: {asked}.",
            f"Correct {keys} in job.yaml and {AGAIN}, or label a node with `kubectl label node NODE {example}`.",
            names(pods),
        )


@situation(
    "spread",
    "Rules between pods cannot be kept",
    "the scheduler says `affinity rules` or `topology spread constraints`",
)
def spread(facts: Facts) -> Iterator[Cause]:
    """Affinity between pods, or spreading, leaves no node."""
    said = ("pod affinity rules", "anti-affinity rules", "topology spread constraints")
    for pods, reason, count, total in kept_off(facts, lambda r: any(s in r for s in said)):
        rule = reason.removeprefix("node(s) ").removeprefix("didn't match ").removeprefix("didn't satisfy ")
        yield Cause(
            f"{capital(pods_words(pods))} cannot go onto {count} of {total} nodes because of the {rule} of the job.",
            f"Add nodes, or loosen the rule under `kubernetes.patch` in job.yaml and {AGAIN}.",
            names(pods),
        )


@situation(
    "ports-taken", "A host port is taken", "the scheduler says `didn't have free ports for the requested pod ports`"
)
def ports_taken(facts: Facts) -> Iterator[Cause]:
    """More pods want a port of the node itself than there are nodes."""
    for pods, _, count, total in kept_off(facts, lambda r: "free ports" in r):
        ports = sorted(
            {
                str(p["hostPort"])
                for c in (pods[0].get("spec") or {}).get("containers") or ()
                for p in c.get("ports") or ()
                if p.get("hostPort")
            }
        )
        yield Cause(
            f"{capital(pods_words(pods))} {of(pods, 'wants', 'want')} the host port "
            f"{listed(ports)}, which is taken on {count} of {total} nodes.",
            "Leave `hostPort` out, so that every pod has its own address, use at most as many pods as nodes, or delete "
            f"what holds the port ({kubectl(facts, 'get pods -o wide')}).",
            names(pods),
        )


@situation("too-many-pods", "Nodes are full of pods", "the scheduler says `Too many pods`")
def too_many_pods(facts: Facts) -> Iterator[Cause]:
    """Nodes hold as many pods as they may."""
    for pods, _, count, total in kept_off(facts, lambda r: r == "Too many pods"):
        yield Cause(
            f"{count} of {total} nodes hold as many pods as they may, so {pods_words(pods)} cannot go there.",
            "Delete pods that are not needed (`kubectl get pods -A -o wide` shows where they are), or add nodes.",
            names(pods),
        )


@situation("gated", "Pods are held back by a gate", "a pod's condition `PodScheduled` has the reason `SchedulingGated`")
def gated(facts: Facts) -> Iterator[Cause]:
    """A queue or another controller holds pods back before the scheduler sees them."""
    held = [p for p in troubled(facts) if condition(p, "PodScheduled").get("reason") == "SchedulingGated"]
    if held:
        gates = [str(g.get("name")) for g in (held[0].get("spec") or {}).get("schedulingGates") or ()]
        yield Cause(
            f"{capital(pods_words(held))} {of(held, 'waits', 'wait')} behind the gate "
            f"{listed(gates)}, which its controller has to open.",
            "Look at the queue or the controller of that name (for Kueue: `kubectl get workloads`).",
            names(held),
        )


@situation(
    "unschedulable",
    "No node fits, for a reason of its own",
    "a pod is unschedulable and nothing above fits",
    kind="consequence",
)
def unschedulable(facts: Facts) -> Iterator[Cause]:
    """The scheduler's message as it is."""
    for message, pods in unscheduled(facts).items():
        yield Cause(
            f"No node takes {pods_words(pods)}: {sentence(message)}.",
            f"Look at {kubectl(facts, 'describe pod ' + name_of(pods[0]))} and at {kubectl_nodes()}.",
            names(pods),
        )
