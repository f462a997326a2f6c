"""The base of an image: a Debian made by debootstrap, a directory with a root file system, or an OCI archive.

Each becomes a tree to run Python in and one or more layers. A debootstrapped Debian is kept in the
cache, by the suite, the mirror and the packages asked for; `is_fresh` makes it anew, for newer packages.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import tarfile
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from bireme.core.errors import ImageError, MissingError
from bireme.images.archive import read_archive
from bireme.images.cache import Cache, key_of, key_of_tree
from bireme.images.inside import MOUNTED
from bireme.images.layers import TAR, Layer, write_layer

SUITE = "bookworm"
MIRROR = "http://deb.debian.org/debian"
PACKAGES = ("ca-certificates", "python3")
# Left out: files that only apt, people or a boot of the machine use. Licences stay.
_UNUSED = re.compile(
    r"usr/share/(?:man|info|locale|lintian|doc-base|bug|bash-completion)/.*"
    r"|usr/share/doc/[^/]+/(?!copyright$).*|var/cache/.+|var/lib/apt/lists/.+|var/log/.+|debootstrap"
    r"|etc/(?:machine-id|hostname|resolv\.conf|.*-)|var/lib/dpkg/.*-old|.*/__pycache__"
)
_OTHER_BASE = "take another base"


@dataclass(frozen=True, slots=True)
class Base:
    """A root file system that has Python."""

    tree: Path
    layers: tuple[Layer, ...]
    python: str
    """Path of the interpreter: /usr/bin/python3.11."""

    @property
    def version(self) -> str:
        """Python's version as in its directories: 3.11."""
        return self.python.rpartition("python")[2]


def open_base(source: str, cache: Cache, *, is_fresh: bool = False, on_step: Callable[[str], None]) -> Base:
    """Find or make the base: `debootstrap`, a directory, or an OCI archive."""
    if source == "debootstrap":
        tree = _debootstrapped(cache, is_fresh, on_step)
        facts = tree.stat()
        return _of_tree(tree, key_of(tree.name, str(facts.st_ino), str(facts.st_mtime_ns)), cache)
    path = Path(source).absolute()
    if path.is_dir():
        return _of_tree(path, key_of_tree(path, _is_unused), cache)
    if path.is_file():
        return _of_archive(path, cache)
    raise ImageError(f"there is no base {source}", fix="name a directory, an OCI archive, or `debootstrap`")


def _debootstrapped(cache: Cache, is_fresh: bool, on_step: Callable[[str], None]) -> Path:
    tree = cache.trees / f"debian-{key_of(SUITE, MIRROR, *PACKAGES)[:16]}"
    if tree.is_dir() and not is_fresh:
        return tree
    if shutil.which("debootstrap", path=_path()) is None:
        fix = "`apt-get install debootstrap`, or give `--base` a directory or an OCI archive"
        raise MissingError("debootstrap is not installed", fix=fix)
    if os.geteuid() != 0:
        fix = "run as root, or give `--base` a directory or an OCI archive"
        raise ImageError("debootstrap needs root", why="it makes files that belong to other users", fix=fix)
    on_step(f"Debian {SUITE} by debootstrap, once: a minute or two")
    with cache.making(tree, is_replacing=is_fresh) as half:
        command = ["debootstrap", "--variant=minbase", f"--include={','.join(PACKAGES)}", SUITE, str(half), MIRROR]
        done = subprocess.run(
            command, capture_output=True, text=True, check=False, env={"PATH": _path(), "LANG": "C.UTF-8"}
        )
        if done.returncode:
            last = (done.stdout.strip().splitlines() or [f"exit code {done.returncode}"])[-1]
            raise ImageError(f"debootstrap failed: {last}", fix=f"is {MIRROR} reachable? A base can also be given")
        _normalise(half)
    return tree


def _path() -> str:
    return "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


def _normalise(root: Path) -> None:
    """Remove the difference between debootstraps: the day when passwords were last changed."""
    shadow = root / "etc" / "shadow"
    shadow.write_text(re.sub(r"(?m)^([^:]*:[^:]*):\d+:", r"\1:0:", shadow.read_text("ascii")), "ascii")


def _of_tree(tree: Path, key: str, cache: Cache) -> Base:
    python = find_python(tree)
    layer = cache.layer("base", key, lambda target: write_layer("base", tree, target, _is_unused))
    return Base(tree, (layer,), python)


def _is_unused(path: str) -> bool:
    is_mounted = path.partition("/")[0] in MOUNTED and "/" in path
    return is_mounted or _UNUSED.fullmatch(path) is not None


def find_python(tree: Path) -> str:
    """The newest Python of a root file system, 3.11 or later."""
    pythons = []
    for folder in ("usr/bin", "usr/local/bin"):
        for path in sorted((tree / folder).glob("python3.*")):
            if (match := re.fullmatch(r"python3\.(\d+)", path.name)) and int(match[1]) >= 11:
                pythons.append((int(match[1]), f"/{folder}/{path.name}"))
    if not pythons:
        fix = "choose one that has /usr/bin/python3.11, or leave `--base` out"
        raise ImageError(f"{tree} holds no Python 3.11 or newer", why="bireme runs on it", fix=fix)
    return max(pythons)[1]


def _of_archive(path: Path, cache: Cache) -> Base:
    """Keep an archive's layers as they are, and unpack them into a tree to run Python in."""
    image = read_archive(path)
    tree = cache.trees / f"archive-{key_of(*(layer.digest for layer in image.layers))[:16]}"
    if not tree.is_dir():
        with cache.making(tree) as half:
            for layer in image.layers:
                unpack(layer, half)
    return Base(tree, tuple(replace(layer, name="base") for layer in image.layers), find_python(tree))


def unpack(layer: Layer, root: Path) -> None:
    """Extract a layer over the files in `root`, and apply its whiteouts."""
    with layer.open() as f, tarfile.open(fileobj=f, mode="r|" if layer.media_type == TAR else "r|gz") as tar:
        # _replace and _inside check what a filter would, on any version of Python.
        tar.extraction_filter = getattr(tarfile, "fully_trusted_filter", None)
        for member in tar:
            folder, _, name = member.name.removeprefix("./").rstrip("/").rpartition("/")
            if name == ".wh..wh..opq":
                for child in _inside(root, f"{folder}/x").parent.glob("*"):
                    _remove(child)
            elif name.startswith(".wh."):
                _remove(_inside(root, f"{folder}/{name.removeprefix('.wh.')}"))
            elif not member.isdev():
                _replace(tar, member, root)


def _replace(tar: tarfile.TarFile, member: tarfile.TarInfo, root: Path) -> None:
    """Extract one file."""
    member.name = member.name.lstrip("/")
    member.mode &= 0o1777
    target = _inside(root, member.name)
    if member.islnk():
        _inside(root, f"{member.linkname}/x")
        if member.linkname.startswith("/"):
            # tarfile joins it to the root by os.path.join, which drops the root: it would link a file of the host.
            raise ImageError(f"the base has a hard link to {member.linkname}, which is outside of it", fix=_OTHER_BASE)
    # A link is replaced: extracting a directory onto it would set the mode of its target.
    if target.is_symlink() or not (member.isdir() and target.is_dir()):
        _remove(target)
    tar.extract(member, root, numeric_owner=True)


def _inside(root: Path, name: str) -> Path:
    """Where a name of a layer lies, never through a link out of the root: Debian's tarfile does not check."""
    place = root / name.lstrip("/")
    is_inside = Path(os.path.realpath(place.parent)).is_relative_to(os.path.realpath(root))
    if not is_inside or name.rpartition("/")[2] in ("", ".", ".."):
        raise ImageError(f"the base has {name}, which is outside of it", fix=_OTHER_BASE)
    return place


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)
