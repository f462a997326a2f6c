"""The `kubernetes:` section of job.yaml: how a job is placed on a cluster. Local runs ignore it.

What is common has a key of its own here; everything else that Kubernetes knows can be set through `patch`, which is
merged into the finished objects by kind. Names follow this file's own style; values under `patch` and under a
volume's `source` are in Kubernetes' own format, which the API server checks.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from bireme.spec.mistakes import Mistake, lines_of

LABEL = r"^[a-z0-9]([a-z0-9.-]{0,251}[a-z0-9])?$"
QUANTITY = r"^[0-9]+(\.[0-9]+)?(m|[kMGTPE]i?)?$"
Label = Annotated[
    str, Meta(pattern=LABEL, description="A name on the cluster: lower-case letters, digits, dashes and dots.")
]
Quantity = Annotated[
    Annotated[str, Meta(pattern=QUANTITY)] | int | float,
    Meta(description="An amount as Kubernetes writes it: `500m`, `2`, `512Mi`, `10Gi`."),
]
Amounts = dict[str, Quantity]
Text = Annotated[str | int | float | bool, Meta(description="A plain value.")]
AccessMode = Literal["ReadWriteMany", "ReadWriteOnce", "ReadWriteOncePod"]
KINDS = (
    "ServiceAccount", "Role", "RoleBinding", "Service", "Secret", "ConfigMap", "NetworkPolicy", "PodDisruptionBudget",
    "PersistentVolumeClaim", "Job",
)  # fmt: skip
"""Every kind of object that a job is made of."""
PATCHED = (*KINDS, "Pod")
"""What can be patched: also the short-lived pods that push, fetch and split on the volume."""
OWN_VARIABLES = ("BIREME_", "POD_", "JOB_", "NODE_NAME", "HOME")
"""Prefixes of variables that the pods' own program reads."""
OWN_PATHS = ("/job", "/tmp", "/etc/bireme")


class VolumeFile(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The shared volume that holds the shards, the snapshots, the models and the logs."""

    claim: Label | None = None
    """An existing PersistentVolumeClaim to use. Left out: one named after the job is made."""
    size: Quantity = "10Gi"
    """Size of the claim that is made."""
    storage_class: Label | None = None
    """Storage class of the claim that is made. Left out: the cluster's default."""
    access_modes: tuple[AccessMode, ...] = ("ReadWriteMany",)
    """Access modes of the claim that is made. Pods on several machines need `ReadWriteMany`."""
    data: str | None = None
    """Where the shards are on the volume, from its root. Left out: as in `data.path`, in the directory named after the
    job."""


class ResourcesFile(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The resource requests and limits of each pod."""

    requests: Amounts = {}
    """What a machine must have free for a pod. What is set neither here nor in `limits` is `cpu: 500m` and `memory:
    512Mi`."""
    limits: Amounts = {}
    """What a pod may use at most."""


class TolerationFile(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A taint that pods tolerate."""

    key: str | None = None
    """The taint's key; left out: any."""
    value: str | None = None
    """The taint's value; left out: any."""
    effect: Literal["NoSchedule", "PreferNoSchedule", "NoExecute"] | None = None
    """The taint's effect; left out: any."""
    seconds: Annotated[int, Meta(ge=0)] | None = None
    """With `NoExecute`: how long; left out: for ever."""


class MountFile(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One more volume in every pod."""

    name: Annotated[Label, Meta(examples=["scratch"])]
    """The volume's name."""
    path: Annotated[str, Meta(pattern="^/", examples=["/scratch"])]
    """Where the pods see it: an absolute path."""
    source: Annotated[dict[str, Any], Meta(examples=[{"emptyDir": {}}])]
    """What it is, as Kubernetes writes it under `volumes`."""
    read_only: bool = False
    """Whether pods may only read it."""


class KubernetesFile(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How the job is placed on a cluster; for `bireme submit`."""

    image: str | None = None
    """The image that pods run, as `bireme image build` makes it. `--image` wins over it."""
    image_pull_policy: Literal["Always", "IfNotPresent", "Never"] | None = None
    """When the image is pulled. Left out: Kubernetes' own rule."""
    image_pull_secrets: tuple[Label, ...] = ()
    """Secrets with a registry's credentials, by name."""
    namespace: Label | None = None
    """Namespace of the job. Left out: the context's. `--namespace` wins over it."""
    program: Annotated[str, Meta(pattern="^/")] | None = None
    """Directory in the image, or on the volume (below `/job`), that holds the program. Left out: the directory of
    `program.config` is sent along, up to 900 kB."""
    volume: VolumeFile = VolumeFile()
    """The shared volume."""
    resources: ResourcesFile = ResourcesFile()
    """What each pod asks for."""
    node_selector: dict[str, str] = {}
    """Labels that a machine must have."""
    groups: Annotated[
        dict[
            Literal["pserver", "trainer"],
            Annotated[dict[str, str], Meta(description="Labels that a machine must have, by name.")],
        ],
        Meta(examples=[{"pserver": {"disk": "fast"}, "trainer": {"pool": "spot"}}]),
    ] = {}
    """Node labels for the pods of pservers and of trainers; they then run in pods of their own."""
    tolerations: tuple[TolerationFile, ...] = ()
    """Taints that pods tolerate; each with `key`, `value`, `effect` and `seconds`."""
    lost_node_s: Annotated[int, Meta(ge=0, le=86400)] = 10
    """Seconds after which the pods of a machine that does not answer are replaced."""
    priority_class: Label | None = None
    """PriorityClass of the pods."""
    spread: bool = True
    """Whether pods are spread over machines where there is a choice."""
    service_account: Label | None = None
    """An existing ServiceAccount for the pods; no Role is made then. Left out: one is made that may read and change the
    job's own Jobs, which is how it writes the status."""
    labels: dict[str, str] = {}
    """More labels, on all objects."""
    env: dict[str, Text] = {}
    """More variables in the pods' environment."""
    volumes: tuple[MountFile, ...] = ()
    """More volumes; each with `name`, `path`, `source` and `read_only`."""
    tls: bool = True
    """Whether all connections between pods are encrypted and checked both ways."""
    certificate_days: Annotated[int, Meta(ge=1, le=3650)] = 90
    """How long the pods' certificate is good. Submitting the same file again renews it."""
    network_policy: bool = True
    """Whether a NetworkPolicy lets only the job's own pods reach its lanes."""
    pod_failures: Annotated[int, Meta(ge=0, le=100_000)] = 100
    """How many pods of one node may fail or be lost before the job fails."""
    replace: Literal["at_once", "when_gone"] = "at_once"
    """`at_once`: a lost pod is replaced while it is unknown whether it still runs (the old one is fenced off).
    `when_gone`: only once it is surely gone; a pod failure policy then ends the job at the first hopeless exit code."""
    deadline_s: Annotated[int, Meta(ge=1)] | None = None
    """Seconds after which Kubernetes ends the job."""
    suspend: bool = False
    """Whether the job waits, without pods, until `bireme resume`."""
    queue: Label | None = None
    """Kueue's local queue: the job is submitted suspended, and the queue starts it."""
    patch: dict[str, Annotated[dict[str, Any], Meta(description="Keys and values to merge in.")]] = {}
    """By kind, what is merged into the finished objects, in Kubernetes' own format. `Pod` is for the pods that push,
    fetch and split data on the volume."""

    @property
    def is_apart(self) -> bool:
        """Whether pservers and trainers run in pods of their own, also where there are as many of each."""
        return bool(self.groups)


def find_cluster_clashes(section: Any, line: int) -> Iterator[Mistake]:
    """Find keys of a parsed section that conflict, or would break the pods."""
    if not isinstance(section, Mapping):
        return
    lines = lines_of(section, line)
    volume = section.get("volume")
    if isinstance(volume, Mapping) and volume.get("claim") is not None:
        at = lines_of(volume, lines["volume"])
        for key in ("size", "storage_class", "access_modes"):
            if key in volume:
                text = f"`kubernetes.volume.{key}` is for a claim that is made, and `claim` names one"
                yield Mistake(at[key], text, fix=f"leave `{key}` or `claim` out")
    patch = section.get("patch")
    at = lines_of(patch, lines["patch"]) if isinstance(patch, Mapping) else {}
    for kind in (kind for kind in at if kind not in PATCHED):
        text = f"`kubernetes.patch.{kind}`: a job has no object of that kind"
        yield Mistake(at[kind], text, fix=f"one of: {', '.join(PATCHED)}")
    yield from _taken(section, lines)


def _taken(section: Mapping[str, Any], lines: Mapping[str, int]) -> Iterator[Mistake]:
    env, volumes = section.get("env"), section.get("volumes")
    if isinstance(env, Mapping):
        at = lines_of(env, lines["env"])
        for name in env:
            if str(name).startswith(OWN_VARIABLES):
                yield Mistake(at[name], f"`kubernetes.env.{name}` is set by bireme itself", fix="choose another name")
    for mount in volumes if isinstance(volumes, list) else ():
        path = mount.get("path") if isinstance(mount, Mapping) else None
        if isinstance(path, str) and (path.rstrip("/") or "/") in (*OWN_PATHS, "/"):
            text = f"`kubernetes.volumes`: {path} is used by bireme itself"
            yield Mistake(lines_of(mount, lines["volumes"])["path"], text, fix="choose another path")


_FACTORS = {
    "n": 1e-9, "u": 1e-6, "m": 1e-3, "k": 1e3, "M": 1e6, "G": 1e9, "T": 1e12, "P": 1e15,
    "Ki": 2.0**10, "Mi": 2.0**20, "Gi": 2.0**30, "Ti": 2.0**40, "Pi": 2.0**50, "": 1.0,
}  # fmt: skip


def amount(text: object) -> float:
    """A quantity of Kubernetes as a number: `250m` is 0.25, `2Gi` is 2147483648."""
    written = re.fullmatch(r"([0-9.]+(?:[eE][+-]?\d+)?)([a-zA-Z]*)", str(text or "0").strip())
    if not written or written[2] not in _FACTORS:
        return 0.0
    return float(written[1]) * _FACTORS[written[2]]
