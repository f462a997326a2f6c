"""What a fresh cluster is given before the first job: a namespace, the shared volume, and what jobs must know. No I/O.

The volume is claimed twice, in our namespace and in `default`, because job files of the PaddlePaddle tutorial use the
claim `efsvol` without naming a namespace. Both claims are the same directory.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from bireme.aws.layout import GROUP_LABEL, JOB_ACCOUNT, NAMESPACE, Layout

Object = dict[str, Any]
DRIVER = "efs.csi.aws.com"
STORAGE_CLASS = "bireme-efs"
FACTS = "bireme-cluster"
SIZE = "100Gi"
"""Kubernetes wants a size; EFS has none."""


def objects(layout: Layout, outputs: Mapping[str, str]) -> list[Object]:
    """Everything, in the order in which it is applied. The facts' image is added by `bireme image push`."""
    made = [_namespace(), _storage_class()]
    for namespace in (NAMESPACE, "default"):
        made += _volume(layout, outputs, namespace)
    if layout.file.bucket is not None:
        made += _job_account()
    return [*made, facts(layout, outputs)]


def _namespace() -> Object:
    """Ours, where pods must be as harmless as our own are."""
    level = {f"pod-security.kubernetes.io/{mode}": "restricted" for mode in ("enforce", "audit", "warn")}
    return _object("v1", "Namespace", NAMESPACE, labels=level)


def _storage_class() -> Object:
    return _object("storage.k8s.io/v1", "StorageClass", STORAGE_CLASS) | {
        "provisioner": DRIVER,
        "reclaimPolicy": "Retain",
        "volumeBindingMode": "Immediate",
    }


def _volume(layout: Layout, outputs: Mapping[str, str], namespace: str) -> list[Object]:
    claim = layout.file.storage.claim
    name = f"bireme-{layout.name}-{namespace}"
    handle = f"{outputs['FileSystemId']}::{outputs['AccessPointId']}"
    volume = _object("v1", "PersistentVolume", name) | {
        "spec": {
            "capacity": {"storage": SIZE},
            "accessModes": ["ReadWriteMany"],
            "persistentVolumeReclaimPolicy": "Retain",
            "storageClassName": STORAGE_CLASS,
            "mountOptions": ["tls"],
            "claimRef": {"apiVersion": "v1", "kind": "PersistentVolumeClaim", "name": claim, "namespace": namespace},
            "csi": {"driver": DRIVER, "volumeHandle": handle},
        }
    }
    claimed = _object("v1", "PersistentVolumeClaim", claim, namespace) | {
        "spec": {
            "accessModes": ["ReadWriteMany"],
            "storageClassName": STORAGE_CLASS,
            "volumeName": name,
            "resources": {"requests": {"storage": SIZE}},
        }
    }
    return [volume, claimed]


def _job_account() -> list[Object]:
    """The account that Pod Identity lets read the bucket; it may write its jobs' status, as a job's own account may."""
    rbac = "rbac.authorization.k8s.io"
    rules = [{"apiGroups": ["batch"], "resources": ["jobs"], "verbs": ["get", "patch"]}]
    subject = {"kind": "ServiceAccount", "name": JOB_ACCOUNT, "namespace": NAMESPACE}
    return [
        _object("v1", "ServiceAccount", JOB_ACCOUNT, NAMESPACE),
        _object(f"{rbac}/v1", "Role", JOB_ACCOUNT, NAMESPACE) | {"rules": rules},
        _object(f"{rbac}/v1", "RoleBinding", JOB_ACCOUNT, NAMESPACE)
        | {"roleRef": {"apiGroup": rbac, "kind": "Role", "name": JOB_ACCOUNT}, "subjects": [subject]},
    ]


def facts(layout: Layout, outputs: Mapping[str, str], image: str = "") -> Object:
    """What `submit` and `image push` read instead of flags."""
    told = {
        "name": layout.name,
        "region": layout.file.region,
        "repository": outputs["RepositoryUri"],
        "image": image,
        "claim": layout.file.storage.claim,
        "groups": {"pserver": {GROUP_LABEL: "servers"}, "trainer": {GROUP_LABEL: "trainers"}},
        "service_account": JOB_ACCOUNT if layout.file.bucket is not None else None,
    }
    return _object("v1", "ConfigMap", FACTS, NAMESPACE) | {"data": {"cluster.json": json.dumps(told, indent=2)}}


def _object(api: str, kind: str, name: str, namespace: str = "", **metadata: Any) -> Object:
    where = {"namespace": namespace} if namespace else {}
    labels = {"app.kubernetes.io/managed-by": "bireme", **metadata.pop("labels", {})}
    return {"apiVersion": api, "kind": kind, "metadata": {"name": name, **where, "labels": labels, **metadata}}
