"""The base of an image: a Debian made by debootstrap, a directory with a root file system, or an OCI archive.

Each becomes a tree to run Python in and one or more layers. A debootstrapped Debian is kept in the cache, by the suite,
the mirror and the packages asked for; `is_fresh` makes it anew, for newer packages.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import tarfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from bireme.core.errors import ImageError, MissingError
from bireme.images.archive import read_archive
from bireme.images.layers import TAR, Cache, ImageLayer, key_of, key_of_tree, write_tar

SUITE = "bookworm"
MIRROR = "http://deb.debian.org/debian"
PACKAGES = ("ca-certificates", "python3")
SYSTEM_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
MOUNTED = ("proc", "tmp", "dev", "sys", "run")
"""Directories whose contents are never part of a layer."""
# Left out: files that only apt, people or a boot of the machine use. Licences stay.
_UNUSED = re.compile(
    r"usr/share/(?:man|info|locale|lintian|doc-base|bug|bash-completion)/.*"
    r"|usr/share/doc/[^/]+/(?!copyright$).*|var/cache/.+|var/lib/apt/lists/.+|var/log/.+|debootstrap"
    r"|etc/(?:machine-id|hostname|resolv\.conf|.*-)|var/lib/dpkg/.*-old|.*/__pycache__"
)
_STACK = """
mount -t overlay overlay -o "lowerdir=$LOWER,upperdir=$UPPER,workdir=$WORK$MORE" "$ROOT"
mount -t proc proc "$ROOT/proc"
mount -t tmpfs tmpfs "$ROOT/tmp"
mount --rbind /dev "$ROOT/dev"
exec chroot "$ROOT" /usr/bin/env -i "$@"
"""


@dataclass(frozen=True, slots=True)
class BaseImage:
    """A root file system that has Python."""

    tree: Path
    layers: tuple[ImageLayer, ...]
    python: str
    """Path of the interpreter: /usr/bin/python3.11; its `version` is then 3.11."""

    @property
    def version(self) -> str:
        return self.python.rpartition("python")[2]


def open_base(source: str, cache: Cache, *, is_fresh: bool = False, on_step: Callable[[str], None]) -> BaseImage:
    """Find or make the base: `debootstrap`, a directory, or an OCI archive."""
    path = Path(source).absolute()
    if source == "debootstrap":
        made_from = key_of(SUITE, MIRROR, *PACKAGES)
        path, _ = cache.folder("debian", made_from, lambda half: _debootstrap(half, on_step), is_fresh=is_fresh)
    elif path.is_file():
        return _of_archive(path, cache)
    elif not path.is_dir():
        raise ImageError(f"there is no base {source}", fix="name a directory, an OCI archive, or `debootstrap`")
    python, key = find_python(path), key_of_tree(path, _is_unused)
    layer = cache.layer("base", key, lambda half: write_tar(path, half / "layer.tar", _is_unused, keeps_modes=True))
    return BaseImage(path, (layer,), python)


def _debootstrap(tree: Path, on_step: Callable[[str], None]) -> None:
    if shutil.which("debootstrap", path=SYSTEM_PATH) is None:
        fix = "`apt-get install debootstrap`, or give `--base` a directory or an OCI archive"
        raise MissingError("debootstrap is not installed", fix=fix)
    if os.geteuid() != 0:
        fix = "run as root, or give `--base` a directory or an OCI archive"
        raise ImageError("debootstrap needs root", why="it makes files that belong to other users", fix=fix)
    on_step(f"Debian {SUITE} by debootstrap, once: a minute or two")
    command = ["debootstrap", "--variant=minbase", f"--include={','.join(PACKAGES)}", SUITE, str(tree), MIRROR]
    environment = {"PATH": SYSTEM_PATH, "LANG": "C.UTF-8"}
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    if done.returncode:
        last = (done.stdout.strip().splitlines() or [f"exit code {done.returncode}"])[-1]
        raise ImageError(f"debootstrap failed: {last}", fix=f"is {MIRROR} reachable? A base can also be given")
    # The difference between two debootstraps: the day when passwords were last changed.
    shadow = tree / "etc" / "shadow"
    shadow.write_text(re.sub(r"(?m)^([^:]*:[^:]*):\d+:", r"\1:0:", shadow.read_text("ascii")), "ascii")


def _is_unused(path: str) -> bool:
    is_mounted = path.partition("/")[0] in MOUNTED and "/" in path
    return is_mounted or _UNUSED.fullmatch(path) is not None


def find_python(tree: Path) -> str:
    """The newest Python of a root file system, 3.11 or later."""
    paths = (*(tree / "usr/bin").glob("python3.*"), *(tree / "usr/local/bin").glob("python3.*"))
    minors = {path: int(minor) for path in paths if (minor := path.name.removeprefix("python3.")).isdecimal()}
    if max(minors.values(), default=0) < 11:
        fix = "choose one that has /usr/bin/python3.11, or leave `--base` out"
        raise ImageError(f"{tree} holds no Python 3.11 or newer", why="bireme runs on it", fix=fix)
    return f"/{max(minors, key=lambda path: (minors[path], str(path))).relative_to(tree)}"


def run_inside(trees: list[Path], upper: Path, command: list[str], environment: Mapping[str, str]) -> None:
    """Run a command on top of trees (lowest first); the files that it writes land in `upper`.

    The trees are stacked by overlayfs in namespaces of the command's own, so nothing is mounted on the machine itself.
    That needs root, or a kernel that lets users make namespaces.
    """
    root, work = upper.with_name(upper.name + ".root"), upper.with_name(upper.name + ".work")
    for directory in (upper, root, work):
        directory.mkdir(parents=True, exist_ok=True)
    variables = {
        "LOWER": ":".join(str(tree).replace("\\", r"\\").replace(":", r"\:") for tree in reversed(trees)),
        "UPPER": str(upper),
        "WORK": str(work),
        "ROOT": str(root),
        "MORE": "",
        "PATH": SYSTEM_PATH,
    }
    spaces = ["unshare", "--mount", "--pid", "--fork", "--kill-child", "--net", "--ipc", "--uts"]
    if os.geteuid() != 0:
        spaces.append("--map-root-user")
        variables["MORE"] = ",userxattr"
    pairs = [f"{name}={value}" for name, value in environment.items()]
    whole = [*spaces, "sh", "-euc", _STACK, "sh", *pairs, *command]
    try:
        done = subprocess.run(whole, env=variables, capture_output=True, text=True, check=False)
    except FileNotFoundError as e:
        raise MissingError("`unshare` is not installed", fix="install util-linux and coreutils") from e
    for directory in (root, work):
        shutil.rmtree(directory, ignore_errors=True)
    if done.returncode:
        last = ((done.stderr or done.stdout).strip().splitlines() or [f"exit code {done.returncode}"])[-1]
        if last.startswith(("unshare:", "mount:")):
            why = "building runs the image's own Python in namespaces, with its layers stacked by overlayfs"
            fix = "run as root, or where that cannot be, build deploy/Dockerfile with docker, podman or buildah"
            raise ImageError(f"cannot enter the image: {last}", why=why, fix=fix)
        what = f"`{' '.join(command)[:80]}` failed within the image: {last}"
        raise ImageError(what, why=done.stderr[-2000:].strip())


def _of_archive(path: Path, cache: Cache) -> BaseImage:
    """Keep an archive's layers as they are, and unpack them into a tree to run Python in."""
    image = read_archive(path)

    def fill(half: Path) -> None:
        for layer in image.layers:
            unpack(layer, half)

    tree, _ = cache.folder("archive", key_of(*(layer.digest for layer in image.layers)), fill)
    return BaseImage(tree, tuple(replace(layer, name="base") for layer in image.layers), find_python(tree))


def unpack(layer: ImageLayer, root: Path) -> None:
    """Extract a layer over the files in `root`, and apply its whiteouts."""
    with layer.path.open("rb") as f:
        f.seek(layer.offset)
        with tarfile.open(fileobj=f, mode="r|" if layer.media_type == TAR else "r|gz") as tar:
            # What a filter would check is checked here, on any version of Python.
            tar.extraction_filter = getattr(tarfile, "fully_trusted_filter", None)
            for member in tar:
                folder, _, name = member.name.removeprefix("./").rstrip("/").rpartition("/")
                if name == ".wh..wh..opq":
                    for child in _inside(root, f"{folder}/x").parent.glob("*"):
                        _remove(child)
                elif name.startswith(".wh."):
                    _remove(_inside(root, f"{folder}/{name.removeprefix('.wh.')}"))
                elif not member.isdev() and (folder, name) not in (("", ""), ("", ".")):
                    _extract(tar, member, root)


def _extract(tar: tarfile.TarFile, member: tarfile.TarInfo, root: Path) -> None:
    """Extract one file in the place of another."""
    member.name = member.name.lstrip("/")
    member.mode &= 0o1777
    target = _inside(root, member.name)
    if member.islnk():
        # tarfile joins the name to the root by os.path.join, which drops the root before an absolute one.
        if member.linkname.startswith("/"):
            raise _outside(f"a hard link to {member.linkname}")
        _inside(root, f"{member.linkname}/x")
    # A link is replaced: extracting a directory onto it would set the mode of its target.
    if target.is_symlink() or not (member.isdir() and target.is_dir()):
        _remove(target)
    tar.extract(member, root, numeric_owner=True)


def _inside(root: Path, name: str) -> Path:
    """Where a name of a layer lies, never through a link out of the root: Debian's tarfile does not check."""
    place = root / name.lstrip("/")
    is_inside = Path(os.path.realpath(place.parent)).is_relative_to(os.path.realpath(root))
    if not is_inside or name.rpartition("/")[2] in ("", ".", ".."):
        raise _outside(name)
    return place


def _outside(name: str) -> ImageError:
    return ImageError(f"the base has {name}, which is outside of it", fix="take another base")


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)
