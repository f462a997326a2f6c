"""The permissions that the command line needs in a namespace; a test tries the whole list on a real cluster.

`submit` makes a Role for the job's own pods, with get and patch on their own Jobs. RBAC lets users grant only what they
have themselves, so both verbs are needed even to submit.
"""

from __future__ import annotations

from bireme.kube.submit.submission import Object

WRITE = ("get", "list", "create", "patch", "delete")
NEEDED: dict[tuple[str, str], tuple[str, ...]] = {
    ("batch", "jobs"): WRITE,
    ("", "pods"): ("get", "list", "create", "delete"),
    ("", "pods/log"): ("get",),
    ("", "pods/exec"): ("get", "create"),
    ("", "persistentvolumeclaims"): WRITE,
    ("", "configmaps"): WRITE,
    ("", "secrets"): ("get", "create", "patch", "delete"),
    ("", "services"): WRITE,
    ("", "serviceaccounts"): WRITE,
    ("", "events"): ("list",),
    ("rbac.authorization.k8s.io", "roles"): WRITE,
    ("rbac.authorization.k8s.io", "rolebindings"): WRITE,
    ("networking.k8s.io", "networkpolicies"): WRITE,
    ("policy", "poddisruptionbudgets"): WRITE,
    ("kueue.x-k8s.io", "workloads"): ("list", "patch"),
}
"""Verbs by API group and resource."""


def role(namespace: str, name: str = "bireme-user") -> Object:
    """A Role with the needed permissions and no others; bind it to users who submit jobs."""
    rules = [
        {"apiGroups": [group], "resources": [resource], "verbs": list(verbs)}
        for (group, resource), verbs in NEEDED.items()
    ]
    return {
        "apiVersion": "rbac.authorization.k8s.io/v1",
        "kind": "Role",
        "metadata": {"name": name, "namespace": namespace},
        "rules": rules,
    }
