"""Looks at pods that do not start, or that were ended: the messages of kubelet, registry and containers."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

from bireme.core.text import duration
from bireme.diagnose.evidence import Evidence, Json, node_of, plain_line
from bireme.diagnose.table import LOOKS, DiagnosisRule, Match, Values, look, look_in, pods_by
from bireme.diagnose.words import amount_words, sentence
from bireme.kube.api.fields import (
    condition,
    containers_of,
    ended_states,
    is_true,
    meta,
    name_of,
    phase_of,
    spec_of,
    status_of,
    waiting_states,
)
from bireme.spec.kubernetes import amount

_PULLING = ("ErrImagePull", "ImagePullBackOff", "RegistryUnavailable", "ImageInspectError")
_NOT_STARTED = ("StartError", "ContainerCannotRun")
_YOUNG_S = 10.0
"""A node gets a pod's Secrets late: mount failures before this age do not count."""
_SICK_S = 5.0
"""How long a node must be unready before the sentence has a duration: conditions flicker."""
_FAILED_PROBES = 3
"""Liveness probes that fail before the kubelet ends a pod of ours."""
_SIGNALS = {137: "killed", 143: "asked to stop", 139: "a crash of the program itself", 134: "aborted"}


def _states(states: Iterable[Json]) -> str:
    return "\n".join(f"{s.get('reason', '')}: {s.get('message', '')}" for s in states)


def _reported(evidence: Evidence, pod: Json, *reasons: str) -> list[str]:
    return [str(e.get("message", "")) for e in evidence.events_about(name_of(pod)) if e.get("reason") in reasons]


@look_in
def waiting(evidence: Evidence, pod: Json) -> str:
    return _states(waiting_states(pod))


@look_in
def pulling(evidence: Evidence, pod: Json) -> str:
    """All messages about pulling an image; a back-off's reason is only in the pod's events."""
    states = [str(w.get("message", "")) for w in waiting_states(pod) if w.get("reason") in _PULLING]
    return " ".join([*states, *_reported(evidence, pod, "Failed")]) if states else ""


@look
def registry_unreachable(evidence: Evidence, rule: DiagnosisRule) -> Iterator[Match]:
    """Images whose registry a node does not reach, with the network's message of the first pod."""
    for match in LOOKS["pulling"](evidence, rule):
        pattern = r"(dial tcp [^\"]+?|x509: [^\"]+?|TLS handshake[^\"]*?|proxyconnect [^\"]+?)(?:\"|$| [A-Z])"
        cut = re.search(pattern, pulling(evidence, match.pods[0]))
        where = f" on {node_of(match.pods[0])}" if node_of(match.pods[0]) else ""
        yield Match({**match.values, "where": f"{where}{': ' + sentence(cut[1], 160) if cut else ''}"}, match.pods)


@look_in
def messages(evidence: Evidence, pod: Json) -> str:
    return " ".join([pulling(evidence, pod), *evidence.final_output(pod), waiting(evidence, pod)])


@look_in
def not_started(evidence: Evidence, pod: Json) -> str:
    return f"{_states(s for s in ended_states(pod) if s.get('reason') in _NOT_STARTED)}\n{waiting(evidence, pod)}"


@look_in
def cannot_start(evidence: Evidence, pod: Json) -> str:
    """The first error of a container that waits, or of one that ended before it ran."""
    errors = [s for s in waiting_states(pod) if re.search(r"Err|(?<!CrashLoop)BackOff", str(s.get("reason")))]
    ended = [s for s in ended_states(pod) if s.get("reason") in _NOT_STARTED]
    return _states([*errors, *ended][:1])


@look_in
def mounting(evidence: Evidence, pod: Json) -> str:
    """What goes wrong with mounting, for a pod that does not run yet; the most specific message is first."""
    # Once a container waits for something else, all is mounted.
    is_mounting = any(w.get("reason") in ("ContainerCreating", "PodInitializing") for w in waiting_states(pod))
    if not is_mounting or evidence.has_ended or evidence.since(meta(pod).get("creationTimestamp")) <= _YOUNG_S:
        return ""
    failures = _reported(evidence, pod, "FailedMount", "FailedAttachVolume", "FailedMapVolume")
    lines = (" ".join(message.split()) for message in failures)
    return "\n".join(sorted(lines, key=lambda line: "timed out waiting for the condition" in line))


@look_in
def waiting_or_mounting(evidence: Evidence, pod: Json) -> str:
    """What keeps a pod from starting, be it in a container's state or in an event about a volume."""
    return f"{waiting(evidence, pod)} {mounting(evidence, pod)}"


@look_in
def sandbox(evidence: Evidence, pod: Json) -> str:
    failed = _reported(evidence, pod, "FailedCreatePodSandBox")
    return failed[0] if failed and phase_of(pod) == "Pending" and not evidence.has_ended else ""


@look_in
def failed(evidence: Evidence, pod: Json) -> str:
    return _states([status_of(pod)]) if phase_of(pod) == "Failed" and status_of(pod).get("reason") else ""


@look_in
def disruption(evidence: Evidence, pod: Json) -> str:
    target = condition(pod, "DisruptionTarget")
    return _states([target]) if target and status_of(pod).get("reason") != "Evicted" else ""


@look
def node_lost(evidence: Evidence, rule: DiagnosisRule) -> Iterator[Match]:
    nodes = {name_of(n): n for n in evidence.nodes}
    lost: dict[str, list[Json]] = {}
    for pod in evidence.troubled:
        node = node_of(pod)
        is_taken = condition(pod, "DisruptionTarget").get("reason") in ("DeletionByTaintManager", "DeletionByPodGC")
        is_sick = node in nodes and not is_true(nodes[node], "Ready")
        if node and phase_of(pod) != "Succeeded" and (is_taken or is_sick or (nodes and node not in nodes)):
            lost.setdefault(node, []).append(pod)
    for node, pods in lost.items():
        ready = condition(nodes.get(node, {}), "Ready")
        is_ready = ready.get("status") == "True"
        long = 0.0 if is_ready else evidence.since(ready.get("lastTransitionTime"))
        state = f"has not answered for {duration(long)}" if long > _SICK_S else "was lost"
        state = state if node in nodes or not nodes else "is no longer in the cluster"
        message = "" if is_ready else sentence(str(ready.get("message", "")))
        yield Match({"state": f"{state} ({message})" if message else state}, tuple(pods))


@look
def out_of_memory(evidence: Evidence, rule: DiagnosisRule) -> Iterator[Match]:
    def key(pod: Json) -> Values | None:
        name = next((s["name"] for s in ended_states(pod) if s.get("reason") == "OOMKilled"), None)
        mine = [c for c in spec_of(pod).get("containers") or () if c.get("name") == name]
        limits = [((c.get("resources") or {}).get("limits") or {}).get("memory", "") for c in mine]
        limit = amount(next(iter(limits), ""))
        if name is None:
            return None
        if not limit:
            return {"most": "what its node had", "key": "`kubernetes.resources.requests.memory`"}
        more = amount_words("memory", 2 * limit).replace(" ", "").removesuffix("B")
        key = f"`kubernetes.resources.limits.memory` (to {more}, say)"
        return {"most": f"its limit of {amount_words('memory', limit)}", "key": key}

    return pods_by(evidence, key)


@look
def probe_failed(evidence: Evidence, rule: DiagnosisRule) -> Iterator[Match]:
    def key(pod: Json) -> Values | None:
        killing = _reported(evidence, pod, "Killing")
        unhealthy = [e for e in evidence.events_about(name_of(pod)) if e.get("reason") == "Unhealthy"]
        failed = {str(e.get("message")): int(e.get("count") or 1) for e in reversed(unhealthy)}
        failed = {message: n for message, n in failed.items() if re.match(rule.pattern, message)}
        # For a pod with restartPolicy Never the kubelet's event has no reason, only that it stops the container.
        is_late = any(m.startswith("Liveness") and count >= _FAILED_PROBES for m, count in failed.items())
        is_named = any(re.search(r"failed (liveness|startup) probe", message) for message in killing)
        is_killed = killing and failed and (is_named or is_late) and not evidence.error
        return {"probe": sentence(list(failed)[-1])} if is_killed else None

    return pods_by(evidence, key)


@look
def crash_loop(evidence: Evidence, rule: DiagnosisRule) -> Iterator[Match]:
    def code_of(pod: Json) -> Values | None:
        code = next((int(s.get("exitCode") or 0) for s in ended_states(pod) if s.get("exitCode")), 0)
        loops = any(w.get("reason") == "CrashLoopBackOff" for w in waiting_states(pod))
        meaning = f" ({_SIGNALS[code]})" if code in _SIGNALS else ""
        return {"code": f"{code}{meaning}"} if loops or (phase_of(pod) == "Failed" and code) else None

    for match in pods_by(evidence, code_of):
        count = max(sum(int(c.get("restartCount") or 0) for c in containers_of(p)) for p in match.pods)
        logs = "\n".join(evidence.logs.get(name_of(p), "") for p in match.pods)
        last = list(filter(None, map(plain_line, logs.splitlines())))
        values = {
            "often": f" {count + 1} times" if count else "",
            "last": f", its last line: {sentence(last[-1], 160)}" if last else "",
            "previous": " --previous" if count else "",
        }
        yield Match({**match.values, **values}, match.pods)
