"""The files of an image's own layers: the packages that bireme needs, an environment, bireme itself, programs.

The environment at /opt/bireme is a virtual one made by hand: a few lines and a link, equal on every machine. Packages
have the versions of the installation that builds; pip chooses wheels for the image's Python, which may be another one.
"""

from __future__ import annotations

import importlib.metadata
import importlib.resources
import platform
import re
import shutil
import stat
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

import bireme
from bireme.core.errors import ImageError, MissingError
from bireme.images.base import BaseImage

HOME = "opt/bireme"
USER = 1000
EXTRAS = ("kube", "tls")
"""The extras that a pod needs."""
_GLIBC = range(28, 16, -1)
"""Wheels may ask for a C library as new as 2.28: Debian 10, Ubuntu 20.04, RHEL 8 and all later ones have it."""
# Besides packages pip writes scripts that name its own Python, and records of that and of the time.
_BY_PIP = ("bin", "include", "share", "*.dist-info/INSTALLER", "*.dist-info/RECORD", "*.dist-info/REQUESTED")
# Never imported by a job, and a fifth of all files.
_TESTS = tuple(f"{name}/**/tests" for name in ("numba", "numpy", "llvmlite"))
_STALE = re.compile(r"__pycache__|\.git|\.mypy_cache|\.pytest_cache|\.DS_Store|.*\.py[co]")


def site_of(base: BaseImage) -> str:
    return f"{HOME}/lib/python{base.version}/site-packages"


def requirements(package: Path) -> list[str]:
    """What bireme needs with the image's extras: from its source tree, or else from its installation."""
    project = package.parents[1] / "pyproject.toml"
    if project.is_file():
        import tomllib

        metadata = tomllib.loads(project.read_text("utf-8"))["project"]
        extras = metadata.get("optional-dependencies", {})
        return sorted([*metadata["dependencies"], *(line for name in EXTRAS for line in extras.get(name, []))])
    return sorted(_chosen(importlib.metadata.requires("bireme") or []))


def _chosen(lines: Iterable[str]) -> Iterable[str]:
    for line in lines:
        extra = re.search(r"""\s*(?:;|and)\s*extra\s*==\s*["']([\w-]+)["']""", line)
        if extra is None:
            yield line
        elif extra[1] in EXTRAS:
            yield line.replace(extra[0], "")


def pins(wanted: Iterable[str]) -> list[str]:
    """The versions that are installed here of what requirements need, and of what that needs in turn."""
    versions: dict[str, str] = {}
    todo = list(wanted)
    while todo:
        match = re.match(r"[A-Za-z0-9._-]+", todo.pop())
        name = re.sub(r"[-_.]+", "-", match[0]).lower() if match else ""
        if name in versions:
            continue
        try:
            distribution = importlib.metadata.distribution(name)
        except (importlib.metadata.PackageNotFoundError, ValueError):
            continue  # pip will choose
        versions[name] = distribution.version
        todo += [line for line in distribution.requires or () if "extra ==" not in line]
    # A version with a `+` was built here: no index has it.
    return [f"{name}=={version}" for name, version in sorted(versions.items()) if "+" not in version]


def install(wanted: list[str], pinned: list[str], python: str, site: Path) -> None:
    machine = platform.machine()
    platforms = [f"manylinux_2_{minor}_{machine}" for minor in _GLIBC] + [f"manylinux2014_{machine}"]
    constraints = site.with_name("constraints.txt")
    site.mkdir(parents=True)
    constraints.write_text("\n".join(pinned) + "\n", "utf-8")
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-input"]
    command += ["--root-user-action=ignore", "--no-compile", "--only-binary=:all:", "--implementation=cp"]
    command += [f"--python-version={python}", *(f"--platform={name}" for name in platforms)]
    command += [f"--constraint={constraints}", f"--target={site}", *wanted]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    constraints.unlink()
    if "No module named pip" in done.stderr:
        raise MissingError("pip is not installed", fix=f"`{sys.executable} -m ensurepip`")
    if done.returncode:
        errors = [line for line in done.stderr.splitlines() if line.startswith("ERROR")] or ["no reason was given"]
        fix = "is there a network, or a package mirror in pip's settings?"
        what = f"pip could not get the packages for the image: {errors[-1].removeprefix('ERROR: ')}"
        raise ImageError(what, why="; ".join(line.removeprefix("ERROR: ") for line in errors[:-1]), fix=fix)
    for pattern in (*_BY_PIP, *_TESTS):
        for path in list(site.glob(pattern)):
            shutil.rmtree(path) if path.is_dir() else path.unlink()


def write_environment(root: Path, base: BaseImage) -> None:
    """The virtual environment, the scripts, and the user that pods run as."""
    folder = Path(base.python).parent
    _write(root / HOME / "pyvenv.cfg", f"home = {folder}\ninclude-system-site-packages = false\n")
    (root / HOME / "bin").mkdir(parents=True)
    for name in ("python", "python3", f"python{base.version}"):
        (root / HOME / "bin" / name).symlink_to(base.python)
    scripts = importlib.resources.files("bireme.images") / "scripts"
    for name, place in (("bireme", f"{HOME}/bin"), ("start.sh", "root"), ("get_data.sh", "root")):
        _write(root / place / name, (scripts / name).read_text("utf-8"))
        (root / place / name).chmod(0o755)
    for name, line in (("passwd", f"bireme:x:{USER}:{USER}::/tmp:/usr/sbin/nologin"), ("group", f"bireme:x:{USER}:")):
        lines = (base.tree / "etc" / name).read_text("utf-8").splitlines()
        taken = [entry for entry in lines if entry.split(":")[2:3] == [str(USER)]]
        _write(root / "etc" / name, "\n".join([*lines, *([] if taken else [line])]) + "\n")


def write_package(root: Path, package: Path, site: str, wanted: list[str]) -> None:
    """Our own package as it runs here, with enough metadata to be found by name."""
    copy_tree(package, root / site / "bireme")
    version = bireme.__version__
    about = ["Metadata-Version: 2.1", "Name: bireme", f"Version: {version}", *(f"Requires-Dist: {w}" for w in wanted)]
    _write(root / site / f"bireme-{version}.dist-info" / "METADATA", "\n".join(about) + "\n")


def copy_tree(source: Path, target: Path) -> None:
    """Copy files without by-products, sockets and devices."""

    def left_out(folder: str, names: list[str]) -> list[str]:
        kinds = {name: stat.S_IFMT((Path(folder) / name).lstat().st_mode) for name in names}
        copied = (stat.S_IFREG, stat.S_IFDIR, stat.S_IFLNK)
        return [name for name in names if is_stale(name) or kinds[name] not in copied]

    shutil.copytree(source, target, symlinks=True, ignore=left_out, dirs_exist_ok=True)


def is_stale(path: str) -> bool:
    """Whether a file is a by-product, such as byte code."""
    return _STALE.fullmatch(path.rpartition("/")[2]) is not None


def _write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, "utf-8")
