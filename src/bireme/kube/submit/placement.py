"""A job as its pods see it: the same job with the paths, hosts and certificates of a cluster. No I/O.

The directory of job.yaml becomes `/job/<name>` on the volume, so that paths in the file mean the same thing there.
"""

from __future__ import annotations

import os.path
from pathlib import Path, PurePosixPath

import msgspec

from bireme.core.errors import SpecError
from bireme.kube.api import naming
from bireme.spec.job import Job
from bireme.spec.load import ClusterJob


def place(cluster_job: ClusterJob, namespace: str) -> Job:
    job, settings = cluster_job.job, cluster_job.settings
    naming.check_name(job, is_apart=settings.is_apart)
    output = _inside(cluster_job, cluster_job.file.output, "output")
    snapshots = msgspec.structs.replace(job.snapshots, path=str(output / "snapshots"))
    return msgspec.structs.replace(
        job,
        config=str(PurePosixPath(settings.program or naming.PROGRAM_DIRECTORY) / Path(job.config).name),
        data=str(data_on_volume(cluster_job)),
        output=str(output),
        snapshots=snapshots,
        port=job.first_port,
        hosts=naming.hosts_of(job, namespace, is_apart=settings.is_apart),
        tls=naming.TLS_DIRECTORY if settings.tls else "",
    )


def data_on_volume(cluster_job: ClusterJob) -> PurePosixPath:
    wanted = cluster_job.settings.volume.data
    if wanted is not None:
        root = PurePosixPath(naming.VOLUME_ROOT)
        path = root / os.path.normpath(wanted.lstrip("/"))
        if ".." in path.parts:
            raise SpecError(f"kubernetes.volume.data: {wanted} is not on the volume", fix="give a path from its root")
        return path
    return _inside(cluster_job, cluster_job.file.data.path, "data.path")


def directory_of(name: str) -> PurePosixPath:
    return PurePosixPath(naming.VOLUME_ROOT) / name


def _inside(cluster_job: ClusterJob, path: str, key: str) -> PurePosixPath:
    """The place on the volume of a path that the file names; links are not followed, as they are not sent."""
    below = os.path.relpath(cluster_job.base / path, cluster_job.base)
    if below == ".." or below.startswith("../"):
        fix = "choose a path below job.yaml"
        if key == "data.path":
            fix += ", or say where the shards are on the volume with `kubernetes.volume.data`"
        raise SpecError(
            f"{key}: {path} is not below job.yaml",
            why="on the cluster the directory of job.yaml becomes a directory on the volume, and this is outside of it",
            fix=fix,
        )
    return directory_of(cluster_job.job.name) / below
