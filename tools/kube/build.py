"""What the test cluster is made of: checks the machine, and builds Kubernetes and CoreDNS once.

The binaries land in a directory named by the hash of their sources and flags, outside of the clone, so that
every clone shares them and a change of version builds anew. Go fetches the sources from its module proxy.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path

from bireme.core.errors import MissingError, ProcessError

HERE = Path(__file__).parent
VERSION = "v1.34.4"
COMPONENTS = ("etcd", "kube-apiserver", "kube-controller-manager", "kube-scheduler", "kubelet", "kube-proxy", "kubectl")
# Which Debian package brings a program that must be there.
PROGRAMS = {
    "ip": "iproute2",
    "nsenter": "util-linux",
    "unshare": "util-linux",
    "mount": "mount",
    "iptables": "iptables",
    "containerd": "containerd",
    "ctr": "containerd",
    "runc": "runc",
    "/usr/lib/cni/bridge": "containernetworking-plugins",
    "/usr/lib/cni/portmap": "containernetworking-plugins",
    "debootstrap": "debootstrap",  # for the image of this tree that tests and benches run
}

Progress = Callable[[str], None]


def missing_ground() -> str:
    """What this machine lacks and no package can bring, in one sentence; empty where it will do."""
    if not Path("/proc/self/ns/net").exists():
        return "the test cluster needs Linux with namespaces"
    if os.geteuid() != 0:
        return "the test cluster needs root: it makes namespaces, mounts and control groups"
    if find_go() is None:
        return "the test cluster needs Go 1.25 or newer, to build Kubernetes from source once"
    return ""


def find_go() -> str | None:
    """Go's command, also where an installer did not add it to PATH."""
    usual = "/usr/local/go/bin/go"
    return shutil.which("go") or (usual if os.access(usual, os.X_OK) else None)


def require_ground() -> None:
    """Refuse at once where the cluster cannot run."""
    if lack := missing_ground():
        fix = (
            "get Go from https://go.dev/dl, unpacked into /usr/local/go" if "Go" in lack else "run it as root on Linux"
        )
        raise MissingError(lack, fix=fix)


def require_packages(progress: Progress) -> None:
    """Install the Debian packages that are not there yet."""
    if not _missing_packages():
        return
    if shutil.which("apt-get") is None:
        listed = " ".join(_missing_packages())
        raise MissingError(f"not installed here: {listed}", fix="install what holds these programs in your system")
    # Test workers start at the same moment, and apt-get refuses to run twice at a time.
    with (Path(tempfile.gettempdir()) / "bireme-kube-packages.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if packages := _missing_packages():
            _install(packages, progress)


def _missing_packages() -> list[str]:
    return sorted({package for program, package in PROGRAMS.items() if shutil.which(program) is None})


def _install(packages: list[str], progress: Progress) -> None:
    listed = " ".join(packages)
    progress(f"installing {listed} …")
    environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    for command in (["update", "-qq"], ["install", "-y", "-qq", "--no-install-recommends", *packages]):
        done = subprocess.run(["apt-get", *command], env=environment, capture_output=True, text=True, check=False)
        if done.returncode:
            raise MissingError(
                f"could not install {listed}", why=done.stderr.strip()[-400:], fix=f"type: apt-get install {listed}"
            )


def binaries(cache: Path, progress: Progress) -> Path:
    """The directory with every component's binary; builds them where they are not there yet."""
    place = cache / _fingerprint()
    if all((place / name).is_file() for name in (*_targets(), *COMPONENTS)):
        return place
    shutil.rmtree(place, ignore_errors=True)  # it is incomplete
    cache.mkdir(parents=True, exist_ok=True)
    progress("building Kubernetes and CoreDNS from source, once; this takes some minutes …")
    with tempfile.TemporaryDirectory(prefix=".building-", dir=cache) as temporary:
        made = Path(temporary) / "made"
        made.mkdir()
        for name, flags in _targets().items():
            _build(HERE / name, made / name, flags, progress)
        for component in COMPONENTS:
            (made / component).symlink_to("hyper")
        if not place.is_dir():
            made.rename(place)
    return place


def _targets() -> Mapping[str, str]:
    return {"hyper": f"-s -w {_version_flags()}", "coredns": "-s -w", "pause": "-s -w"}


def _version_flags() -> str:
    # Components compare each other's versions; a binary without one is refused.
    major, minor, _ = VERSION.removeprefix("v").split(".")
    facts = {
        "gitVersion": VERSION,
        "gitMajor": major,
        "gitMinor": minor,
        "gitCommit": "0" * 40,
        "gitTreeState": "clean",
        "buildDate": "1970-01-01T00:00:00Z",
    }
    packages = ("k8s.io/component-base/version", "k8s.io/client-go/pkg/version")
    return " ".join(f"-X {package}.{key}={value}" for package in packages for key, value in facts.items())


def _fingerprint() -> str:
    digest = hashlib.sha256(repr(sorted(_targets().items())).encode())
    for name in sorted(_targets()):
        for file in sorted((HERE / name).iterdir()):
            if file.suffix in (".go", ".mod", ".sum"):
                digest.update(f"{name}/{file.name}\0".encode() + file.read_bytes())
    return digest.hexdigest()[:16]


def _build(source: Path, target: Path, flags: str, progress: Progress) -> None:
    go = find_go()
    assert go is not None, "require_ground comes first; this is a bug"
    environment = {**os.environ, "CGO_ENABLED": "0"}
    # A module's own file list, or the one file of a program without a module.
    what = "." if (source / "go.mod").exists() else "main.go"
    command = [go, "build", "-v", "-trimpath", "-ldflags", flags, "-o", str(target), what]
    lines: list[str] = []
    with subprocess.Popen(command, cwd=source, env=environment, stderr=subprocess.PIPE, text=True) as process:
        reader = threading.Thread(target=lambda: lines.extend(process.stderr or ()), daemon=True)
        reader.start()
        begin = reported = time.monotonic()
        while reader.is_alive():
            reader.join(0.2)
            if time.monotonic() - reported > 15:
                reported = time.monotonic()
                progress(f"  {source.name}: {len(lines)} packages compiled in {reported - begin:.0f} s …")
    if process.returncode:
        raise ProcessError(
            f"Go could not build {source.name}:\n" + "".join(f"    {line}" for line in lines[-12:]),
            fix="is Go's module proxy reachable? `go env GOPROXY` names it",
        )
