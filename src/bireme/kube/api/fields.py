"""Fields of Kubernetes objects as the API server sends them; what is absent or null reads as empty. No I/O."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import datetime

from bireme.kube.api.naming import INDEX, Object


def _reader(*path: str) -> Callable[[Object], Object]:
    def read(thing: Object) -> Object:
        for key in path:
            thing = thing.get(key) or {}
        return thing

    return read


meta, labels_in, annotations_in = _reader("metadata"), _reader("metadata", "labels"), _reader("metadata", "annotations")
spec_of, status_of = _reader("spec"), _reader("status")
_terminated, _waiting = _reader("state", "terminated"), _reader("state", "waiting")


def name_of(thing: Object) -> str:
    return str(meta(thing).get("name", ""))


def condition(thing: Object, kind: str) -> Object:
    """The condition of this kind, whether it holds or not; empty where an object has none."""
    return next((each for each in status_of(thing).get("conditions") or () if each.get("type") == kind), {})


def is_true(thing: Object, kind: str) -> bool:
    return condition(thing, kind).get("status") == "True"


def seconds(stamp: object) -> float:
    """A time of the API server in seconds since 1970; 0 where there is none."""
    return datetime.fromisoformat(stamp.replace("Z", "+00:00")).timestamp() if stamp and isinstance(stamp, str) else 0.0


# Pods


def phase_of(pod: Object) -> str:
    """Pending, Running, Succeeded, Failed or Unknown."""
    return str(status_of(pod).get("phase", "Unknown"))


def has_ended(pod: Object) -> bool:
    """Whether none of a pod's processes runs any more."""
    return phase_of(pod) in ("Succeeded", "Failed")


def rank_of(pod: Object) -> int:
    """The completion index; -1 for a pod that belongs to no Indexed Job."""
    return int(annotations_in(pod).get(INDEX, -1))


def claims_of(pod: Object) -> list[str]:
    """Names of the claims that a pod, or a Job's template, mounts."""
    volumes = spec_of(pod).get("volumes") or ()
    return [str(v["persistentVolumeClaim"]["claimName"]) for v in volumes if v.get("persistentVolumeClaim")]


def containers_of(pod: Object) -> Iterator[Object]:
    """Container statuses, init containers first."""
    for key in ("initContainerStatuses", "containerStatuses"):
        yield from status_of(pod).get(key) or ()


def waiting_states(pod: Object) -> Iterator[Object]:
    return filter(None, map(_waiting, containers_of(pod)))


def final_states(pod: Object) -> list[Object]:
    """The terminated states that containers have now, init containers left out; empty ones for those that run."""
    return list(map(_terminated, status_of(pod).get("containerStatuses") or ()))


def ended_states(pod: Object) -> Iterator[Object]:
    """The terminated states of containers, the current one first; with the container's name."""
    for container in containers_of(pod):
        for when in ("state", "lastState"):
            if ended := (container.get(when) or {}).get("terminated"):
                yield {**ended, "name": container.get("name")}
