"""The packages that bireme needs, as an image's Python needs them.

Versions are those of the installation that runs this: an image holds the versions in use here. pip chooses and
downloads wheels for the image's Python, which may be another one than ours; they are unpacked here and not by pip,
which would add files that depend on the time, the source and the interpreter.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import re
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Iterable
from pathlib import Path, PurePosixPath

from bireme.core.errors import ImageError, MissingError
from bireme.images.cache import Cache, key_of

EXTRAS = ("kube", "tls")
"""The extras that a pod needs."""
_GLIBC = range(28, 16, -1)
"""Wheels may ask for a C library as new as 2.28: Debian 10, Ubuntu 20.04, RHEL 8 and all later ones have it."""
# Never imported by a job, and a fifth of all files.
_TESTS = re.compile(r"(?:numba|numpy|llvmlite)/(?:.*/)?tests/.*")


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
    todo = [_name(line) for line in wanted]
    while todo:
        name = todo.pop()
        if name in versions:
            continue
        try:
            distribution = importlib.metadata.distribution(name)
        except importlib.metadata.PackageNotFoundError:
            continue  # pip will choose
        versions[name] = distribution.version
        todo += [_name(line) for line in distribution.requires or () if "extra ==" not in line]
    return [f"{name}=={version}" for name, version in sorted(versions.items()) if "+" not in version]


def _name(requirement: str) -> str:
    match = re.match(r"[A-Za-z0-9._-]+", requirement)
    return re.sub(r"[-_.]+", "-", match[0]).lower() if match else ""


def download(wanted: list[str], python: str, machine: str, cache: Cache) -> list[Path]:
    """Get the wheels of requirements and their dependencies, from the cache if it has them."""
    fixed = pins(wanted)
    folder = cache.wheels / key_of(python, machine, *wanted, "--", *fixed)[:16]
    if not folder.is_dir():
        with cache.making(folder) as half:
            (half / "constraints.txt").write_text("\n".join(fixed) + "\n", "utf-8")
            _pip_download(wanted, python, machine, half)
    return sorted(folder.glob("*.whl"))


def _pip_download(wanted: list[str], python: str, machine: str, folder: Path) -> None:
    platforms = [f"manylinux_2_{minor}_{machine}" for minor in _GLIBC] + [f"manylinux2014_{machine}"]
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-input"]
    command += ["--only-binary=:all:", f"--python-version={python}", "--implementation=cp"]
    command += [f"--platform={name}" for name in platforms]
    command += [f"--constraint={folder / 'constraints.txt'}", f"--dest={folder}", *wanted]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if "No module named pip" in done.stderr:
        raise MissingError("pip is not installed", fix=f"`{sys.executable} -m ensurepip`")
    if done.returncode:
        errors = [line for line in done.stderr.splitlines() if line.startswith("ERROR")] or ["no reason was given"]
        fix = "is there a network, or a package mirror in pip's settings?"
        what = f"pip could not get the packages for the image: {errors[-1].removeprefix('ERROR: ')}"
        raise ImageError(what, why="; ".join(line.removeprefix("ERROR: ") for line in errors[:-1]), fix=fix)


def digests(wheels: Iterable[Path]) -> list[str]:
    """Name and hash of each wheel: the key of the layer."""
    return [f"{wheel.name} {hashlib.sha256(wheel.read_bytes()).hexdigest()}" for wheel in sorted(wheels)]


def unpack_wheel(wheel: Path, site: Path) -> None:
    """Put a wheel's packages into a site directory; scripts and headers are left out."""
    with zipfile.ZipFile(wheel) as archive:
        for info in sorted(archive.infolist(), key=lambda i: i.filename):
            name = _place(info.filename)
            if name is None or info.is_dir() or _TESTS.fullmatch(name):
                continue
            target = site / name
            target.parent.mkdir(parents=True, exist_ok=True)
            with archive.open(info) as source, target.open("wb") as f:
                shutil.copyfileobj(source, f)
            target.chmod(0o755 if info.external_attr >> 16 & 0o111 else 0o644)


def _place(name: str) -> str | None:
    """A wheel's file's path below the site directory; None for files that do not belong there."""
    parts = PurePosixPath(name).parts
    if ".." in parts or name.startswith("/"):
        raise ImageError(f"a wheel wants to write to {name}", why="that is outside of the image's packages")
    if parts[0].endswith(".data"):
        return "/".join(parts[2:]) if parts[1:2] in (("purelib",), ("platlib",)) else None
    return name
