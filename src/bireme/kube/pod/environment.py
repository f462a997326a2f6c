"""The place of this pod in its job, read from the environment that Kubernetes sets.

Pods of `bireme submit` read their job from a file and have an index as rank. Pods of a plain Job written for the
original have to agree on their ranks (peers.py).
"""

from __future__ import annotations

import re
import socket
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import cast

import msgspec

from bireme.core.errors import NetworkError, UsageError
from bireme.job.node.entry import Role, read_job
from bireme.job.output.ownership import RUN_DIRECTORY
from bireme.kube.api import naming
from bireme.kube.api.client import POD, Cluster
from bireme.kube.api.kubeconfig import KubeTarget
from bireme.kube.api.naming import Object
from bireme.kube.plain import tutorial
from bireme.kube.plain.ranks import RankWait
from bireme.spec.job import Job

GRACE_S = 25.0
PATIENCE = 5.0
"""Factor on the timeouts of a job on a cluster: its pods are scheduled, pulled and replaced first."""
API_TIMEOUT_S = 5.0


@dataclass(frozen=True, slots=True)
class Pod:
    """A pod, whatever it runs."""

    name: str
    namespace: str
    machine: str
    grace_s: float
    """How long it may take to save a snapshot after SIGTERM."""
    scratch: Path


@dataclass(frozen=True, slots=True)
class PodPlace:
    """The place of this pod in its job."""

    pod: Pod
    job: Job
    """As this pod read it; node 0 settles it for all nodes later."""
    rank: int
    role: Role | None
    host: str
    kube_job: str = ""
    """The Job that the status is written on; '' outside of a cluster."""
    all_jobs: tuple[str, ...] = ()
    """The Jobs to end when the job is hopeless."""
    each_second: tuple[Callable[[], None], ...] = ()


@lru_cache
def cluster_in(namespace: str) -> Cluster:
    """A connection to the API server as the pod's account."""
    # The reporting thread and the main one share it: the HTTP client below may be used by several threads.
    return Cluster(KubeTarget(namespace=namespace), timeout_s=API_TIMEOUT_S)


def place_of(
    environment: Mapping[str, str],
    rest: Callable[[RankWait], bool],
    check: Callable[[Path], None] = lambda output: None,
) -> PodPlace | None:
    """Find this pod's place in its job; None if `rest`, called with each wait, returns False.

    `check` is called with the job's output directory before this pod writes anything there.
    """
    if environment.get("BIREME_JOB"):
        place = _of_index(environment)
        check(Path(place.job.output))
        return place
    if tutorial.is_tutorial_pod(environment):
        return _of_seeds(environment, rest, check)
    raise UsageError(
        "`bireme node` does not know which job it belongs to: neither BIREME_JOB nor JOB_NAME and JOB_PATH are set",
        fix="pods are started by `bireme submit JOB.yaml`; on this machine use `bireme train JOB.yaml`",
    )


def _of_index(environment: Mapping[str, str]) -> PodPlace:
    job = read_job(Path(environment["BIREME_JOB"]))
    named = _checked(environment, "BIREME_ROLE", "pserver|trainer", "neither pserver nor trainer")
    role = cast(Role, named) if named else None
    rank = _index(environment)
    if rank is None:
        raise UsageError("JOB_COMPLETION_INDEX is not set", fix="the Job needs `completionMode: Indexed`")
    count = {"pserver": job.pservers, "trainer": job.trainers, None: job.nodes}[role]
    if rank >= count:
        raise UsageError(f"JOB_COMPLETION_INDEX is {rank}, but the job has only {count} {role or 'node'}s")
    is_inside = bool(environment.get("KUBERNETES_SERVICE_HOST"))
    jobs = tuple(naming.job_name(job.name, each) for each in naming.roles_of(job, is_apart=role is not None))
    return PodPlace(
        pod_of(environment),
        _patient(job),
        rank,
        role,
        host=environment.get("POD_IP") or own_address(""),
        kube_job=environment.get("BIREME_KUBE_JOB", "") if is_inside else "",
        all_jobs=jobs,
    )


def _of_seeds(
    environment: Mapping[str, str], rest: Callable[[RankWait], bool], check: Callable[[Path], None]
) -> PodPlace | None:
    from bireme.kube.plain.peers import ApiPeerLister, HeartbeatFiles, RankBook, take_rank

    job = tutorial.job_of(environment)
    check(Path(job.output))
    if (Path(naming.TLS_DIRECTORY) / "tls.crt").is_file():
        job = msgspec.structs.replace(job, tls=naming.TLS_DIRECTORY)
    pod = replace(pod_of(environment), namespace=environment.get("JOB_NAMESPACE") or "default")
    host = environment.get("POD_IP") or own_address(environment.get("CONF_PADDLE_NIC", ""))
    run = Path(job.output) / RUN_DIRECTORY
    heartbeats = HeartbeatFiles(run / "pods", pod.name, host)
    rank, is_inside = _index(environment), bool(environment.get("KUBERNETES_SERVICE_HOST"))
    if rank is None:
        lister = ApiPeerLister(lambda: _watch_pods(pod.namespace, job.name)) if is_inside else None
        try:
            taken = take_rank(pod.name, job.nodes, RankBook(run / "ranks"), (lister, heartbeats), rest)
        finally:
            if lister is not None:
                lister.close()
        if taken is None:
            return None
        rank = taken
    kube_job = job.name if is_inside else ""
    return PodPlace(pod, _patient(job), rank, None, host, kube_job=kube_job, each_second=(heartbeats.beat,))


def _watch_pods(namespace: str, job: str) -> Iterator[tuple[str, Object]]:
    with Cluster(KubeTarget(namespace=namespace), timeout_s=API_TIMEOUT_S) as cluster:
        yield from cluster.watch_all(POD, {"job-name": job})


def pod_of(environment: Mapping[str, str]) -> Pod:
    grace = _checked(environment, "BIREME_GRACE_S", r"\d+(\.\d+)?", "not a number of seconds")
    return Pod(
        name=environment.get("POD_NAME") or socket.gethostname(),
        namespace=environment.get("POD_NAMESPACE", ""),
        machine=environment.get("NODE_NAME", ""),
        grace_s=float(grace) if grace else GRACE_S,
        scratch=Path(environment.get("BIREME_SCRATCH") or "/tmp/bireme/scratch"),
    )


def _patient(job: Job) -> Job:
    return msgspec.structs.replace(job, connect_timeout_s=PATIENCE * job.connect_timeout_s)


def _checked(environment: Mapping[str, str], name: str, pattern: str, fault: str) -> str:
    """The text of a variable; empty where it is not set."""
    text = environment.get(name, "")
    if text and not re.fullmatch(pattern, text):
        raise UsageError(f"{name} is {text!r}, which is {fault}")
    return text


def _index(environment: Mapping[str, str]) -> int | None:
    text = _checked(environment, "JOB_COMPLETION_INDEX", r"\d+", "not a number")
    return int(text) if text else None


def own_address(nic: str) -> str:
    """The address by which others reach this pod: of that network interface, or of the one that routes outwards."""
    from bireme.job.node.pserver import address_of

    if nic:
        try:
            return address_of(nic)
        except NetworkError:
            pass  # the interface has another name here
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("192.0.2.1", 9))  # nothing is sent: the kernel only chooses the way
        except OSError as e:
            raise NetworkError(f"this pod has no address: {e.strerror}", fix="set POD_IP in its environment") from e
        return str(probe.getsockname()[0])
