"""The files that bireme itself puts into an image: an environment, its own package, start scripts, a user's program.

The environment at /opt/bireme is a virtual one made by hand: a few lines and a link, the same on every machine.
"""

from __future__ import annotations

import importlib.resources
import re
import shutil
from pathlib import Path

from bireme.core.errors import ImageError
from bireme.images.base import Base
from bireme.images.layers import walk

HOME = "opt/bireme"
KERNELS = f"/{HOME}/numba-cache"
USER = 1000
_STALE = re.compile(r"(?:.*/)?(?:__pycache__|\.git|\.mypy_cache|\.pytest_cache|\.DS_Store|.*\.py[co])")


def site_of(base: Base) -> str:
    """Where packages are, below the root."""
    return f"{HOME}/lib/python{base.version}/site-packages"


def write_environment(root: Path, base: Base) -> None:
    """The virtual environment, the scripts, and the user that pods run as."""
    folder = Path(base.python).parent
    _write(root / HOME / "pyvenv.cfg", f"home = {folder}\ninclude-system-site-packages = false\n")
    (root / HOME / "bin").mkdir(parents=True)
    for name in ("python", "python3", f"python{base.version}"):
        (root / HOME / "bin" / name).symlink_to(base.python)
    scripts = importlib.resources.files("bireme.images") / "scripts"
    for name, place in (
        ("bireme", f"{HOME}/bin/bireme"),
        ("start.sh", "root/start.sh"),
        ("get_data.sh", "root/get_data.sh"),
    ):
        _write(root / place, (scripts / name).read_text("utf-8"), mode=0o755)
    # The scripts there are for all users, not for root alone.
    (root / "root").chmod(0o755)
    for name, line in (("passwd", f"bireme:x:{USER}:{USER}::/tmp:/usr/sbin/nologin"), ("group", f"bireme:x:{USER}:")):
        lines = (base.tree / "etc" / name).read_text("utf-8").splitlines()
        taken = [entry for entry in lines if entry.split(":")[2:3] == [str(USER)]]
        _write(root / "etc" / name, "\n".join([*lines, *([] if taken else [line])]) + "\n")


def write_package(root: Path, package: Path, site: str, wanted: list[str]) -> None:
    """Our own package as it runs here, with enough metadata to be found by name."""
    version = _version(package)
    copy_tree(package, root / site / "bireme")
    about = ["Metadata-Version: 2.1", "Name: bireme", f"Version: {version}", *(f"Requires-Dist: {w}" for w in wanted)]
    _write(root / site / f"bireme-{version}.dist-info" / "METADATA", "\n".join(about) + "\n")


def _version(package: Path) -> str:
    match = re.search(r'__version__ = "([^"]+)"', (package / "__init__.py").read_text("utf-8"))
    assert match is not None, "bireme has no version; this is a bug"
    return match[1]


def copy_tree(source: Path, target: Path) -> None:
    """Copy files without by-products; modes become 0644, or 0755 for executables, whatever the umask."""
    if not source.is_dir():
        raise ImageError(f"there is no directory {source}", fix="`--with DIR` or `--with DIR:/path/in/the/image`")
    target.mkdir(parents=True, exist_ok=True)
    for name, path in walk(source, is_stale):
        place = target / name
        if path.is_symlink():
            place.symlink_to(path.readlink())
        elif path.is_dir():
            place.mkdir()
        else:
            shutil.copyfile(path, place)
            place.chmod(0o755 if path.stat().st_mode & 0o100 else 0o644)


def is_stale(path: str) -> bool:
    """Whether a file is a by-product, such as byte code."""
    return _STALE.fullmatch(path) is not None


def _write(path: Path, text: str, *, mode: int = 0o644) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, "utf-8")
    path.chmod(mode)
