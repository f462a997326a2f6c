"""Run a command within an image that is being built, and keep the files that it writes.

The trees of the layers so far are stacked with overlayfs in a mount namespace of its own; the command sees them as
its root and writes to a tree on top. Nothing is mounted on the machine itself. Needs root, or a kernel that lets
users make namespaces.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path

from bireme.core.errors import ImageError, MissingError

_STACK = """
mount -t overlay overlay -o "lowerdir=$LOWER,upperdir=$UPPER,workdir=$WORK$MORE" "$ROOT"
mount -t proc proc "$ROOT/proc"
mount -t tmpfs tmpfs "$ROOT/tmp"
mount --rbind /dev "$ROOT/dev"
exec chroot "$ROOT" /usr/bin/env -i "$@"
"""
MOUNTED = ("proc", "tmp", "dev", "sys", "run")
"""Directories whose contents are never part of a layer."""


def run_inside(trees: list[Path], upper: Path, command: list[str], environment: Mapping[str, str]) -> str:
    """Run a command on top of trees (lowest first) and return its output; its files land in `upper`."""
    _need_tools("unshare", "mount", "chroot")
    root, work = upper.with_name(upper.name + ".root"), upper.with_name(upper.name + ".work")
    for directory in (upper, root, work):
        directory.mkdir(parents=True, exist_ok=True)
    variables = {
        "LOWER": ":".join(str(tree).replace("\\", r"\\").replace(":", r"\:") for tree in reversed(trees)),
        "UPPER": str(upper),
        "WORK": str(work),
        "ROOT": str(root),
        "MORE": "",
        "PATH": "/usr/sbin:/usr/bin:/sbin:/bin",
    }
    spaces = ["unshare", "--mount", "--pid", "--fork", "--kill-child", "--net", "--ipc", "--uts"]
    if os.geteuid() != 0:
        spaces.append("--map-root-user")
        variables["MORE"] = ",userxattr"
    pairs = [f"{name}={value}" for name, value in environment.items()]
    done = subprocess.run(
        [*spaces, "sh", "-euc", _STACK, "sh", *pairs, *command],
        env=variables,
        capture_output=True,
        text=True,
        check=False,
    )
    for directory in (root, work):
        shutil.rmtree(directory, ignore_errors=True)
    if done.returncode:
        raise _explain(command, done)
    return done.stdout


def _need_tools(*names: str) -> None:
    for name in names:
        if shutil.which(name, path=os.defpath + ":/usr/sbin:/sbin") is None:
            raise MissingError(f"`{name}` is not installed", fix="install util-linux and coreutils")


def _explain(command: list[str], done: subprocess.CompletedProcess[str]) -> ImageError:
    last = (done.stderr or done.stdout).strip().splitlines()[-1:] or [f"exit code {done.returncode}"]
    if any(last[0].startswith(f"{tool}:") for tool in ("unshare", "mount")):
        why = "building runs the image's own Python in namespaces, with its layers stacked by overlayfs"
        fix = "run as root, or where that cannot be, build deploy/Dockerfile with docker, podman or buildah"
        return ImageError(f"cannot enter the image: {last[0]}", why=why, fix=fix)
    return ImageError(f"`{' '.join(command)[:80]}` failed within the image: {last[0]}", why=done.stderr[-2000:].strip())
