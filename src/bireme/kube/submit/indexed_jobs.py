"""The Indexed Jobs of a job: one pod per node, told apart by its completion index. No I/O.

Pods run under Pod Security's `restricted` profile. The entry (`bireme node`) is a pod's first process and restarts its
own children; Kubernetes replaces pods. Whether a lost pod is replaced while its machine cannot be asked decides which
of two rules Kubernetes accepts: with `replace: at_once` it may not have a pod failure policy, and the entry itself ends
a hopeless job; with `when_gone` the policy does.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from bireme.core import errors
from bireme.kube.api import naming
from bireme.kube.submit.submission import Object, Submission, pods_of, program_key
from bireme.spec.kubernetes import KubernetesFile

GRACE_S = 30
"""From SIGTERM to SIGKILL: time to end a round and take a snapshot."""
HOPELESS = sorted(
    {
        kind.exit_code
        for kind in (
            errors.UsageError, errors.SpecError, errors.ConfigScriptError, errors.DataError, errors.ModelError,
            errors.OutputExistsError, errors.NumericError, errors.DeterminismError, errors.MissingError,
            errors.SnapshotError,
        )
    }
)  # fmt: skip
"""Exit codes after which another pod would end in the same way."""
DEFAULT_REQUESTS = {"cpu": "500m", "memory": "512Mi"}
STATE = "/tmp/bireme"
"""Where the entry keeps the files that probes look at."""
SILENCE_S = 30
"""How long the entry's main loop may stand still before its pod is taken for dead."""


def indexed_job(told: Submission, role: naming.Role, head: Object) -> Object:
    """A Job whose pods run one node each, or only the pservers or trainers of the nodes."""
    settings = told.settings
    labels = head["metadata"]["labels"]
    metadata = head["metadata"] | {"annotations": {naming.DIGEST: told.digest}}
    if settings.queue is not None:
        metadata["labels"] = labels | {naming.QUEUE: settings.queue}
    spec: Object = {
        "completionMode": "Indexed",
        "completions": pods_of(told.job, role),
        "parallelism": pods_of(told.job, role),
        "backoffLimitPerIndex": settings.pod_failures,
        "maxFailedIndexes": 0,
        "suspend": settings.suspend or settings.queue is not None,
        **_replacing(settings),
        "template": {
            "metadata": {"labels": labels | {naming.COMPONENT: role or "node"}},
            "spec": pod_spec(told, role),
        },
    }
    if settings.deadline_s is not None:
        spec["activeDeadlineSeconds"] = settings.deadline_s
    return head | {"metadata": metadata, "spec": spec}


def _replacing(settings: KubernetesFile) -> Object:
    if settings.replace == "at_once":
        return {"podReplacementPolicy": "TerminatingOrFailed"}
    disrupted = {"type": "DisruptionTarget", "status": "True"}
    hopeless = {"containerName": naming.CONTAINER, "operator": "In", "values": HOPELESS}
    rules = [
        {"action": "Ignore", "onPodConditions": [disrupted]},
        {"action": "FailJob", "onExitCodes": hopeless},
    ]
    return {"podReplacementPolicy": "Failed", "podFailurePolicy": {"rules": rules}}


def pod_spec(told: Submission, role: naming.Role) -> Object:
    """What every pod of a Job is."""
    settings, name = told.settings, told.job.name
    spec: Object = {
        "serviceAccountName": settings.service_account or name,
        "automountServiceAccountToken": True,
        "subdomain": name,
        "restartPolicy": "Never",
        "terminationGracePeriodSeconds": GRACE_S,
        "enableServiceLinks": False,
        **security(),
        **scheduling(settings, name, role),
        "containers": [container(told, role)],
        "volumes": list(_volumes(told)),
    }
    return spec


def security() -> Object:
    """Who the processes of a pod are: nobody special."""
    return {
        "securityContext": {
            "runAsNonRoot": True,
            "runAsUser": naming.USER,
            "runAsGroup": naming.USER,
            "fsGroup": naming.USER,
            "fsGroupChangePolicy": "OnRootMismatch",
            "seccompProfile": {"type": "RuntimeDefault"},
        }
    }


def container_security() -> Object:
    """What a container may do: nothing special."""
    return {
        "securityContext": {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        }
    }


def scheduling(settings: KubernetesFile, name: str, role: naming.Role = "") -> Object:
    """Where pods may run, and how soon they are given up with a machine that is lost."""
    found: Object = {"tolerations": list(_tolerations(settings))}
    if labels := settings.node_selector | (settings.groups.get(role, {}) if role else {}):
        found["nodeSelector"] = labels
    if settings.priority_class is not None:
        found["priorityClassName"] = settings.priority_class
    if settings.image_pull_secrets:
        found["imagePullSecrets"] = [{"name": secret} for secret in settings.image_pull_secrets]
    if settings.spread:
        found["topologySpreadConstraints"] = [
            {
                "maxSkew": 1,
                "topologyKey": "kubernetes.io/hostname",
                "whenUnsatisfiable": "ScheduleAnyway",
                "labelSelector": {"matchLabels": naming.selector_of(name)},
            }
        ]
    return found


def _tolerations(settings: KubernetesFile) -> Iterator[Object]:
    for state in ("not-ready", "unreachable"):
        yield {
            "key": f"node.kubernetes.io/{state}",
            "operator": "Exists",
            "effect": "NoExecute",
            "tolerationSeconds": settings.lost_node_s,
        }
    for told in settings.tolerations:
        found: Object = {"operator": "Exists" if told.value is None else "Equal"}
        given = {"key": told.key, "value": told.value, "effect": told.effect, "tolerationSeconds": told.seconds}
        yield found | {key: value for key, value in given.items() if value is not None}


def container(told: Submission, role: naming.Role) -> Object:
    """The one container of a pod."""
    job = told.job
    lanes = job.ports_num + job.ports_num_for_sparse
    ports = [{"name": f"lane-{k}", "containerPort": job.first_port + k} for k in range(lanes)]
    made: Object = {
        "name": naming.CONTAINER,
        "image": told.image,
        "command": ["bireme", "node"],
        "env": list(_environment(told, role)),
        "resources": resources(told.settings),
        **container_security(),
        **_probes(),
        "volumeMounts": list(_mounts(told)),
    }
    if role != "trainer":
        made["ports"] = ports
    if told.settings.image_pull_policy is not None:
        made["imagePullPolicy"] = told.settings.image_pull_policy
    return made


def resources(settings: KubernetesFile) -> Object:
    """What a pod asks for and may use, amounts as text."""
    asked, limits = settings.resources.requests, settings.resources.limits
    requests = {k: v for k, v in DEFAULT_REQUESTS.items() if k not in limits} | asked
    found = {"requests": {k: str(v) for k, v in requests.items()}}
    return found | ({"limits": {k: str(v) for k, v in limits.items()}} if limits else {})


def _environment(told: Submission, role: naming.Role) -> Iterator[Object]:
    fixed = {
        "BIREME_JOB": f"{naming.JOB_DIRECTORY}/job.json",
        "BIREME_KUBE_JOB": told.main_job,
        "BIREME_GRACE_S": str(GRACE_S - 5),
        "HOME": "/tmp",
    }
    if role:
        fixed["BIREME_ROLE"] = role
    for name, value in fixed.items():
        yield {"name": name, "value": value}
    for name, path in (
        ("POD_NAME", "metadata.name"),
        ("POD_NAMESPACE", "metadata.namespace"),
        ("POD_IP", "status.podIP"),
        ("NODE_NAME", "spec.nodeName"),
    ):
        yield {"name": name, "valueFrom": {"fieldRef": {"fieldPath": path}}}
    for name, given in told.settings.env.items():
        yield {"name": name, "value": str(given).lower() if isinstance(given, bool) else str(given)}


def _probes() -> Object:
    """Started: its processes run. Ready: it takes part in rounds. Alive: its main loop turns."""
    age = f"$(( $(date +%s) - $(stat -c %Y {STATE}/alive) ))"
    return {
        "startupProbe": _probe(f"test -e {STATE}/started", every_s=1, failures=120),
        "readinessProbe": _probe(f"test -e {STATE}/ready", every_s=2, failures=1),
        "livenessProbe": _probe(f"test {age} -lt {SILENCE_S}", every_s=10, failures=3),
    }


def _probe(command: str, *, every_s: int, failures: int) -> Object:
    return {
        "exec": {"command": ["sh", "-c", command]},
        "periodSeconds": every_s,
        "timeoutSeconds": 5,
        "failureThreshold": failures,
    }


def _volumes(told: Submission) -> Iterator[Object]:
    name, settings = told.job.name, told.settings
    items = [{"key": "job.json", "path": "job.json"}]
    yield {"name": "job", "configMap": {"name": name, "items": items}}
    if told.program:
        files = [{"key": program_key(path), "path": path} for path in sorted(told.program)]
        yield {"name": "program", "configMap": {"name": name, "items": files}}
    if settings.tls:
        yield {"name": "tls", "secret": {"secretName": f"{name}-tls", "defaultMode": 0o440}}
    yield {"name": "volume", "persistentVolumeClaim": {"claimName": naming.claim_of(name, settings.volume.claim)}}
    yield {"name": "tmp", "emptyDir": {}}
    for extra in settings.volumes:
        yield {"name": extra.name, **extra.source}


def _mounts(told: Submission) -> Iterator[dict[str, Any]]:
    yield {"name": "job", "mountPath": naming.JOB_DIRECTORY, "readOnly": True}
    if told.program:
        yield {"name": "program", "mountPath": naming.PROGRAM_DIRECTORY, "readOnly": True}
    if told.settings.tls:
        yield {"name": "tls", "mountPath": naming.TLS_DIRECTORY, "readOnly": True}
    yield {"name": "volume", "mountPath": naming.VOLUME_ROOT}
    yield {"name": "tmp", "mountPath": "/tmp"}
    for extra in told.settings.volumes:
        mount = {"name": extra.name, "mountPath": extra.path}
        yield mount | ({"readOnly": True} if extra.read_only else {})
