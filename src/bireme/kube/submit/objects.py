"""All objects that a job is made of, as plain values: what `submit` sends and `submit --dry-run` prints. No I/O.

The order is the order of creation: what pods need precedes the Jobs that make pods. The first Job owns all others but
the volume claim, so deleting it deletes them; `submit` fills in the owner's uid.
"""

from __future__ import annotations

import base64
from collections.abc import Iterable, Iterator
from io import StringIO
from typing import Any

import msgspec

from bireme import __version__
from bireme.kube.api import naming
from bireme.kube.api.naming import Object
from bireme.kube.submit.indexed_jobs import indexed_job, lanes_of
from bireme.kube.submit.patching import merge
from bireme.kube.submit.submission import Submission, pods_of, program_key, settings_of
from bireme.spec.kubernetes import KubernetesFile

_WRITE = ("get", "list", "create", "patch", "delete")
PERMISSIONS: dict[tuple[str, str], tuple[str, ...]] = {
    ("batch", "jobs"): _WRITE,
    ("", "pods"): ("get", "list", "create", "delete"),
    ("", "pods/log"): ("get",),
    ("", "pods/exec"): ("get", "create"),
    ("", "persistentvolumeclaims"): _WRITE,
    ("", "configmaps"): _WRITE,
    ("", "secrets"): ("get", "create", "patch", "delete"),
    ("", "services"): _WRITE,
    ("", "serviceaccounts"): _WRITE,
    ("", "events"): ("list",),
    ("rbac.authorization.k8s.io", "roles"): _WRITE,
    ("rbac.authorization.k8s.io", "rolebindings"): _WRITE,
    ("networking.k8s.io", "networkpolicies"): _WRITE,
    ("policy", "poddisruptionbudgets"): _WRITE,
    ("kueue.x-k8s.io", "workloads"): ("list", "patch"),
}
"""What the command line needs in a namespace: verbs by API group and resource. A test tries all on a real cluster.

`submit` makes a Role for the job's own pods, with get and patch on their own Jobs. RBAC lets users grant only what they
have themselves, so both verbs are needed even to submit.
"""


def build(submission: Submission) -> list[Object]:
    return [merge(made, submission.settings.patch.get(made["kind"], {})) for made in _objects(submission)]


def _objects(submission: Submission) -> Iterator[Object]:
    settings = submission.settings
    if settings.volume.claim is None:
        yield claim(submission.job.name, submission.namespace, settings)
    if settings.service_account is None:
        yield from account(submission)
    yield config_map(submission)
    if settings.tls:
        yield secret(submission)
    yield service(submission)
    if settings.network_policy:
        yield network_policy(submission)
    yield disruption_budget(submission)
    for role in submission.roles:
        head = head_of(submission, "batch/v1", "Job", naming.job_name(submission.job.name, role))
        yield indexed_job(submission, role, head)


def head_of(submission: Submission, api: str, kind: str, name: str = "") -> Object:
    """Kind, name (the job's, unless another is given) and labels of an object."""
    job = submission.job.name
    return _head(job, submission.namespace, submission.settings, api, kind, name or job)


def _head(job: str, namespace: str, settings: KubernetesFile, api: str, kind: str, name: str) -> Object:
    labels = settings.labels | naming.labels_of(job) | {naming.VERSION: __version__}
    return {"apiVersion": api, "kind": kind, "metadata": {"name": name, "namespace": namespace, "labels": labels}}


def claim(name: str, namespace: str, settings: KubernetesFile) -> Object:
    """The claim on a shared volume; it outlives the job."""
    volume = settings.volume
    spec: Object = {
        "accessModes": list(volume.access_modes),
        "resources": {"requests": {"storage": str(volume.size)}},
    }
    if volume.storage_class is not None:
        spec["storageClassName"] = volume.storage_class
    return {**_head(name, namespace, settings, "v1", "PersistentVolumeClaim", name), "spec": spec}


def account(submission: Submission) -> Iterator[Object]:
    """The account of the pods: it may read and patch the job's own Jobs, to write the status and to end them."""
    name, rbac = submission.job.name, "rbac.authorization.k8s.io"
    own = [naming.job_name(name, role) for role in submission.roles]
    yield head_of(submission, "v1", "ServiceAccount") | {"automountServiceAccountToken": False}
    rules = [{"apiGroups": ["batch"], "resources": ["jobs"], "resourceNames": own, "verbs": ["get", "patch"]}]
    yield head_of(submission, f"{rbac}/v1", "Role") | {"rules": rules}
    yield head_of(submission, f"{rbac}/v1", "RoleBinding") | {
        "roleRef": {"apiGroup": rbac, "kind": "Role", "name": name},
        "subjects": [{"kind": "ServiceAccount", "name": name, "namespace": submission.namespace}],
    }


def config_map(submission: Submission) -> Object:
    """The job and its program, for the pods; and its settings, for a later submit or resume."""
    job = msgspec.json.format(msgspec.json.encode(submission.job), indent=2).decode()
    text = {
        "job.json": job + "\n",
        "settings.json": msgspec.json.encode(settings_of(submission), order="deterministic").decode(),
        "program.json": msgspec.json.encode(sorted(submission.program)).decode(),
    }
    binary = {}
    for path, content in sorted(submission.program.items()):
        try:
            text[program_key(path)] = content.decode("utf-8")
        except UnicodeDecodeError:
            binary[program_key(path)] = base64.b64encode(content).decode()
    made = head_of(submission, "v1", "ConfigMap") | {"data": text}
    return made | ({"binaryData": binary} if binary else {})


def secret(submission: Submission) -> Object:
    data = {name: base64.b64encode(content).decode() for name, content in sorted(submission.certificates.items())}
    return head_of(submission, "v1", "Secret", f"{submission.job.name}-tls") | {"type": "Opaque", "data": data}


def service(submission: Submission) -> Object:
    """Stable names for the pods, published before they are ready: pods need each other to become ready."""
    ports = [{"name": name, "port": port, "protocol": "TCP"} for name, port in lanes_of(submission.job).items()]
    return head_of(submission, "v1", "Service") | {
        "spec": {
            "clusterIP": "None",
            "publishNotReadyAddresses": True,
            "selector": naming.selector_of(submission.job.name),
            "ports": ports,
        }
    }


def network_policy(submission: Submission) -> Object:
    """Only the job's own pods may reach its lanes; all other ports are closed."""
    lanes = list(lanes_of(submission.job).values())
    pods = {"podSelector": {"matchLabels": naming.selector_of(submission.job.name)}}
    ports = [{"protocol": "TCP", "port": lanes[0], "endPort": lanes[-1]}]
    spec = pods | {"policyTypes": ["Ingress"], "ingress": [{"from": [pods], "ports": ports}]}
    return head_of(submission, "networking.k8s.io/v1", "NetworkPolicy") | {"spec": spec}


def disruption_budget(submission: Submission) -> Object:
    """A drain evicts at most one pod at a time.

    A Job has no scale, so only `minAvailable` with a whole number works: `maxUnavailable` would forbid every drain.
    """
    pods = sum(pods_of(submission.job, role) for role in submission.roles)
    spec = {
        "minAvailable": pods - 1,
        "unhealthyPodEvictionPolicy": "AlwaysAllow",
        "selector": {"matchLabels": naming.selector_of(submission.job.name)},
    }
    return head_of(submission, "policy/v1", "PodDisruptionBudget") | {"spec": spec}


def user_role(namespace: str) -> Object:
    """A Role with the needed permissions and no others; bind it to users who submit jobs."""
    rules = [
        {"apiGroups": [group], "resources": [resource], "verbs": list(verbs)}
        for (group, resource), verbs in PERMISSIONS.items()
    ]
    return {
        "apiVersion": "rbac.authorization.k8s.io/v1",
        "kind": "Role",
        "metadata": {"name": "bireme-user", "namespace": namespace},
        "rules": rules,
    }


def as_yaml(objects: Iterable[Object]) -> str:
    from ruamel.yaml import YAML

    yaml = YAML(pure=True)
    yaml.default_flow_style = False
    yaml.width = 4096
    yaml.indent(mapping=2, sequence=4, offset=2)
    out = StringIO()
    for made in objects:
        out.write("---\n")
        yaml.dump(_blocks(made), out)
    return out.getvalue()


def _blocks(value: Any) -> Any:
    from ruamel.yaml.scalarstring import LiteralScalarString

    if isinstance(value, dict):
        return {key: _blocks(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [_blocks(inner) for inner in value]
    return LiteralScalarString(value) if isinstance(value, str) and "\n" in value else value
