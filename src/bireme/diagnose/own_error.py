"""Looks at the job's own error, from its status or the end of a pod's log, and at processes that miss each other.

An error of bireme has a kind (the names of core/errors), what happened, why and a fix; a log loses the kind, and the
exit code restores it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from bireme.core import errors
from bireme.core.text import duration
from bireme.diagnose.evidence import Evidence, Json, is_ready, node_of, plain_line
from bireme.diagnose.table import DiagnosisRule, Match, look
from bireme.diagnose.words import capital, listed, sentence
from bireme.kube.api.fields import ended_states, name_of, phase_of

_KINDS = {
    cls.exit_code: name
    for name, cls in vars(errors).items()
    if isinstance(cls, type) and issubclass(cls, errors.BiremeError) and cls.__base__ is errors.BiremeError
}
_MESSAGES = {
    "NumericError": "NaN or infinity",
    "StorageError": r"(?i)disk is full|no space left|disk quota exceeded|cannot write",
    "DataError": r"^.*shard \d+.*missing",
}
"""Kinds by message, where both the kind and the exit code are missing."""


def _own_error(evidence: Evidence) -> Json:
    """The job's error with its kind; empty while it has reported none."""
    error = evidence.error
    if not error:
        return {}
    codes = [int(s.get("exitCode") or 0) for p in evidence.troubled for s in ended_states(p)]
    by_message = (kind for kind, pattern in _MESSAGES.items() if re.search(pattern, str(error["what"])))
    kind = error.get("kind") or next((_KINDS[c] for c in codes if c in _KINDS), "") or next(by_message, "")
    return {"what": "", "why": "", "fix": "", **error, "kind": str(kind)}


def _about_end(evidence: Evidence) -> tuple[str, ...]:
    """The job itself, and the pods that ended with it."""
    return (evidence.job, *(name_of(p) for p in evidence.troubled if any(ended_states(p))))


@look
def own_error(evidence: Evidence, rule: DiagnosisRule) -> Iterator[Match]:
    error = _own_error(evidence)
    if not error or (rule.errors and error["kind"] not in rule.errors):
        return
    text = f"{error['what']} {error['why']}"
    if re.search(rule.pattern, text, re.IGNORECASE) and not re.search(rule.but, text, re.IGNORECASE):
        why = f", and {sentence(error['why'])}" if error["why"] else ""
        fix = capital(sentence(str(error["fix"])))
        stop = "" if not fix or fix.endswith("?") else "."
        yield Match({"error": f"{sentence(error['what'])}{why}", "fix": f"{fix}{stop}"}, about=_about_end(evidence))


@look
def wrong_data(evidence: Evidence, rule: DiagnosisRule) -> Iterator[Match]:
    """The job's error about data; its own advice may have to be followed on the volume."""
    other = f"`{evidence.command} data check` shows what is wrong with a shard"
    if evidence.where == "kubernetes":
        other = f"send the shards with `{evidence.command} data push JOB.yaml`"
    for match in own_error(evidence, rule):
        fix = match.values["fix"].rstrip(".")
        remedy = f"{fix}; or {other}" if fix and "data push" not in fix else fix or capital(other)
        yield Match({**match.values, "remedy": remedy}, about=match.about)


@look
def certificate_expired(evidence: Evidence, rule: DiagnosisRule) -> Iterator[Match]:
    """The certificate is past its end, or the job's error says so."""
    until = float(evidence.certificate.get("not_after") or 0.0)
    is_past = bool(until) and evidence.now > until
    if is_past or any(own_error(evidence, rule)):
        ago = f" {duration(evidence.now - until)} ago" if is_past else ""
        yield Match({"ago": ago}, about=_about_end(evidence))


@look
def version_skew(evidence: Evidence, rule: DiagnosisRule) -> Iterator[Match]:
    """Another bireme in the image than in the terminal. Harmless while the job runs well."""
    there, has_failed = evidence.status.version, evidence.status.phase == "failed"
    if evidence.version and there and there != evidence.version and (has_failed or _own_error(evidence)):
        yield Match({"there": there, "here": evidence.version})


@look
def network(evidence: Evidence, rule: DiagnosisRule) -> Iterator[Match]:
    text = _about_peers(evidence)
    line = next((sentence(plain_line(line)) for line in text.splitlines() if re.search(rule.pattern, line)), "")
    if line and not re.search(rule.but, text):
        yield Match({"line": line}, about=_about_end(evidence))


def _about_peers(evidence: Evidence) -> str:
    """The error, what the coordinator waits for, and otherwise the end of what pods printed."""
    error, status = _own_error(evidence), evidence.status
    texts = []
    if error and error["kind"] in ("NetworkError", "ProcessError", ""):
        texts.append(f"{error['what']} {error['why']}")
    if status.phase in ("gathering", "setting-up"):
        texts += status.waits_for
    return "\n".join(texts or [t for p in evidence.troubled if not is_ready(p) for t in evidence.final_output(p)])


@look
def blocked(evidence: Evidence, rule: DiagnosisRule) -> Iterator[Match]:
    """Names resolve and connections fail: a network policy, a firewall, or a cut between nodes."""
    running = [p for p in evidence.pods if phase_of(p) == "Running"]
    for match in network(evidence, rule):
        if len(running) > 1 and "has not announced itself" not in match.values["line"]:
            nodes = sorted({node_of(p) for p in running if node_of(p)})
            between = f" between {listed(nodes)}" if len(nodes) > 1 else ""
            yield Match({**match.values, "between": between}, about=match.about)


@look
def slow(evidence: Evidence, rule: DiagnosisRule) -> Iterator[Match]:
    """Rounds wait for a process of the role that is the pattern."""
    status, role = evidence.status, rule.pattern
    late = [each for each in (*status.waits_for, *status.stragglers) if each.startswith(role)]
    if status.phase != "training" or not late or evidence.is_over:
        return
    pod = _pod_of(evidence, role, late[0])
    node, kubectl = node_of(pod), f"kubectl -n {evidence.namespace}" if evidence.namespace else "kubectl"
    has_pserver = role == "pserver" or (pod and "-trainer-" not in name_of(pod))
    values = {
        "process": late[0] + (f", pod {name_of(pod)} on {node}" if pod else ""),
        "speed": f" ({status.samples_per_s:,.0f} samples/s in all)" if status.samples_per_s else "",
        "machine": "node" if pod else "machine",
        "commands": f" (`{kubectl} top pod {name_of(pod)}`, `kubectl describe node {node}`)" if pod else "",
        "move": "deleting the pod moves it, and" if pod else "it can be killed:",
        "cost": "the job continues from its last snapshot" if has_pserver else "no work is lost",
    }
    yield Match(values, (pod,) if pod else ())


def _pod_of(evidence: Evidence, role: str, process: str) -> Json:
    """The pod that runs a process such as `trainer 1`: the one with that index, of the Job with that role."""
    rank = re.match(rf"{role} (\d+)", process)
    if not rank:
        return {}
    live = [p for p in evidence.pods if phase_of(p) == "Running"]
    both = [p for p in live if re.search(rf"-{rank[1]}-[a-z0-9]{{5}}$", name_of(p))]
    apart = [p for p in both if f"-{role}-" in name_of(p)]
    return next(iter(apart or both), {})
