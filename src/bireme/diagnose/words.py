"""Sentences: the names that every row of the table may use in its templates, and amounts and lists as text."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from bireme.core.text import shortened
from bireme.diagnose.evidence import Evidence, Json, image_of, node_of
from bireme.kube.api.fields import claims_of, labels_in, name_of, spec_of, status_of
from bireme.kube.api.naming import COMPONENT

AGAIN = "submit it again with `--replace`"
"""After a change in job.yaml: a Job cannot be changed, so it is replaced."""
SHOWN = 3
"""How many names one sentence lists."""


def amount_words(resource: str, number: float) -> str:
    if resource.endswith("cpu"):
        return f"{number:g} CPU" + ("" if number == 1 else "s")
    if resource.endswith(("memory", "storage")):
        for unit, factor in (("GiB", 2.0**30), ("MiB", 2.0**20), ("KiB", 2.0**10)):
            if number >= factor:
                return f"{number / factor:.4g} {unit}"
        return f"{number:g} bytes"
    return f"{number:g} {resource}"


def listed(names: Iterable[str]) -> str:
    """`a`, `a and b`, `a, b, c and 4 more`."""
    items = list(names)
    more = [f"{len(items) - SHOWN} more"] if len(items) > SHOWN + 1 else []
    shown = items[:SHOWN] + more if more else items
    return shown[0] if len(shown) == 1 else f"{', '.join(shown[:-1])} and {shown[-1]}" if shown else ""


def pods_words(pods: Sequence[Json]) -> str:
    return f"{of(pods, 'pod', 'pods')} {listed(map(name_of, pods))}"


def sentence(text: str, limit: int = 300) -> str:
    """A foreign message on one line, cut where it is too long, without a full stop."""
    return shortened(" ".join(text.split()), limit).rstrip(".: ")


def capital(text: str) -> str:
    return text[:1].upper() + text[1:]


def of(things: Sequence[object], one: str, many: str) -> str:
    return one if len(things) == 1 else many


class _Text(str):
    """A value for `{fix:else}`: `else` replaces an empty value, and follows one that is only a question."""

    __slots__ = ()

    def __format__(self, spec: str) -> str:
        return f"{self!s} {spec}".strip() if not self or self.endswith("?") else str(self)


class _Count(int):
    """A number for `{n:was|were}`."""

    def __format__(self, spec: str) -> str:
        one, bar, many = spec.partition("|")
        return (one if self == 1 else many) if bar else str(int(self))


def vocabulary(evidence: Evidence, pods: Sequence[Json], values: Mapping[str, str]) -> dict[str, object]:
    """What the sentences about these pods may use; where there are none, the job's first pod is used."""
    nodes = list(dict.fromkeys(filter(None, map(node_of, pods))))
    where = f" --namespace {evidence.namespace}" if evidence.where == "kubernetes" and evidence.namespace else ""
    commands = {
        verb: f"`{evidence.command} {verb} {evidence.job}{where}`" for verb in ("delete", "logs", "resume", "status")
    }
    texts = {
        **commands,
        "bireme": evidence.command,
        "job": evidence.job,
        "namespace": evidence.namespace,
        "in_namespace": where,
        "kubectl": f"kubectl -n {evidence.namespace}" if evidence.namespace else "kubectl",
        "output": str(evidence.record.get("output", "")),
        "again": AGAIN if evidence.where == "kubernetes" else "start it again",
        "pods": pods_words(pods),
        "Pods": capital(pods_words(pods)),
        "nodes": listed(nodes),
        "Nodes": f"{of(nodes, 'Node', 'Nodes')} {listed(nodes)}" if nodes else "The node",
        **_about_pod(evidence, (*pods, *evidence.pods, {})[0]),
        **values,
    }
    return {"n": _Count(len(pods)), **{name: _Text(text) for name, text in texts.items()}}


def _about_pod(evidence: Evidence, pod: Json) -> dict[str, str]:
    spec, claims = spec_of(pod), [c for p in (pod, *evidence.pods) for c in claims_of(p)]
    secrets = [str(s.get("name")) for s in spec.get("imagePullSecrets") or ()]
    ports = {str(p.get("hostPort", "")) for c in spec.get("containers") or () for p in c.get("ports") or ()} - {""}
    selector = [f"{key}={value}" for key, value in (spec.get("nodeSelector") or {}).items()]
    has_groups = labels_in(pod).get(COMPONENT) in ("pserver", "trainer")
    node = next((n for n in evidence.nodes if name_of(n) == node_of(pod)), {})
    info, labels = status_of(node).get("nodeInfo") or {}, labels_in(node)
    processor = info.get("architecture") or labels.get("kubernetes.io/arch") or ""
    return {
        "pod": name_of(pod),
        "node": node_of(pod),
        "processor": str(processor),
        "which_processor": f"{processor}, which " if processor else "",
        "image": image_of(pod),
        "pull_secret": f"with the pull secret {listed(secrets)}" if secrets else "without a pull secret",
        "claim": next(iter(claims), ""),
        "claims": listed(claims_of(pod)),
        "volume": f"The volume of claim {claims[0]}" if claims else "",
        "ports": listed(sorted(ports)),
        "selector": ", ".join(selector),
        "label": next(iter(selector), "KEY=VALUE"),
        "or_groups": " or `kubernetes.groups`" if has_groups else "",
        "user": str((spec.get("securityContext") or {}).get("runAsUser", 1000)),
    }
