"""Process lifetime on Linux: no child outlives its parent, and a reused process id is recognized."""

from __future__ import annotations

import ctypes
import os
import signal

from bireme.core.errors import Cancelled

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36


def libc() -> ctypes.CDLL:
    return ctypes.CDLL(None, use_errno=True)


def die_with(parent: int) -> None:
    """Ask the kernel to kill this process when its parent dies for any reason.

    The parent may have died before prctl took effect, so check it afterwards.
    """
    if libc().prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_PDEATHSIG)")
    if os.getppid() != parent:
        raise Cancelled("the process that started this one is gone")


def adopt_orphans(is_so: bool) -> bool:
    """Make descendants whose parents end children of this process, or of process 1 as usual; False if refused."""
    done: int = libc().prctl(_PR_SET_CHILD_SUBREAPER, int(is_so), 0, 0, 0)
    return done == 0


def stat_of(pid: int | str) -> list[str]:
    """The fields of /proc/PID/stat behind the name, so that state is the first; empty if the process is gone."""
    try:
        with open(f"/proc/{pid}/stat", encoding="ascii", errors="replace") as f:  # noqa: PTH123 - /proc
            return f.read().rpartition(")")[2].split()
    except OSError:
        return []


def birth_of(pid: int) -> str:
    """Boot id and start time, which differ for a later process with the same id; '' if the process is gone."""
    stat = stat_of(pid)
    try:
        with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as f:  # noqa: PTH123 - /proc
            return f"{f.read().strip()}/{stat[19]}" if stat else ""
    except OSError:
        return ""


def parent_of(pid: int) -> int:
    """The parent of a process, 0 if it is gone; a zombie has one."""
    stat = stat_of(pid)
    return int(stat[1]) if stat else 0


def is_alive(pid: int) -> bool:
    """Whether a process with this id runs (a zombie does not)."""
    return bool(stat := stat_of(pid)) and stat[0] not in ("Z", "X")
