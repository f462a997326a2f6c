"""`bireme doctor`: what is missing on this machine or on a volume, and how to get it. Leaves nothing behind."""

from __future__ import annotations

import importlib.util
import os
import platform
import shutil
import sys
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal

import click

from bireme.api.where import Where
from bireme.cli.options import cluster_options, json_option
from bireme.cli.output import emit
from bireme.core.errors import MissingError, StorageError, UsageError


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing looked at."""

    name: str
    state: Literal["ok", "optional", "missing"]
    found: str
    fix: str = ""


def _system() -> Finding:
    is_linux = sys.platform == "linux"
    fix = "" if is_linux else "bireme runs on Linux: shared memory and parent-death signals are Linux's"
    return Finding("operating system", "ok" if is_linux else "missing", platform.platform(terse=True), fix)


def _python() -> Finding:
    is_new = sys.version_info >= (3, 11)
    return Finding(
        "Python",
        "ok" if is_new else "missing",
        platform.python_version(),
        "" if is_new else "install Python 3.11 or newer",
    )


def _cores() -> Finding:
    return Finding("processors", "ok", f"{len(os.sched_getaffinity(0))} usable")


def _memory() -> Finding:
    lines = Path("/proc/meminfo").read_text(encoding="ascii").splitlines()
    free = next(int(line.split()[1]) for line in lines if line.startswith("MemAvailable")) * 1024
    low = free < 1 << 30
    fix = "the demo wants 1 GiB" if low else ""
    return Finding("free memory", "missing" if low else "ok", f"{free / 2**30:.1f} GiB", fix)


def _disk() -> Finding:
    free = shutil.disk_usage(Path.cwd()).free
    low = free < 1 << 30
    return Finding(
        "free disk here",
        "missing" if low else "ok",
        f"{free / 2**30:.1f} GiB",
        "the demo wants 1 GiB" if low else "",
    )


def _state() -> Finding:
    from bireme.spec.load import places

    where = places().state
    parent = next(p for p in (where, *where.parents) if p.exists())
    can = os.access(parent, os.W_OK)
    return Finding(
        "state directory",
        "ok" if can else "missing",
        str(where),
        "" if can else "set XDG_STATE_HOME to a directory you may write to",
    )


def _packages() -> list[Finding]:
    from importlib import metadata

    rows = []
    for name in ("numpy", "numba", "msgspec", "safetensors", "ruamel.yaml", "rich"):
        try:
            rows.append(Finding(name, "ok", metadata.version(name)))
        except metadata.PackageNotFoundError:
            rows.append(Finding(name, "missing", "not installed", f"pip install {name}"))
    return rows


def _paddle() -> Finding:
    if importlib.util.find_spec("paddle") is not None:
        return Finding("PaddlePaddle", "ok", "installed")
    return Finding(
        "PaddlePaddle",
        "optional",
        "not installed",
        f"only for configs beyond a bag of words: {sys.executable} -m pip install paddlepaddle==3.3.1",
    )


def _cluster() -> list[Finding]:
    """What only jobs on a cluster need."""
    from bireme.spec.load import kubeconfig_files

    rows = []
    for name in ("lightkube", "websockets", "cryptography"):
        is_there = importlib.util.find_spec(name) is not None
        fix = "" if is_there else f"only for jobs on Kubernetes: {sys.executable} -m pip install {name}"
        rows.append(Finding(name, "ok" if is_there else "optional", "installed" if is_there else "not installed", fix))
    configs = ", ".join(str(path) for path in kubeconfig_files())
    fix = "" if configs else "only for jobs on Kubernetes: set KUBECONFIG to the file that kubectl uses"
    rows.append(Finding("kubeconfig", "ok" if configs else "optional", configs or "none", fix))
    has_boto = importlib.util.find_spec("boto3") is not None
    fix = "" if has_boto else f"only for `bireme cluster` on AWS: {sys.executable} -m pip install 'bireme[aws]'"
    rows.append(Finding("boto3", "ok" if has_boto else "optional", "installed" if has_boto else "not installed", fix))
    tool = shutil.which("debootstrap")
    fix = "" if tool else "only for `bireme image build` without --base: apt-get install debootstrap"
    return [*rows, Finding("debootstrap", "ok" if tool else "optional", tool or "not installed", fix)]


def findings() -> list[Finding]:
    """Look at everything."""
    checks: list[Callable[[], Finding]] = [_system, _python, _cores, _memory, _disk, _state]
    return [*(check() for check in checks), *_packages(), _paddle(), *_cluster()]


def on_volume(directory: Path) -> Finding:
    """Whether a directory of this machine can hold a job."""
    from bireme.job.output.volume_probe import probe

    if not directory.is_dir():
        raise UsageError(f"there is no directory {directory}")
    try:
        result = probe(directory.absolute())
    except StorageError as e:
        return Finding("volume", "missing", e.what, e.fix)
    return _volume(result.words, is_fit=not result.lacks)


def of_job(job_file: Path, image: str | None, where: Where) -> Finding:
    """Whether the volume of a job on a cluster can hold it: a pod there tries."""
    from bireme.api.kube import KubeBackend

    words, is_fit = KubeBackend(where).probe_volume(job_file, image)
    return _volume(words, is_fit=is_fit)


def _volume(words: str, *, is_fit: bool) -> Finding:
    from bireme.job.output.volume_probe import FIX

    return Finding("volume", "ok" if is_fit else "missing", words, "" if is_fit else FIX)


@click.command(epilog="\b\nExample: bireme doctor --volume /mnt/shared")
@click.option("--volume", metavar="DIR", type=Path, help="Try out whether this directory can hold a job.")
@click.option("--job", "job_file", metavar="JOB.yaml", type=Path, help="Try out this job's volume on the cluster.")
@click.option("--image", help="With --job: image instead of that in the file.")
@cluster_options
@json_option
def doctor(volume: Path | None, job_file: Path | None, image: str | None, where: Where, as_json: bool) -> None:
    """Say what is missing on this machine, and how to get it.

    Changes nothing, needs no network. With --volume or --job it writes a few small files and removes them again.
    """
    if job_file is None and (where.is_asked or image is not None):
        raise UsageError("--context, --namespace and --image are for --job JOB.yaml")
    rows = findings()
    if volume is not None:
        rows.append(on_volume(volume))
    if job_file is not None:
        rows.append(of_job(job_file, image, where))
    is_fine = all(f.state != "missing" for f in rows)
    value = {"ok": is_fine, "findings": [asdict(f) for f in rows]}
    marks = {"ok": "✓", "optional": "·", "missing": "✗"}
    lines = (f"{marks[f.state]} {f.name:<17} {f.found}{f'  ->  {f.fix}' if f.fix else ''}" for f in rows)
    emit(value, lines, as_json=as_json)
    if not is_fine:
        raise SystemExit(MissingError.exit_code)
