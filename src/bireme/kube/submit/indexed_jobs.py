"""The Indexed Jobs of a job: one pod per node, whose rank is its completion index. No I/O.

Pods run under Pod Security's `restricted` profile. The entry (`bireme node`) is a pod's first process and restarts its
own children; Kubernetes replaces pods. With `replace: at_once`, which replaces a pod while its machine does not answer,
Kubernetes accepts no pod failure policy, and the entry itself ends a hopeless job; with `when_gone` the policy does.
"""

from __future__ import annotations

from collections.abc import Iterator

from bireme.core import errors
from bireme.kube.api import naming
from bireme.kube.api.naming import Object
from bireme.kube.submit.submission import Submission, pods_of, program_key
from bireme.spec.job import Job
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
"""Exit codes after which a replacement would fail alike."""
DEFAULT_REQUESTS = {"cpu": "500m", "memory": "512Mi"}
STATE = "/tmp/bireme"
"""Where the entry keeps the files that probes look at."""
POD_SECURITY: Object = {
    "runAsNonRoot": True,
    "runAsUser": naming.USER,
    "runAsGroup": naming.USER,
    "fsGroup": naming.USER,
    "fsGroupChangePolicy": "OnRootMismatch",
    "seccompProfile": {"type": "RuntimeDefault"},
}
CONTAINER_SECURITY: Object = {
    "allowPrivilegeEscalation": False,
    "readOnlyRootFilesystem": True,
    "capabilities": {"drop": ["ALL"]},
}
SILENCE_S = 30
"""How long the entry's main loop may stand still before the liveness probe fails."""


def indexed_job(submission: Submission, role: naming.Role, head: Object) -> Object:
    """A Job whose pods run one node each, or only the pservers or trainers of the nodes."""
    settings = submission.settings
    labels = head["metadata"]["labels"]
    metadata = head["metadata"] | {"annotations": {naming.DIGEST: submission.digest}}
    if settings.queue is not None:
        metadata["labels"] = labels | {naming.QUEUE: settings.queue}
    spec: Object = {
        "completionMode": "Indexed",
        "completions": pods_of(submission.job, role),
        "parallelism": pods_of(submission.job, role),
        "backoffLimitPerIndex": settings.pod_failures,
        "maxFailedIndexes": 0,
        "suspend": settings.suspend or settings.queue is not None,
        **_replacing(settings),
        "template": {
            "metadata": {"labels": labels | {naming.COMPONENT: role or "node"}},
            "spec": pod_spec(submission, role),
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


def pod_spec(submission: Submission, role: naming.Role) -> Object:
    settings, name = submission.settings, submission.job.name
    return {
        "serviceAccountName": settings.service_account or name,
        "automountServiceAccountToken": True,
        "subdomain": name,
        "restartPolicy": "Never",
        "terminationGracePeriodSeconds": GRACE_S,
        "enableServiceLinks": False,
        "securityContext": POD_SECURITY,
        **scheduling(settings, name, role),
        "containers": [container(submission, role)],
        "volumes": [volume for volume, _ in _mounted(submission)],
    }


def scheduling(settings: KubernetesFile, name: str, role: naming.Role = "") -> Object:
    """Where pods may run, and how soon they are evicted from a lost machine."""
    fields: Object = {"tolerations": list(_tolerations(settings))}
    if labels := settings.node_selector | (settings.groups.get(role, {}) if role else {}):
        fields["nodeSelector"] = labels
    if settings.priority_class is not None:
        fields["priorityClassName"] = settings.priority_class
    if settings.image_pull_secrets:
        fields["imagePullSecrets"] = [{"name": secret} for secret in settings.image_pull_secrets]
    if settings.spread:
        fields["topologySpreadConstraints"] = [
            {
                "maxSkew": 1,
                "topologyKey": "kubernetes.io/hostname",
                "whenUnsatisfiable": "ScheduleAnyway",
                "labelSelector": {"matchLabels": naming.selector_of(name)},
            }
        ]
    return fields


def _tolerations(settings: KubernetesFile) -> Iterator[Object]:
    for state in ("not-ready", "unreachable"):
        yield {
            "key": f"node.kubernetes.io/{state}",
            "operator": "Exists",
            "effect": "NoExecute",
            "tolerationSeconds": settings.lost_node_s,
        }
    for each in settings.tolerations:
        toleration: Object = {"operator": "Exists" if each.value is None else "Equal"}
        optional = {"key": each.key, "value": each.value, "effect": each.effect, "tolerationSeconds": each.seconds}
        yield toleration | {key: value for key, value in optional.items() if value is not None}


def container(submission: Submission, role: naming.Role) -> Object:
    made: Object = {
        "name": naming.CONTAINER,
        "image": submission.image,
        "command": ["bireme", "node"],
        "env": list(_environment(submission, role)),
        "resources": resources(submission.settings),
        "securityContext": CONTAINER_SECURITY,
        **_probes(),
        "volumeMounts": [{"name": volume["name"], **mount} for volume, mount in _mounted(submission)],
    }
    if role != "trainer":
        made["ports"] = [{"name": name, "containerPort": port} for name, port in lanes_of(submission.job).items()]
    if submission.settings.image_pull_policy is not None:
        made["imagePullPolicy"] = submission.settings.image_pull_policy
    return made


def lanes_of(job: Job) -> dict[str, int]:
    """The ports of a pserver's lanes by their names."""
    return {f"lane-{k}": job.first_port + k for k in range(job.ports_num + job.ports_num_for_sparse)}


def resources(settings: KubernetesFile) -> Object:
    asked, limits = settings.resources.requests, settings.resources.limits
    requests = {k: v for k, v in DEFAULT_REQUESTS.items() if k not in limits} | asked
    amounts = {"requests": {k: str(v) for k, v in requests.items()}}
    return amounts | ({"limits": {k: str(v) for k, v in limits.items()}} if limits else {})


def _environment(submission: Submission, role: naming.Role) -> Iterator[Object]:
    fixed = {
        "BIREME_JOB": f"{naming.JOB_DIRECTORY}/job.json",
        "BIREME_KUBE_JOB": submission.main_job,
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
    for name, setting in submission.settings.env.items():
        yield {"name": name, "value": str(setting).lower() if isinstance(setting, bool) else str(setting)}


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


def _mounted(submission: Submission) -> Iterator[tuple[Object, Object]]:
    """The volumes of a pod, each with its mount in the container."""
    name, settings = submission.job.name, submission.settings
    items = [{"key": "job.json", "path": "job.json"}]
    yield {"name": "job", "configMap": {"name": name, "items": items}}, _read_only(naming.JOB_DIRECTORY)
    if submission.program:
        files = [{"key": program_key(path), "path": path} for path in sorted(submission.program)]
        yield {"name": "program", "configMap": {"name": name, "items": files}}, _read_only(naming.PROGRAM_DIRECTORY)
    if settings.tls:
        secret = {"secretName": f"{name}-tls", "defaultMode": 0o440}
        yield {"name": "tls", "secret": secret}, _read_only(naming.TLS_DIRECTORY)
    claim = {"claimName": settings.volume.claim or name}
    yield {"name": "volume", "persistentVolumeClaim": claim}, {"mountPath": naming.VOLUME_ROOT}
    yield {"name": "tmp", "emptyDir": {}}, {"mountPath": "/tmp"}
    for extra in settings.volumes:
        mount = _read_only(extra.path) if extra.read_only else {"mountPath": extra.path}
        yield {"name": extra.name, **extra.source}, mount


def _read_only(path: str) -> Object:
    return {"mountPath": path, "readOnly": True}
