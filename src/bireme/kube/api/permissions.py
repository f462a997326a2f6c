"""What the command line needs to be allowed in a namespace: the whole list, which a test tries on a real cluster.

A Role for the job's own pods is made by `submit`, with get and patch on their own Jobs, and nobody can give away what
they do not have: that is why these stand here even for those who only submit.
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
    """A Role that allows what is needed and nothing more; bind it to whoever is to submit jobs."""
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
