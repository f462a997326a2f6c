"""The Kubernetes objects of a new cluster: a namespace, the shared volume, and the cluster's facts. No I/O.

The volume is claimed twice, in our namespace and in `default`, because job files of the PaddlePaddle tutorial use the
claim `efsvol` without naming a namespace. Both claims are the same directory.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from bireme.aws.layout import GROUP_LABEL, JOB_ACCOUNT, NAMESPACE, ClusterLayout

Object = dict[str, Any]
DRIVER = "efs.csi.aws.com"
STORAGE_CLASS = "bireme-efs"
FACTS = "bireme-cluster"
SIZE = "100Gi"
"""Kubernetes requires a size; EFS has none."""


def objects(layout: ClusterLayout, outputs: Mapping[str, str]) -> list[Object]:
    """All objects in the order in which they are applied. `bireme image push` adds the facts' image."""
    made = [_namespace(), _storage_class()]
    for namespace in (NAMESPACE, "default"):
        made += _volume(layout, outputs, namespace)
    if layout.file.bucket is not None:
        made += _job_account()
    return [*made, facts(layout, outputs)]


def _namespace() -> Object:
    """The namespace of jobs, with the restricted pod security level, which bireme's own pods meet."""
    level = {f"pod-security.kubernetes.io/{mode}": "restricted" for mode in ("enforce", "audit", "warn")}
    return _object("v1", "Namespace", NAMESPACE, labels=level)


def _storage_class() -> Object:
    return _object("storage.k8s.io/v1", "StorageClass", STORAGE_CLASS) | {
        "provisioner": DRIVER,
        "reclaimPolicy": "Retain",
        "volumeBindingMode": "Immediate",
    }


def _volume(layout: ClusterLayout, outputs: Mapping[str, str], namespace: str) -> list[Object]:
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
    """The account of jobs that read the bucket (Pod Identity); like any job account it may write the job's status."""
    rbac = "rbac.authorization.k8s.io"
    rules = [{"apiGroups": ["batch"], "resources": ["jobs"], "verbs": ["get", "patch"]}]
    subject = {"kind": "ServiceAccount", "name": JOB_ACCOUNT, "namespace": NAMESPACE}
    return [
        _object("v1", "ServiceAccount", JOB_ACCOUNT, NAMESPACE),
        _object(f"{rbac}/v1", "Role", JOB_ACCOUNT, NAMESPACE) | {"rules": rules},
        _object(f"{rbac}/v1", "RoleBinding", JOB_ACCOUNT, NAMESPACE)
        | {"roleRef": {"apiGroup": rbac, "kind": "Role", "name": JOB_ACCOUNT}, "subjects": [subject]},
    ]


def facts(layout: ClusterLayout, outputs: Mapping[str, str], image: str = "") -> Object:
    """The ConfigMap that `submit` and `image push` read instead of flags."""
    data = {
        "name": layout.name,
        "region": layout.file.region,
        "repository": outputs["RepositoryUri"],
        "image": image,
        "claim": layout.file.storage.claim,
        "groups": {"pserver": {GROUP_LABEL: "servers"}, "trainer": {GROUP_LABEL: "trainers"}},
        "service_account": JOB_ACCOUNT if layout.file.bucket is not None else None,
    }
    return _object("v1", "ConfigMap", FACTS, NAMESPACE) | {"data": {"cluster.json": json.dumps(data, indent=2)}}


def _object(api: str, kind: str, name: str, namespace: str = "", **metadata: Any) -> Object:
    where = {"namespace": namespace} if namespace else {}
    labels = {"app.kubernetes.io/managed-by": "bireme", **metadata.pop("labels", {})}
    return {"apiVersion": api, "kind": kind, "metadata": {"name": name, **where, "labels": labels, **metadata}}
