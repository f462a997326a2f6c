"""The references of job.yaml and cluster.yaml, read off their structs; every example is checked against its struct."""

from __future__ import annotations

import inspect
import re
import types
from collections.abc import Iterator
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

import msgspec

from bireme.aws.init import render
from bireme.demo.prepare import JOB_YAML
from bireme.spec import cluster
from bireme.spec.cluster_load import find_cluster_mistakes
from bireme.spec.job import DataFiles, JobFile, LanePorts, LocalFile, ProgramFile
from bireme.spec.kube_aws import KUBE_AWS
from bireme.spec.kubernetes import (
    LABEL,
    QUANTITY,
    KubernetesFile,
    MountFile,
    ResourcesFile,
    TolerationFile,
    VolumeFile,
)
from bireme.spec.load import OVERRIDES
from bireme.spec.mistakes import find_mistakes, meanings, read_yaml
from bireme.spec.model import Logs, Restarts, SnapshotsFile, Wire

SECTIONS: tuple[tuple[str, type[msgspec.Struct]], ...] = (
    ("", JobFile),
    ("program", ProgramFile),
    ("data", DataFiles),
    ("lanes", LanePorts),
    ("local", LocalFile),
    ("wire", Wire),
    ("snapshots", SnapshotsFile),
    ("restarts", Restarts),
    ("logs", Logs),
    ("kubernetes", KubernetesFile),
    ("kubernetes.volume", VolumeFile),
    ("kubernetes.resources", ResourcesFile),
    ("kubernetes.tolerations", TolerationFile),
    ("kubernetes.volumes", MountFile),
)
CLUSTER_SECTIONS: tuple[tuple[str, type[msgspec.Struct]], ...] = (
    ("", cluster.ClusterFile),
    ("workers", cluster.WorkersFile),
    ("workers.servers", cluster.GroupFile),
    ("workers.trainers", cluster.TrainerGroupFile),
    ("storage", cluster.StorageFile),
    ("network", cluster.NetworkFile),
    ("access", cluster.AccessFile),
)
PATTERNS = {
    LABEL: ": a name on the cluster",
    QUANTITY: " such as `500m` or `2Gi`",
    "^/": ": an absolute path",
    cluster.NAME: ": a name",
    cluster.REGION: ": a region",
    cluster.ZONE: ": a zone",
    cluster.VERSION: ": a version",
    cluster.INSTANCE_TYPE: ": an instance type",
    cluster.CIDR: ": a range of addresses",
    cluster.LABEL_VALUE: ": a label's value",
    cluster.TAG_VALUE: ": a tag's value",
    cluster.KMS_KEY: ": an ARN",
    cluster.PRINCIPAL: ": an ARN",
    cluster.KEY_PAIR: ": a name",
    cluster.CLAIM: ": a name on the cluster",
    cluster.DNS_NAME: ": a DNS name",
    cluster.BUCKET: ": a bucket",
    cluster.FILE_SYSTEM: ": `fs-…`",
    cluster.VPC: ": `vpc-…`",
    cluster.SUBNET: ": `subnet-…`",
}
"""What a text must look like, in words."""
EXAMPLES: dict[str, Any] = {
    "program": {"config": "quick_start/trainer_config.lr.py"},
    "data": {"path": "reviews"},
    "nodes": 3,
    "pservers": 2,
    "trainers": 3,
    "lanes": {"port": 7164, "ports_num": 2},
    "passes": 10,
    "keep": "last 3",
    "stop_when": "no better for 3 passes",
    "mode": "sync",
    "staleness": 2,
    "local": {"every": 16, "method": "elastic"},
    "wire": {"gradients": "bfloat16"},
    "seed": 7,
    "snapshots": {"every_s": 60.0},
    "restarts": {"limit": 3},
    "logs": {"max_mb": 10.0},
    "output": "output",
    "log_period": 50,
    "connect_timeout_s": 120.0,
    "program.args": {"is_small": 1},
    "data.path": "reviews",
    "data.shards": 3,
    "lanes.port": 7164,
    "lanes.ports_num": 2,
    "lanes.ports_num_for_sparse": 2,
    "local.every": 16,
    "local.method": "elastic",
    "local.rate": 0.5,
    "wire.gradients": "bfloat16",
    "wire.top_k": 0.05,
    "snapshots.every_s": 60.0,
    "snapshots.every_rounds": 1000,
    "snapshots.keep": 3,
    "restarts.limit": 3,
    "restarts.within_s": 600.0,
    "logs.max_mb": 10.0,
    "logs.keep": 5,
    "kubernetes": {"image": "registry.local/bireme:1"},
    "kubernetes.image": "registry.local/bireme:1",
    "kubernetes.image_pull_policy": "IfNotPresent",
    "kubernetes.image_pull_secrets": ["registry-key"],
    "kubernetes.namespace": "training",
    "kubernetes.program": "/opt/program",
    "kubernetes.volume": {"size": "100Gi"},
    "kubernetes.resources": {"requests": {"cpu": "2"}},
    "kubernetes.node_selector": {"disk": "fast"},
    "kubernetes.tolerations": [{"key": "spot", "effect": "NoSchedule"}],
    "kubernetes.lost_node_s": 30,
    "kubernetes.priority_class": "batch-low",
    "kubernetes.spread": False,
    "kubernetes.service_account": "trainers",
    "kubernetes.labels": {"team": "search"},
    "kubernetes.env": {"HF_HOME": "/scratch"},
    "kubernetes.volumes": [{"name": "scratch", "path": "/scratch", "source": {"emptyDir": {}}}],
    "kubernetes.tls": False,
    "kubernetes.certificate_days": 365,
    "kubernetes.network_policy": False,
    "kubernetes.pod_failures": 10,
    "kubernetes.replace": "when_gone",
    "kubernetes.deadline_s": 86400,
    "kubernetes.suspend": True,
    "kubernetes.queue": "night",
    "kubernetes.patch": {"Job": {"spec": {"ttlSecondsAfterFinished": 3600}}},
    "kubernetes.volume.claim": "shared-data",
    "kubernetes.volume.size": "100Gi",
    "kubernetes.volume.storage_class": "nfs",
    "kubernetes.volume.access_modes": ["ReadWriteOnce"],
    "kubernetes.volume.data": "sets/reviews",
    "kubernetes.resources.requests": {"cpu": "2", "memory": "4Gi"},
    "kubernetes.resources.limits": {"memory": "8Gi"},
    "kubernetes.tolerations.key": "spot",
    "kubernetes.tolerations.value": "yes",
    "kubernetes.tolerations.effect": "NoSchedule",
    "kubernetes.tolerations.seconds": 60,
    "kubernetes.volumes.read_only": True,
}


def job_page(notice: str) -> str:
    """The reference of job.yaml."""
    demo = JOB_YAML.format(shards=3)
    if find_mistakes(JobFile, read_yaml(demo, "job.yaml")):
        raise AssertionError("the demo's job.yaml does not pass its own check: this is a bug")
    overrides = ", ".join(f"`--{name.replace('_', '-')}`" for name in OVERRIDES)
    variables = ", ".join(f"`BIREME_{name.upper()}`" for name in OVERRIDES)
    parts = [
        notice,
        "# job.yaml\n",
        "A job file says what is trained, on what, by how many processes. Unknown keys are refused. All mistakes are "
        "reported together, each with its line. Paths are relative to the file.\n",
        "The demo's job, for example:\n",
        f"```yaml\n{demo}```\n",
        f"`bireme train` takes {overrides} in place of the values in the file, and so do the variables {variables}. "
        "A flag wins over a variable, a variable over the file, the file over the default. "
        "A path given by flag or variable is relative to where you are.\n",
        "`bireme train JOB.yaml --dry-run` prints what a job comes to, and starts nothing.\n",
    ]
    return "\n".join([*parts, *(_struct_section(path, struct) for path, struct in SECTIONS)])


def cluster_page(notice: str) -> str:
    """The reference of cluster.yaml."""
    file = cluster.ClusterFile(
        name="paddle-cluster", region="us-west-2", access=cluster.AccessFile(api=("203.0.113.7/32",))
    )
    example = render(file)
    if find_cluster_mistakes(read_yaml(example, "cluster.yaml")):
        raise AssertionError("the file that `cluster init` writes does not pass its own check: this is a bug")
    parts = [
        notice,
        "# cluster.yaml\n",
        "A cluster file describes a Kubernetes cluster on AWS (EKS), for `bireme cluster`. Only `name`, `region` and "
        "`access.api` are required. Unknown keys are refused. All mistakes are found before the first call to AWS, and "
        "printed together, each with its line.\n",
        "`bireme cluster init paddle-cluster --region us-west-2 --api-cidr 203.0.113.7/32` writes:\n",
        f"```yaml\n{example}```\n",
    ]
    return "\n".join([*parts, *(_struct_section(path, struct) for path, struct in CLUSTER_SECTIONS), _kube_aws()])


def _kube_aws() -> str:
    rows = [
        "## Keys of kube-aws",
        "",
        "The keys of kube-aws 0.9.1's cluster.yaml, as in the PaddlePaddle tutorial, are read where they still have a "
        "meaning; `region` is the same. A file with both an old key and its new one is refused. Old files lack "
        "`access`, which must be added. Workers become the trainers' machines, which are spot machines unless "
        "`workers.trainers.capacity` says otherwise; pservers get a machine of their own.",
        "",
        "| keys of kube-aws | here |",
        "|---|---|",
    ]
    for old in dict.fromkeys(KUBE_AWS.values()):
        names = ", ".join(f"`{name}`" for name, other in KUBE_AWS.items() if other == old)
        rows.append(f"| {names} | " + (f"`{old.key}`" if old.key else f"refused: {old.why}; {old.fix}") + " |")
    return "\n".join(rows) + "\n"


def _struct_section(path: str, struct: type[msgspec.Struct]) -> str:
    title = f"## {path}" if path else "## The file"
    rows = ["| key | value | default | meaning | example |", "|---|---|---|---|---|"]
    hints = get_type_hints(struct, include_extras=True)
    for field in msgspec.structs.fields(struct):
        full = f"{path}.{field.name}" if path else field.name
        cells = [
            f"`{field.name}`",
            _value_words(hints[field.name], full),
            _default_words(field),
            _meaning(struct, field.name),
            _example(full, field.name, hints[field.name]),
        ]
        rows.append("| " + " | ".join(cell.replace("|", r"\|") for cell in cells) + " |")
    return f"{title}\n\n{inspect.getdoc(struct)}\n\n" + "\n".join(rows) + "\n"


def _metas(hint: Any) -> list[msgspec.Meta]:
    return [m for m in getattr(hint, "__metadata__", ()) if isinstance(m, msgspec.Meta)]


def _value_words(hint: Any, path: str) -> str:
    """What may stand there, in words."""
    metas = _metas(hint)
    inner = get_args(hint)[0] if metas else hint
    if get_origin(inner) in (Union, types.UnionType):
        return " or ".join(_value_words(choice, path) for choice in get_args(inner) if choice is not type(None))
    if get_origin(inner) is Literal:
        return " or ".join(f"`{choice}`" for choice in get_args(inner))
    if get_origin(inner) is dict:
        return f"names, each with {_value_words(get_args(inner)[1], path)}"
    if get_origin(inner) is tuple:
        return f"list of {_value_words(get_args(inner)[0], path)}"
    if isinstance(inner, type) and issubclass(inner, msgspec.Struct):
        return f"[keys](#{path.replace('.', '')})"
    if inner is Any:
        return "anything"
    word = {str: "text", int: "whole number", float: "number", bool: "true or false"}[inner]
    return word + "".join(_bounds(metas))


def _bounds(metas: list[msgspec.Meta]) -> Iterator[str]:
    for meta in metas:
        if meta.pattern:
            yield PATTERNS.get(meta.pattern, f" like `{meta.pattern}`")
        if meta.ge is not None:
            yield f" from {meta.ge:,}"
        if meta.gt is not None:
            yield f" above {meta.gt:,}"
        if meta.le is not None:
            yield f" to {meta.le:,}"


def _default_words(field: msgspec.structs.FieldInfo) -> str:
    if field.required:
        return "**required**"
    if field.default is not msgspec.NODEFAULT and not isinstance(field.default, msgspec.Struct):
        return "–" if field.default in (None, ()) else f"`{_flow(msgspec.to_builtins(field.default))}`"
    return "–"


def _meaning(struct: type[msgspec.Struct], key: str) -> str:
    meaning = meanings(struct)[key]
    if not meaning:
        raise AssertionError(f"{key} of {struct.__name__} has no text for the reference: this is a bug")
    return meaning


def _example(path: str, key: str, hint: Any) -> str:
    given = [meta.examples[0] for meta in _metas(hint) if meta.examples]
    value = given[0] if given else EXAMPLES[path]
    msgspec.convert(value, hint)  # an example that the product would refuse never gets onto the page
    return f"`{key}: {_flow(value)}`"


def _flow(value: Any) -> str:
    """A value as YAML writes it in one line."""
    if isinstance(value, dict):
        return "{" + ", ".join(f"{k}: {_flow(v)}" for k, v in value.items()) + "}"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(map(_flow, value)) + "]"
    if isinstance(value, str) and re.fullmatch(r"[0-9]+\.[0-9]+", value):
        return f'"{value}"'  # a version, which YAML would take for a number
    return str(value).lower() if isinstance(value, bool) else str(value)
