"""An environment of its own for each peer, made on first use and kept in the user's cache.

Peers want versions of numpy that exclude each other, and none of them belongs beside bireme. Torch is the
exception: pip would fetch gigabytes of CUDA, so Debian's own package is used, which has a CPU build.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from bireme.core.errors import MissingError

REQUIREMENTS: Mapping[str, Sequence[str]] = {
    "mxnet": ("mxnet==1.9.1", "numpy==1.23.5"),
    "tensorflow": ("tensorflow-cpu>=2.21",),
    "ray": ("ray>=2.50", "numpy"),
}
MEGABYTES = {"mxnet": 300, "tensorflow": 1700, "ray": 400}
DEBIAN_PYTHON = "/usr/bin/python3"
INSTALL_TIMEOUT_S = 1800.0
_STAMP = ".bireme-ready"


def python_of(home: str, environment: Mapping[str, str]) -> str:
    """The interpreter that has this peer; makes its environment where there is none, or raises MissingError."""
    return _debian_torch() if home == "torch" else _venv(home, cache_folder(environment) / home)


def cache_folder(environment: Mapping[str, str]) -> Path:
    """Where environments of peers are kept."""
    given = environment.get("XDG_CACHE_HOME", "")
    # The standard says that a relative path there is to be ignored.
    base = Path(given) if given.startswith("/") else Path.home() / ".cache"
    return base / "bireme" / "peers"


def _say(text: str) -> None:
    print(f"bench: {text}", file=sys.stderr, flush=True)


def _venv(home: str, folder: Path) -> str:
    wanted = "\n".join(REQUIREMENTS[home])
    python, stamp = folder / "bin" / "python", folder / _STAMP
    if python.exists() and stamp.exists() and stamp.read_text(encoding="utf-8") == wanted:
        return str(python)
    base = _find_python(home)
    _check_space(home, folder)
    _say(f"making an environment for {home} in {folder} (about {MEGABYTES[home]} MB, once) …")
    shutil.rmtree(folder, ignore_errors=True)
    try:
        _call([base, "-m", "venv", str(folder)], f"an environment for {home}")
        _call([str(python), "-m", "pip", "install", "--quiet", *REQUIREMENTS[home]], f"{', '.join(REQUIREMENTS[home])}")
        stamp.write_text(wanted, encoding="utf-8")
    except BaseException:
        # Half an environment must not be taken for a whole one.
        shutil.rmtree(folder, ignore_errors=True)
        raise
    return str(python)


def _find_python(home: str) -> str:
    """A Python 3.11: MXNet's numpy has no wheels for later ones, and every peer has some for it."""
    for candidate in (sys.executable, "python3.11", "/usr/bin/python3.11", DEBIAN_PYTHON):
        ask = [candidate, "-c", "import sys, venv, ensurepip; sys.exit(sys.version_info[:2] != (3, 11))"]
        if shutil.which(candidate) and subprocess.run(ask, check=False, capture_output=True).returncode == 0:
            return candidate
    raise MissingError(f"{home} needs Python 3.11 with venv", fix="apt-get install python3.11 python3.11-venv")


def _check_space(home: str, folder: Path) -> None:
    there = next(parent for parent in folder.parents if parent.exists())
    free = shutil.disk_usage(there).free >> 20
    if free < MEGABYTES[home]:
        raise MissingError(f"{home} needs {MEGABYTES[home]} MB in {there}, {free} MB are free")


def _call(command: Sequence[str], what: str) -> None:
    try:
        done = subprocess.run(
            command, check=False, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=INSTALL_TIMEOUT_S
        )
    except subprocess.TimeoutExpired:
        raise MissingError(f"installing {what} took more than {INSTALL_TIMEOUT_S:.0f} s") from None
    except OSError as e:
        raise MissingError(f"cannot install {what}: {e.strerror}") from e
    if done.returncode:
        said = done.stdout.decode(errors="replace").strip().splitlines() or ["nothing was said"]
        raise MissingError(
            f"cannot install {what}: {said[-1][:200]}",
            fix="is there a network, or a package mirror in pip's settings?",
        )


def _debian_torch() -> str:
    if _has_torch():
        return DEBIAN_PYTHON
    if os.geteuid() != 0 or shutil.which("apt-get") is None:
        raise MissingError("torch is not installed", fix="sudo apt-get install python3-torch")
    _say("installing python3-torch (about 1 GB with what it needs, once) …")
    quiet = ["env", "DEBIAN_FRONTEND=noninteractive", "apt-get", "-qq"]
    _call([*quiet, "update"], "python3-torch")
    _call([*quiet, "install", "-y", "--no-install-recommends", "python3-torch", "python3-numpy"], "python3-torch")
    if not _has_torch():
        raise MissingError(f"python3-torch is installed, but {DEBIAN_PYTHON} cannot use it with gloo")
    return DEBIAN_PYTHON


def _has_torch() -> bool:
    ask = "import numpy, torch.distributed as d; raise SystemExit(not d.is_gloo_available())"
    if not Path(DEBIAN_PYTHON).exists():
        return False
    return subprocess.run([DEBIAN_PYTHON, "-c", ask], check=False, capture_output=True).returncode == 0
