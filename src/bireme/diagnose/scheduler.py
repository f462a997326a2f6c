"""Looks at pods that no node takes, and at their claims. The scheduler's message counts nodes for each reason:

    0/3 nodes are available: 1 Insufficient cpu, 2 node(s) had untolerated taint {dedicated: infra}. preemption: …

A pod may be kept off different nodes by different reasons: each is reported, and solving any of them may be enough.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from bireme.diagnose.evidence import Evidence, Json
from bireme.diagnose.table import DiagnosisRule, Match, groups, look, look_in, pods_by
from bireme.diagnose.words import amount_words, listed, of, sentence
from bireme.kube.api.fields import claims_of, condition, meta, name_of, spec_of, status_of
from bireme.spec.kubernetes import amount

_REASON = re.compile(r"(\d+) ((?:(?!, \d+ (?:node\(s\)|Insufficient|Too many|Preemption|persistentvolume)).)+)")
_OWN_TAINTS = "node.kubernetes.io/"
_SICK = {
    "not-ready": "not ready",
    "unreachable": "unreachable",
    "unschedulable": "cordoned",
    "disk-pressure": "short of disk",
    "memory-pressure": "short of memory",
    "pid-pressure": "short of processes",
    "network-unavailable": "without a network",
}


@look_in
def unscheduled(evidence: Evidence, pod: Json) -> str:
    scheduled = condition(pod, "PodScheduled")
    is_waiting = scheduled.get("status") == "False" and scheduled.get("reason") == "Unschedulable"
    if evidence.is_suspended or not is_waiting or meta(pod).get("deletionTimestamp"):
        return ""
    return str(scheduled.get("message", ""))


def reasons(message: str) -> dict[str, int]:
    """The scheduler's reasons, each with its number of nodes; the text after the full stop is about preemption."""
    _, _, body = message.partition(": ")
    return {text.strip(" ."): int(count) for count, text in _REASON.findall(body.split(". ")[0])}


@look
def scheduler(evidence: Evidence, rule: DiagnosisRule) -> Iterator[Match]:
    """Reasons with the pattern, each with `count` of `total` nodes."""

    for each in pods_by(evidence, lambda pod: {"message": text} if (text := unscheduled(evidence, pod)) else None):
        total = re.search(r"0/(\d+) nodes", each.values["message"])
        for reason, count in reasons(each.values["message"]).items():
            if match := re.search(rule.pattern, reason):
                numbers = {"count": str(count), "total": total[1] if total else str(count)}
                yield Match({"reason": reason, **numbers, **groups(match)}, each.pods)


@look
def insufficient(evidence: Evidence, rule: DiagnosisRule) -> Iterator[Match]:
    for match in scheduler(evidence, rule):
        resource = match.values["resource"]
        has = {name_of(n): amount((status_of(n).get("allocatable") or {}).get(resource)) for n in evidence.nodes}
        largest = max(has, key=lambda n: has[n], default="")
        requests = [
            (c.get("resources") or {}).get("requests") or {} for c in spec_of(match.pods[0]).get("containers") or ()
        ]
        asked = sum(amount(each[resource]) for each in requests if resource in each)
        is_never = bool(largest) and has[largest] < asked
        most = f"; the largest, {largest}, has {amount_words(resource, has[largest])} in all" if largest else ""
        advice = {
            "lower": "Lower" if is_never else "Wait until others leave, add a node, or lower",
            "or_add": ", or add a larger node" if is_never else "",
        }
        yield Match({**match.values, **advice, "asked": amount_words(resource, asked), "most": most}, match.pods)


@look
def foreign_taint(evidence: Evidence, rule: DiagnosisRule) -> Iterator[Match]:
    """Nodes that are reserved for other pods: one match for each taint."""
    for match in scheduler(evidence, rule):
        for (key, value, effect), nodes in _untolerated(evidence, match).items():
            if not key.startswith(_OWN_TAINTS):
                taint = {
                    "key": key,
                    "effect": effect,
                    "taint": f"{key}={value}" if value else key,
                    "value": f", value: '{value}'" if value else "",
                    "count": str(len(nodes)),
                    "first": nodes[0],
                }
                yield Match({**match.values, **taint}, match.pods)


@look
def own_taint(evidence: Evidence, rule: DiagnosisRule) -> Iterator[Match]:
    """Nodes with taints that Kubernetes itself has set: one match for each state of nodes."""
    for match in scheduler(evidence, rule):
        sick: dict[str, dict[str, None]] = {}
        for (key, _value, _effect), nodes in _untolerated(evidence, match).items():
            if key.startswith(_OWN_TAINTS):
                sick.setdefault(key.removeprefix(_OWN_TAINTS), {}).update(dict.fromkeys(nodes))
        for kind, which in sick.items():
            values = {"state": _SICK.get(kind, kind), "which": listed(which), "count": str(len(which))}
            yield Match({**match.values, **values, "them": of(list(which), "it", "them")}, match.pods)


def _untolerated(evidence: Evidence, match: Match) -> dict[tuple[str, str, str], list[str]]:
    """Taints that keep pods off, each with its nodes: newer schedulers count them without their names."""
    taints: dict[tuple[str, str, str], list[str]] = {}
    for node in evidence.nodes:
        for mark in spec_of(node).get("taints") or ():
            taint = (str(mark.get("key")), str(mark.get("value") or ""), str(mark.get("effect")))
            if taint[2] != "PreferNoSchedule" and not _is_tolerated(match.pods[0], taint):
                taints.setdefault(taint, []).append(name_of(node))
    named = re.search(r"\{([^:}]*):? ?([^}]*)\}", match.values["reason"])
    return taints or ({(named[1], named[2], "NoSchedule"): ["NODE"]} if named else {})


def _is_tolerated(pod: Json, taint: tuple[str, str, str]) -> bool:
    key, value, effect = taint
    return any(
        rule.get("key") in (None, "", key)
        and (rule.get("operator") == "Exists" or str(rule.get("value") or "") == value)
        and rule.get("effect") in (None, "", effect)
        for rule in spec_of(pod).get("tolerations") or ()
    )


@look
def cordoned(evidence: Evidence, rule: DiagnosisRule) -> Iterator[Match]:
    closed = [name_of(n) for n in evidence.nodes if spec_of(n).get("unschedulable")]
    names = {"which": f" ({listed(closed)})" if closed else "", "first": closed[0] if closed else "NODE"}
    for match in scheduler(evidence, rule):
        yield Match({**match.values, **names}, match.pods)


@look
def gated(evidence: Evidence, rule: DiagnosisRule) -> Iterator[Match]:
    def gates(pod: Json) -> dict[str, str] | None:
        is_held = condition(pod, "PodScheduled").get("reason") == "SchedulingGated"
        names = (str(g.get("name")) for g in spec_of(pod).get("schedulingGates") or ())
        return {"gates": listed(names)} if is_held else None

    return pods_by(evidence, gates)


@look
def claim_missing(evidence: Evidence, rule: DiagnosisRule) -> Iterator[Match]:
    for claim, thing, pods in _waiting_claims(evidence):
        if thing is None:
            yield Match({"claim": claim}, pods)


@look
def claim_unbound(evidence: Evidence, rule: DiagnosisRule) -> Iterator[Match]:
    for claim, thing, pods in _waiting_claims(evidence):
        if thing is None or status_of(thing).get("phase") == "Bound":
            continue
        spec, messages = spec_of(thing), [str(e.get("message", "")) for e in evidence.events_about(claim)]
        why = next((f": {sentence(m)}" for m in messages if "waiting for first consumer" not in m), "")
        size = ((spec.get("resources") or {}).get("requests") or {}).get("storage", "")
        storage = f"class {spec['storageClassName']}" if spec.get("storageClassName") else "no storage class"
        asked = (str(size), listed(spec.get("accessModes") or ()), storage)
        state = str(status_of(thing).get("phase", "Pending")).lower()
        if re.search(rule.pattern, why) and not re.search(rule.but, why):
            yield Match({"claim": claim, "asked": ", ".join(filter(None, asked)), "state": state, "why": why}, pods)


def _waiting_claims(evidence: Evidence) -> Iterator[tuple[str, Json | None, tuple[Json, ...]]]:
    """Claims of unscheduled pods: None for one that does not exist, an empty object where claims may not be listed."""
    pattern = r"persistentvolumeclaim|PersistentVolumeClaims|persistent volumes to bind"
    pods = [p for p in evidence.troubled if re.search(pattern, unscheduled(evidence, p))]
    can_see = "persistentvolumeclaims" not in {d["resource"] for d in evidence.denied}
    things = {name_of(c): c for c in evidence.claims}
    for claim in dict.fromkeys(c for p in pods for c in claims_of(p) or ["CLAIM"]):
        mine = tuple(p for p in pods if claim in (claims_of(p) or ["CLAIM"]))
        yield claim, things.get(claim, None if can_see else {}), mine
