"""`bireme doctor`: what is missing on this machine or on a volume, and how to get it. Leaves nothing behind."""

from __future__ import annotations

import importlib.util
import os
import platform
import shutil
import sys
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from importlib import metadata
from pathlib import Path
from typing import Literal

import click

from bireme.api.where import Where
from bireme.cli.options import cluster_options, json_option
from bireme.cli.output import emit
from bireme.core.errors import MissingError, StorageError, UsageError
from bireme.spec.load import kubeconfig_files, places


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing looked at."""

    name: str
    state: Literal["ok", "optional", "missing"]
    found: str
    fix: str = ""


def _needed(name: str, is_ok: bool, text: str, fix: str) -> Finding:
    return Finding(name, "ok" if is_ok else "missing", text, "" if is_ok else fix)


def _optional(name: str, is_ok: object, fix: str, text: str = "installed", without: str = "not installed") -> Finding:
    return Finding(name, "ok" if is_ok else "optional", text if is_ok else without, "" if is_ok else f"only for {fix}")


def _machine() -> Iterator[Finding]:
    fix = "bireme runs on Linux: shared memory and parent-death signals are Linux's"
    yield _needed("operating system", sys.platform == "linux", platform.platform(terse=True), fix)
    yield _needed("Python", sys.version_info >= (3, 11), platform.python_version(), "install Python 3.11 or newer")
    yield Finding("processors", "ok", f"{len(os.sched_getaffinity(0))} usable")
    lines = Path("/proc/meminfo").read_text(encoding="ascii").splitlines()
    memory = next(int(line.split()[1]) for line in lines if line.startswith("MemAvailable")) * 1024
    for name, free in (("free memory", memory), ("free disk here", shutil.disk_usage(Path.cwd()).free)):
        yield _needed(name, free >= 1 << 30, f"{free / 2**30:.1f} GiB", "the demo wants 1 GiB")
    state = places().state
    parent = next(p for p in (state, *state.parents) if p.exists())
    fix = "set XDG_STATE_HOME to a directory you may write to"
    yield _needed("state directory", os.access(parent, os.W_OK), str(state), fix)


def _packages() -> Iterator[Finding]:
    for name in ("numpy", "numba", "msgspec", "safetensors", "ruamel.yaml", "rich"):
        try:
            yield Finding(name, "ok", metadata.version(name))
        except metadata.PackageNotFoundError:
            yield Finding(name, "missing", "not installed", f"pip install {name}")


def _extras() -> Iterator[Finding]:
    pip, find = f"{sys.executable} -m pip install", importlib.util.find_spec
    yield _optional("PaddlePaddle", find("paddle"), f"configs beyond a bag of words: {pip} paddlepaddle==3.3.1")
    for name in ("lightkube", "websockets", "cryptography"):
        yield _optional(name, find(name), f"jobs on Kubernetes: {pip} {name}")
    configs = ", ".join(str(path) for path in kubeconfig_files())
    fix = "jobs on Kubernetes: set KUBECONFIG to the file that kubectl uses"
    yield _optional("kubeconfig", configs, fix, configs, "none")
    yield _optional("boto3", find("boto3"), f"`bireme cluster` on AWS: {pip} 'bireme[aws]'")
    tool = shutil.which("debootstrap")
    yield _optional("debootstrap", tool, "`bireme image build` without --base: apt-get install debootstrap", str(tool))


def findings() -> list[Finding]:
    return [*_machine(), *_packages(), *_extras()]


def on_volume(directory: Path) -> Finding:
    from bireme.job.output.volume_probe import probe

    if not directory.is_dir():
        raise UsageError(f"there is no directory {directory}")
    try:
        result = probe(directory.absolute())
    except StorageError as e:
        return Finding("volume", "missing", e.what, e.fix)
    return _volume(result.words, is_fit=not result.lacks)


def _volume(words: str, *, is_fit: bool) -> Finding:
    from bireme.job.output.volume_probe import FIX

    return _needed("volume", is_fit, words, FIX)


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
        words, is_fit = where.backend().probe_volume(job_file, image)  # a pod there tries
        rows.append(_volume(words, is_fit=is_fit))
    is_fine = all(f.state != "missing" for f in rows)
    value = {"ok": is_fine, "findings": [asdict(f) for f in rows]}
    marks = {"ok": "✓", "optional": "·", "missing": "✗"}
    lines = (f"{marks[f.state]} {f.name:<17} {f.found}{f'  ->  {f.fix}' if f.fix else ''}" for f in rows)
    emit(value, lines, as_json=as_json)
    if not is_fine:
        raise SystemExit(MissingError.exit_code)
