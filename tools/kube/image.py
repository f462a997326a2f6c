"""Tiny container images for the test cluster, made without docker: one layer in a docker archive.

`pause` holds a pod together and comes from Go; `busybox` is a shell and its friends from Debian's static build,
for tests of the cluster itself.
"""

from __future__ import annotations

import hashlib
import io
import json
import platform
import subprocess
import tarfile
import tempfile
from dataclasses import dataclass, field
from pathlib import Path

from bireme.core.errors import MissingError

from .build import Progress
from .settings import PAUSE_IMAGE

BUSYBOX_IMAGE = "localhost/busybox:1"
ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64"}


@dataclass(frozen=True)
class Contents:
    """An image before it is packed: what it is called, what it holds, what it runs."""

    name: str
    files: dict[str, bytes]
    links: dict[str, str] = field(default_factory=dict)
    directories: dict[str, int] = field(default_factory=dict)
    command: tuple[str, ...] = ()


def archives(binaries: Path, progress: Progress) -> list[Path]:
    """The archives that every node needs, made beside the binaries where they are not there yet."""
    pause, busybox = binaries / "pause.tar", binaries / "busybox.tar"
    if not pause.exists():
        program = (binaries / "pause").read_bytes()
        _pack(pause, Contents(PAUSE_IMAGE, {"pause": program}, command=("/pause",)))
    if not busybox.exists():
        progress("fetching busybox …")
        _pack(busybox, _busybox())
    return [pause, busybox]


def _busybox() -> Contents:
    with tempfile.TemporaryDirectory() as temporary:
        try:
            subprocess.run(
                ["apt-get", "download", "-qq", "busybox-static"], cwd=temporary, check=True, capture_output=True
            )
            package = next(Path(temporary).glob("*.deb"))
            subprocess.run(["dpkg-deb", "-x", package, f"{temporary}/root"], check=True, capture_output=True)
        except (OSError, subprocess.CalledProcessError, StopIteration) as e:
            raise MissingError(f"could not fetch Debian's busybox-static: {e}", fix="apt-get update") from e
        program = next(p for p in Path(temporary).glob("root/**/bin/busybox") if p.is_file())
        names = subprocess.run([program, "--list"], check=True, capture_output=True, text=True).stdout.split()
        return Contents(
            BUSYBOX_IMAGE,
            files={"bin/busybox": program.read_bytes(), "etc/passwd": b"root:x:0:0::/:/bin/sh\n"},
            links={f"bin/{name}": "busybox" for name in names if name != "busybox"},
            directories={"tmp": 0o1777, "root": 0o700, "var": 0o755},
            command=("/bin/sh",),
        )


def _pack(target: Path, contents: Contents) -> None:
    layer = _layer(contents)
    config = {
        "architecture": ARCHITECTURES.get(platform.machine(), platform.machine()),
        "os": "linux",
        "config": {"Cmd": list(contents.command), "Env": ["PATH=/bin"], "WorkingDir": "/"},
        "rootfs": {"type": "layers", "diff_ids": [f"sha256:{hashlib.sha256(layer).hexdigest()}"]},
    }
    manifest = [{"Config": "config.json", "RepoTags": [contents.name], "Layers": ["layer.tar"]}]
    partial = target.with_suffix(".partial")
    with tarfile.open(partial, "w") as archive:
        for name, data in {
            "manifest.json": json.dumps(manifest).encode(),
            "config.json": json.dumps(config).encode(),
            "layer.tar": layer,
        }.items():
            _add(archive, name, data)
    partial.rename(target)


def _layer(contents: Contents) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        parents = {str(Path(name).parent): 0o755 for name in contents.files if "/" in name}
        for name, mode in sorted({**parents, **contents.directories}.items()):
            entry = tarfile.TarInfo(name)
            entry.type, entry.mode = tarfile.DIRTYPE, mode
            archive.addfile(entry)
        for name, data in contents.files.items():
            _add(archive, name, data)
        for name, target in contents.links.items():
            entry = tarfile.TarInfo(name)
            entry.type, entry.linkname = tarfile.SYMTYPE, target
            archive.addfile(entry)
    return buffer.getvalue()


def _add(archive: tarfile.TarFile, name: str, data: bytes) -> None:
    entry = tarfile.TarInfo(name)
    entry.size, entry.mode = len(data), 0o755
    archive.addfile(entry, io.BytesIO(data))
