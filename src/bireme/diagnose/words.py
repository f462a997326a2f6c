"""Names, amounts and commands for sentences: small pure functions that the situations share."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from bireme.core.text import shortened
from bireme.diagnose.facts import Facts, Json, meta, name_of
from bireme.spec.kubernetes import amount

AGAIN = "submit it again with `--replace`"
"""After a change in job.yaml: a Job cannot be changed, so it is replaced."""
SHOWN = 3
"""How many names stand in one sentence."""


def amount_words(resource: str, number: float) -> str:
    """A number of CPUs, bytes or things for people."""
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
    """`pod a` or `pods a and b`."""
    return f"{of(pods, 'pod', 'pods')} {listed(name_of(p) for p in pods)}"


def names(pods: Iterable[Json]) -> tuple[str, ...]:
    """The pods' names, for `Cause.about`."""
    return tuple(name_of(p) for p in pods)


def requests(pod: Json) -> dict[str, float]:
    """What a pod asks for, all containers together."""
    total: dict[str, float] = {}
    for container in (pod.get("spec") or {}).get("containers") or ():
        for resource, text in ((container.get("resources") or {}).get("requests") or {}).items():
            total[resource] = total.get(resource, 0.0) + amount(text)
    return total


def kubectl(facts: Facts, rest: str) -> str:
    """A kubectl command in the job's namespace, marked as one."""
    where = f" -n {facts.namespace}" if facts.namespace else ""
    return f"`kubectl{where} {rest}`"


def bireme(facts: Facts, verb: str, rest: str = "") -> str:
    """A bireme command about the job, marked as one, in the namespace where the job is."""
    where = f" --namespace {facts.namespace}" if facts.where == "kubernetes" and facts.namespace else ""
    more = f" {rest}" if rest else ""
    return f"`{facts.command} {verb} {facts.job}{where}{more}`"


def sentence(text: str, limit: int = 300) -> str:
    """A foreign message on one line, cut where it is too long, without a full stop."""
    line = " ".join(text.split())
    return shortened(line, limit).rstrip(".: ")


def nodes_words(pods: Sequence[Json]) -> str:
    """`Node n1` or `Nodes n1 and n2`: where pods are, as the beginning of a sentence."""
    nodes = list(dict.fromkeys(filter(None, map(node_of, pods))))
    return f"{of(nodes, 'Node', 'Nodes')} {listed(nodes)}" if nodes else "The node"


def image_of(pod: Json) -> str:
    """The image of a pod's first container."""
    containers = (pod.get("spec") or {}).get("containers") or [{}]
    return str(containers[0].get("image", ""))


def node_of(pod: Json) -> str:
    """The node that a pod is on, empty while it is on none."""
    return str((pod.get("spec") or {}).get("nodeName") or "")


def architecture_of(facts: Facts, node: str) -> str:
    """The architecture of a node's processor, empty where the node is not listed."""
    for thing in facts.nodes:
        if name_of(thing) == node:
            labels = meta(thing).get("labels") or {}
            info = (thing.get("status") or {}).get("nodeInfo") or {}
            return str(info.get("architecture") or labels.get("kubernetes.io/arch") or "")
    return ""


def capital(text: str) -> str:
    """The beginning of a sentence."""
    return text[:1].upper() + text[1:]


def of(things: Sequence[object], one: str, many: str) -> str:
    """The word that fits how many there are."""
    return one if len(things) == 1 else many
