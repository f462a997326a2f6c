"""All objects that a job is made of, as plain values: what `submit` sends and `submit --dry-run` prints. No I/O.

The order is the order of creation: what pods need stands before the Jobs that make pods. The first Job owns all
others but the volume claim, so deleting it deletes them; whoever sends them fills the owner's uid in.
"""

from __future__ import annotations

import base64
from collections.abc import Iterator

import msgspec

from bireme import __version__
from bireme.kube.api import naming
from bireme.kube.submit.indexed_jobs import indexed_job
from bireme.kube.submit.patching import merge
from bireme.kube.submit.submission import Object, Submission, pods_of, program_key, settings_of
from bireme.spec.kubernetes import KubernetesFile


def build(told: Submission) -> list[Object]:
    """Every object of a job, in the order of creation."""
    return [merge(made, told.settings.patch.get(made["kind"], {})) for made in _objects(told)]


def _objects(told: Submission) -> Iterator[Object]:
    settings = told.settings
    if settings.volume.claim is None:
        yield claim(told.job.name, told.namespace, settings)
    if settings.service_account is None:
        yield from account(told)
    yield config_map(told)
    if settings.tls:
        yield secret(told)
    yield service(told)
    if settings.network_policy:
        yield network_policy(told)
    yield disruption_budget(told)
    for role in told.roles:
        yield indexed_job(told, role, head_of(told, "batch/v1", "Job", naming.job_name(told.job.name, role)))


def head_of(told: Submission, api: str, kind: str, name: str) -> Object:
    """The beginning of an object: what it is, what it is called, and whose it is."""
    return _head(told.job.name, told.namespace, told.settings, (api, kind, name))


def _head(job: str, namespace: str, settings: KubernetesFile, what: tuple[str, str, str]) -> Object:
    api, kind, name = what
    labels = settings.labels | naming.labels_of(job) | {naming.VERSION: __version__}
    return {
        "apiVersion": api,
        "kind": kind,
        "metadata": {"name": name, "namespace": namespace, "labels": labels},
    }


def claim(name: str, namespace: str, settings: KubernetesFile) -> Object:
    """The claim on a shared volume; it outlives the job."""
    volume = settings.volume
    spec: Object = {
        "accessModes": list(volume.access_modes),
        "resources": {"requests": {"storage": str(volume.size)}},
    }
    if volume.storage_class is not None:
        spec["storageClassName"] = volume.storage_class
    return {**_head(name, namespace, settings, ("v1", "PersistentVolumeClaim", name)), "spec": spec}


def account(told: Submission) -> Iterator[Object]:
    """Who the pods are to the API server: they may write the status on their own Jobs, and end these."""
    name, rbac = told.job.name, "rbac.authorization.k8s.io"
    own = [naming.job_name(name, role) for role in told.roles]
    yield head_of(told, "v1", "ServiceAccount", name) | {"automountServiceAccountToken": False}
    rules = [{"apiGroups": ["batch"], "resources": ["jobs"], "resourceNames": own, "verbs": ["get", "patch"]}]
    yield head_of(told, f"{rbac}/v1", "Role", name) | {"rules": rules}
    yield head_of(told, f"{rbac}/v1", "RoleBinding", name) | {
        "roleRef": {"apiGroup": rbac, "kind": "Role", "name": name},
        "subjects": [{"kind": "ServiceAccount", "name": name, "namespace": told.namespace}],
    }


def config_map(told: Submission) -> Object:
    """The job and its program, for the pods; and what it was submitted with, for whoever submits it again."""
    job = msgspec.json.format(msgspec.json.encode(told.job), indent=2).decode()
    text = {
        "job.json": job + "\n",
        "settings.json": msgspec.json.encode(settings_of(told), order="deterministic").decode(),
        "program.json": msgspec.json.encode(sorted(told.program)).decode(),
    }
    binary = {}
    for path, content in sorted(told.program.items()):
        try:
            text[program_key(path)] = content.decode("utf-8")
        except UnicodeDecodeError:
            binary[program_key(path)] = base64.b64encode(content).decode()
    made = head_of(told, "v1", "ConfigMap", told.job.name) | {"data": text}
    return made | ({"binaryData": binary} if binary else {})


def secret(told: Submission) -> Object:
    """The certificate that every pod of the job shows, and the authority that it checks others against."""
    data = {name: base64.b64encode(content).decode() for name, content in sorted(told.certificates.items())}
    return head_of(told, "v1", "Secret", f"{told.job.name}-tls") | {"type": "Opaque", "data": data}


def service(told: Submission) -> Object:
    """Stable names for the pods, known before they are ready: they find each other by them in order to become ready."""
    first, lanes = told.job.first_port, told.job.ports_num + told.job.ports_num_for_sparse
    ports = [{"name": f"lane-{k}", "port": first + k, "protocol": "TCP"} for k in range(lanes)]
    return head_of(told, "v1", "Service", told.job.name) | {
        "spec": {
            "clusterIP": "None",
            "publishNotReadyAddresses": True,
            "selector": naming.selector_of(told.job.name),
            "ports": ports,
        }
    }


def network_policy(told: Submission) -> Object:
    """Only the job's own pods may reach its lanes; nothing else of it can be reached."""
    first, lanes = told.job.first_port, told.job.ports_num + told.job.ports_num_for_sparse
    pods = {"podSelector": {"matchLabels": naming.selector_of(told.job.name)}}
    ports = [{"protocol": "TCP", "port": first, "endPort": first + lanes - 1}]
    spec = pods | {"policyTypes": ["Ingress"], "ingress": [{"from": [pods], "ports": ports}]}
    return head_of(told, "networking.k8s.io/v1", "NetworkPolicy", told.job.name) | {"spec": spec}


def disruption_budget(told: Submission) -> Object:
    """At most one pod at a time is drained away.

    A Job has no scale, so only `minAvailable` with a whole number works: `maxUnavailable` would forbid every drain.
    """
    pods = sum(pods_of(told.job, role) for role in told.roles)
    spec = {
        "minAvailable": pods - 1,
        "unhealthyPodEvictionPolicy": "AlwaysAllow",
        "selector": {"matchLabels": naming.selector_of(told.job.name)},
    }
    return head_of(told, "policy/v1", "PodDisruptionBudget", told.job.name) | {"spec": spec}
