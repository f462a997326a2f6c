"""What a fresh test cluster holds: names for DNS, and a class of shared volumes. Pure."""

from __future__ import annotations

from . import network

CLASS = "shared"
PROVISIONER = "bireme.dev/shared"


def all_objects() -> list[dict[str, object]]:
    """Every object, in the order in which they are applied."""
    return [*_dns_rights(), _dns_service(), _dns_endpoints(), _storage_class()]


def _dns_rights() -> list[dict[str, object]]:
    watch = ["list", "watch"]
    rules = [
        {"apiGroups": [""], "resources": ["endpoints", "services", "pods", "namespaces"], "verbs": watch},
        {"apiGroups": ["discovery.k8s.io"], "resources": ["endpointslices"], "verbs": watch},
    ]
    group = "rbac.authorization.k8s.io"
    name = "system:coredns"
    metadata = {"name": name}
    role: dict[str, object] = {
        "apiVersion": f"{group}/v1",
        "kind": "ClusterRole",
        "metadata": metadata,
        "rules": rules,
    }
    binding: dict[str, object] = {
        "apiVersion": f"{group}/v1",
        "kind": "ClusterRoleBinding",
        "metadata": metadata,
        "roleRef": {"apiGroup": group, "kind": "ClusterRole", "name": name},
        "subjects": [{"apiGroup": group, "kind": "User", "name": name}],
    }
    return [role, binding]


def _dns_service() -> dict[str, object]:
    ports = [{"name": "dns", "port": 53, "protocol": "UDP"}, {"name": "dns-tcp", "port": 53, "protocol": "TCP"}]
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": "kube-dns", "namespace": "kube-system", "labels": {"k8s-app": "kube-dns"}},
        # No selector: CoreDNS runs beside the control plane, so that a lost node never takes the names away.
        "spec": {"clusterIP": network.DNS_SERVICE, "ports": ports},
    }


def _dns_endpoints() -> dict[str, object]:
    ports = [{"name": "dns", "port": 53, "protocol": "UDP"}, {"name": "dns-tcp", "port": 53, "protocol": "TCP"}]
    return {
        "apiVersion": "discovery.k8s.io/v1",
        "kind": "EndpointSlice",
        "metadata": {
            "name": "kube-dns",
            "namespace": "kube-system",
            "labels": {"kubernetes.io/service-name": "kube-dns"},
        },
        "addressType": "IPv4",
        "endpoints": [{"addresses": [network.CONTROL], "conditions": {"ready": True}}],
        "ports": ports,
    }


def _storage_class() -> dict[str, object]:
    return {
        "apiVersion": "storage.k8s.io/v1",
        "kind": "StorageClass",
        "metadata": {"name": CLASS, "annotations": {"storageclass.kubernetes.io/is-default-class": "true"}},
        "provisioner": PROVISIONER,
        "reclaimPolicy": "Delete",
        "volumeBindingMode": "Immediate",
    }


def volume(claim: dict[str, object], name: str, path: str) -> dict[str, object]:
    """The persistent volume for a claim: a directory that every node sees at the same place."""
    metadata, spec = claim["metadata"], claim["spec"]
    assert isinstance(metadata, dict) and isinstance(spec, dict), "a claim has both; this is a bug"
    reference = {key: metadata[key] for key in ("namespace", "name", "uid")}
    return {
        "apiVersion": "v1",
        "kind": "PersistentVolume",
        "metadata": {"name": name, "annotations": {"pv.kubernetes.io/provisioned-by": PROVISIONER}},
        "spec": {
            "accessModes": spec["accessModes"],
            "capacity": {"storage": spec["resources"]["requests"]["storage"]},
            "claimRef": {"apiVersion": "v1", "kind": "PersistentVolumeClaim", **reference},
            "hostPath": {"path": path, "type": "Directory"},
            "persistentVolumeReclaimPolicy": "Delete",
            "storageClassName": CLASS,
            "volumeMode": "Filesystem",
        },
    }
