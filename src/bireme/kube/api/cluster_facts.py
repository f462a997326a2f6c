"""Facts about a cluster: a ConfigMap that `bireme cluster up` leaves in the jobs' namespace.

job.yaml wins over it; what job.yaml leaves out comes from here: the image, the volume claim, the service account and
the nodes for pservers and trainers. Clusters that were made otherwise have no such ConfigMap.
"""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from bireme.core.errors import ClusterError
from bireme.kube.api.client import CONFIG_MAP, Cluster, ForbiddenError
from bireme.spec.load import ClusterJob

NAME = "bireme-cluster"
KEY = "cluster.json"


class ClusterFacts(msgspec.Struct, frozen=True, kw_only=True):
    """What jobs on a cluster may use. Keys of a newer bireme are ignored."""

    name: str
    region: str = ""
    repository: str = ""
    """Where images are pushed to: registry and path, without a tag."""
    image: str = ""
    """The image of jobs that name none; '' until one is pushed."""
    claim: str | None = None
    """The volume claim that jobs share, each in a directory of its own."""
    groups: dict[Literal["pserver", "trainer"], dict[str, str]] = {}
    """Labels of the nodes for each role."""
    service_account: str | None = None


def read_facts(cluster: Cluster) -> ClusterFacts | None:
    """The facts in a connection's namespace; None where there are none, or the user may not read ConfigMaps."""
    try:
        there = cluster.find(CONFIG_MAP, NAME)
    except ForbiddenError:
        return None
    return None if there is None else facts_in(there)


def facts_in(config_map: dict[str, Any]) -> ClusterFacts:
    try:
        return msgspec.json.decode((config_map.get("data") or {})[KEY], type=ClusterFacts)
    except (KeyError, msgspec.MsgspecError) as e:
        raise ClusterError(
            f"the ConfigMap {NAME} cannot be read: {f'it has no {KEY}' if isinstance(e, KeyError) else e}",
            why="it says which image, volume and nodes jobs use on this cluster",
            fix="`bireme cluster up` writes it again",
        ) from e


def with_facts(job: ClusterJob, facts: ClusterFacts | None) -> ClusterJob:
    if facts is None:
        return job
    settings = job.settings
    more: dict[str, Any] = {}
    if settings.image is None and facts.image:
        more["image"] = facts.image
    if facts.claim is not None and not job.has_claim:
        more["volume"] = msgspec.structs.replace(settings.volume, claim=facts.claim)
    if settings.service_account is None and facts.service_account is not None:
        more["service_account"] = facts.service_account
    if not (settings.node_selector or settings.groups):
        more["groups"] = facts.groups
    return job._replace(file=msgspec.structs.replace(job.file, kubernetes=msgspec.structs.replace(settings, **more)))


def record_image(cluster: Cluster, image: str) -> None:
    """Make an image the one of jobs that name none; all else in the ConfigMap stays as it is."""
    there = cluster.get(CONFIG_MAP, NAME)
    facts_in(there)
    changed = msgspec.json.decode(there["data"][KEY], type=dict[str, Any]) | {"image": image}
    text = msgspec.json.format(msgspec.json.encode(changed), indent=2).decode()
    cluster.patch(CONFIG_MAP, NAME, {"data": {KEY: text}})
