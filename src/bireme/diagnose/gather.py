"""Gather the evidence on a job from the API server, in a few calls, for `explain`.

Jobs, pods and events of the namespace always; nodes, claims, the certificate's dates and the ends of logs only where
the job's state needs them. A refused request is no failure: the evidence notes it, with the permission's name.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TypeVar

from bireme.core.certificates import LEAF_FILE, days_left
from bireme.core.errors import CertificateError, ClusterError, MissingError, NetworkError
from bireme.diagnose.evidence import Evidence, Json, is_ready, node_of
from bireme.kube.api.client import CLAIM, JOB, KINDS, POD, SECRET, Cluster, ForbiddenError
from bireme.kube.api.fields import claims_of, ended_states, is_true, labels_in, name_of, phase_of, spec_of
from bireme.kube.api.naming import INSTANCE

Value = TypeVar("Value")
LOG_LINES = 60
LOG_PODS = 4
"""How many pods' logs are read: pods that fail together mostly log the same."""
LOG_S = 4.0
"""Timeout for a log: the API server waits long for a machine that is gone."""


@dataclass(slots=True)
class _Asking:
    """A cluster, and the requests that it refused."""

    cluster: Cluster
    denied: list[Json] = field(default_factory=list)

    def ask(self, permission: str, how: Callable[[], Value], *, is_needed: bool = False) -> Value | None:
        """The answer, or None if the request is refused or the object is gone."""
        try:
            return how()
        except ForbiddenError as e:
            verb, _, resource = permission.partition(" ")
            message = e.what.partition(": ")[2] or e.what
            self.denied.append({"verb": verb, "resource": resource, "message": message, "needed": is_needed})
        except ClusterError:
            # Deleted meanwhile, or a log that does not exist yet. (An unreachable server is a NetworkError.)
            if is_needed:
                raise
        return None


def gather(cluster: Cluster, job: str, now: float) -> Evidence:
    asking = _Asking(cluster)
    jobs = asking.ask("list jobs", lambda: cluster.list(JOB, {}), is_needed=True) or []
    instances = [str(labels_in(j).get(INSTANCE) or name_of(j)) for j in jobs]
    mine = tuple(j for j, instance in zip(jobs, instances, strict=True) if job in (name_of(j), instance))
    evidence = Evidence(job=job, namespace=cluster.namespace, now=now, jobs=mine, others=tuple(sorted(set(instances))))
    if mine:
        evidence = replace(evidence, pods=tuple(p for j in mine for p in _pods(asking, j)))
        if not evidence.is_finished:
            events = asking.ask("list events", lambda: cluster.list(KINDS["Event"], {})) or []
            evidence = replace(evidence, events=tuple(e for e in events if _concerns(evidence, e)))
            evidence = _deeper(asking, evidence)
    return replace(evidence, denied=tuple(asking.denied))


def _pods(asking: _Asking, job: Json) -> list[Json]:
    labels = {"batch.kubernetes.io/job-name": name_of(job)}
    return asking.ask("list pods", lambda: asking.cluster.list(POD, labels), is_needed=True) or []


def _concerns(evidence: Evidence, event: Json) -> bool:
    about = event.get("involvedObject") or {}
    name = str(about.get("name", ""))
    own = {name_of(thing) for thing in (*evidence.jobs, *evidence.pods)} | _claims(evidence) | {evidence.job}
    # Kueue calls the workload of a Job after it, with five letters of its own at the end.
    return name in own or (about.get("kind") == "Workload" and name.rpartition("-")[0] in {f"job-{n}" for n in own})


def _claims(evidence: Evidence) -> set[str]:
    return {claim for pod in evidence.pods for claim in claims_of(pod)}


def _deeper(asking: _Asking, evidence: Evidence) -> Evidence:
    """Evidence that costs further calls, for jobs that do not run well."""
    is_whole = sum(map(is_ready, evidence.pods)) >= evidence.wanted
    status = evidence.status
    if evidence.is_suspended or (is_whole and status.phase == "training" and not status.waits_for):
        return evidence
    cluster, names = asking.cluster, _claims(evidence)
    claims: list[Json] = []
    if names and any(phase_of(p) == "Pending" for p in evidence.pods):
        claims = asking.ask("list persistentvolumeclaims", lambda: cluster.list(CLAIM, {})) or []
    evidence = replace(
        evidence,
        nodes=tuple(asking.ask("list nodes", cluster.nodes) or ()),
        claims=tuple(c for c in claims if name_of(c) in names),
        certificate=_certificate(asking, evidence),
    )
    return replace(evidence, logs=_logs(asking, evidence))


def _logs(asking: _Asking, evidence: Evidence) -> dict[str, str]:
    """The ends of logs of pods that ended, are not ready, or run without a status of the job; newest pods first."""
    is_silent = not evidence.status.phase
    lost = {name_of(node) for node in evidence.nodes if not is_true(node, "Ready")}

    def is_wanted(pod: Json) -> bool:
        is_late = phase_of(pod) == "Running" and (is_silent or not is_ready(pod))
        return node_of(pod) not in lost and (is_late or any(ended_states(pod)))

    pods = list(filter(is_wanted, reversed(evidence.troubled)))[:LOG_PODS]
    with asking.cluster.impatient(LOG_S) as cluster:
        return {name_of(pod): asking.ask("get pods/log", partial(_tail, cluster, pod)) or "" for pod in pods}


def _tail(cluster: Cluster, pod: Json) -> str:
    # The first container is the job's own; others may have been put beside it.
    first = next((str(each["name"]) for each in spec_of(pod).get("containers") or ()), None)
    try:
        tail = cluster.log(name_of(pod), container=first, tail=LOG_LINES)
        lines = [re.sub(r"^\d{4}-\S+Z ", "", line) for line in tail]
    except NetworkError:
        return ""  # explain by the other evidence
    return "\n".join(line for line in lines if not line.startswith("unable to retrieve container logs"))


def _certificate(asking: _Asking, evidence: Evidence) -> Json:
    """When the job's certificate ends; empty for jobs without one."""
    volumes = [v for p in evidence.pods for v in spec_of(p).get("volumes") or ()]
    name = f"{evidence.job}-tls"
    if evidence.has_ended or name not in {(v.get("secret") or {}).get("secretName") for v in volumes}:
        return {}
    secret = asking.ask("get secrets", lambda: asking.cluster.get(SECRET, name))
    encoded = ((secret or {}).get("data") or {}).get(LEAF_FILE, "")
    # `submit` needs the package cryptography, `why` works without it.
    with suppress(MissingError, CertificateError, ValueError):
        return {"not_after": evidence.now + 86400 * days_left(base64.b64decode(encoded))}
    return {}


def notes(evidence: Evidence) -> list[str]:
    """Notes on evidence that could not be read, with the missing permission, and on versions that differ."""
    missing = dict.fromkeys(f"{d['verb']} {d['resource']}" for d in evidence.denied if not d["needed"])
    lines = [f"not looked at for lack of the permission to {permission}" for permission in missing]
    there = evidence.status.version
    if there and evidence.version and there != evidence.version:
        lines.append(f"the job's image has bireme {there}, and this command is bireme {evidence.version}")
    return lines
