"""Volumes that are not there, not bound, out of reach or cannot be mounted."""

from __future__ import annotations

import re
from collections.abc import Iterator

from bireme.diagnose.facts import (
    Cause,
    Facts,
    Json,
    events_about,
    grouped,
    has_ended,
    meta,
    name_of,
    since,
    situation,
    waiting_states,
)
from bireme.diagnose.scheduling import kept_off, unscheduled
from bireme.diagnose.words import (
    AGAIN,
    bireme,
    kubectl,
    listed,
    names,
    nodes_words,
    of,
    pods_words,
    sentence,
)

YOUNG_S = 10.0
"""A node gets a pod's Secrets late: mount failures before this age do not count."""


@situation(
    "volume-elsewhere",
    "The volume is in another zone or on another node",
    "the scheduler says `volume node affinity conflict`, `PersistentVolume's node affinity` or `volume zone`",
)
def volume_elsewhere(facts: Facts) -> Iterator[Cause]:
    """A volume that can be reached only from nodes that have no room."""
    said = ("volume node affinity conflict", "PersistentVolume's node affinity", "no available volume zone")
    for pods, _, count, total in kept_off(facts, lambda r: any(s in r for s in said)):
        claims = claims_of(pods[0])
        yield Cause(
            f"The volume of claim {listed(claims)} cannot be reached from {count} of {total} nodes, so "
            f"{pods_words(pods)} cannot go there.",
            "Make room on the nodes near the volume, or use a claim whose storage class reaches every node "
            f"(`ReadWriteMany`) as `kubernetes.volume.claim` and {AGAIN} "
            f"({kubectl(facts, f'describe pvc {claims[0]}')}).",
            names(pods),
        )


def claims_of(pod: Json) -> list[str]:
    """Names of the claims that a pod mounts."""
    volumes = (pod.get("spec") or {}).get("volumes") or ()
    return [str(v["persistentVolumeClaim"]["claimName"]) for v in volumes if v.get("persistentVolumeClaim")] or [
        "CLAIM"
    ]


@situation(
    "claim-unbound",
    "The volume claim is not bound",
    "a PersistentVolumeClaim of the job is Pending, Lost or missing while its pods wait",
)
def claim_unbound(facts: Facts) -> Iterator[Cause]:
    """There is no volume yet."""
    said = ("persistentvolumeclaim", "PersistentVolumeClaims", "persistent volumes to bind")
    pods = [p for message, some in unscheduled(facts).items() if any(s in message for s in said) for p in some]
    for claim in dict.fromkeys(c for p in pods for c in claims_of(p)):
        mine = [p for p in pods if claim in claims_of(p)]
        thing = next((c for c in facts.claims if name_of(c) == claim), None)
        if thing is None and "persistentvolumeclaims" not in {d["resource"] for d in facts.denied}:
            yield Cause(
                f"The volume claim {claim}, which {pods_words(mine)} {of(mine, 'needs', 'need')}, does not exist.",
                f"Create it, or let bireme do it by leaving `kubernetes.volume.claim` out of job.yaml, and {AGAIN}.",
                names(mine),
            )
        elif (thing or {}).get("status", {}).get("phase") != "Bound":
            yield _unbound(facts, claim, thing or {}, mine)


def _unbound(facts: Facts, claim: str, thing: Json, pods: list[Json]) -> Cause:
    spec, messages = thing.get("spec") or {}, [str(e.get("message", "")) for e in events_about(facts, claim)]
    why = next((f": {sentence(m)}" for m in messages if "waiting for first consumer" not in m), "")
    storage = spec.get("storageClassName")
    size = ((spec.get("resources") or {}).get("requests") or {}).get("storage", "")
    modes = listed(spec.get("accessModes") or ())
    asked = ", ".join(filter(None, (str(size), modes, f"class {storage}" if storage else "no storage class")))
    state = str((thing.get("status") or {}).get("phase", "Pending")).lower()
    if "not found" in why and "storageclass" in why:
        advice = f"Set `kubernetes.volume.storage_class` to one that `kubectl get storageclass` lists, {_anew(facts)}."
    elif "no storage class is set" in why:
        advice = (
            f"Name a storage class as `kubernetes.volume.storage_class`, or add a volume that fits, {_anew(facts)}."
        )
    else:
        look = kubectl(facts, f"describe pvc {claim}")
        advice = f"Look at {look} and add a volume that fits, or ask for another size or class."
    return Cause(
        f"The volume claim {claim} ({asked}) is {state}{why}; {pods_words(pods)} cannot start before it is bound.",
        advice,
        names(pods),
    )


def _anew(facts: Facts) -> str:
    return f"then {bireme(facts, 'delete', '--volume')} and submit it again"


def mount_failures(facts: Facts, pod: Json) -> list[str]:
    """What went wrong with mounting, for a pod that does not run yet."""
    # Once a container waits for something else, all is mounted.
    is_mounting = any(w.get("reason") in ("ContainerCreating", "PodInitializing") for w in waiting_states(pod))
    if not is_mounting or has_ended(facts):
        return []
    failures = ("FailedMount", "FailedAttachVolume", "FailedMapVolume")
    said = [str(e.get("message", "")) for e in events_about(facts, name_of(pod)) if e.get("reason") in failures]
    return said if since(facts, meta(pod).get("creationTimestamp")) > YOUNG_S else []


@situation(
    "mount-failed", "A volume cannot be mounted", "a `FailedMount` or `FailedAttachVolume` event of a pod that waits"
)
def mount_failed(facts: Facts) -> Iterator[Cause]:
    """The node cannot mount a volume."""

    def group_key(pod: Json) -> str | None:
        said = [m for m in mount_failures(facts, pod) if not re.search(r"(secret|configmap) \"[^\"]+\" not found", m)]
        said.sort(key=lambda m: "timed out waiting for the condition" in m)  # the other messages are more specific
        return sentence(said[0]) if said else None

    for said, pods in grouped(facts, group_key):
        yield Cause(
            f"{nodes_words(pods)} cannot mount a volume of {pods_words(pods)}: {said}.",
            f"Check the volume and the node's driver for it ({kubectl(facts, 'describe pod ' + name_of(pods[0]))}); "
            f"the pod starts by itself once it can be mounted.",
            names(pods),
        )
