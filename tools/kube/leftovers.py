"""What a test cluster may have left on the host: nothing, and this is where that is checked.

Machines are namespaces without a name, so most of it cannot outlive them; this looks all the same, at
processes, namespaces, mounts, control groups, links and firewall chains.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

from . import cgroups

KINDS = ("net", "mnt", "pid", "uts", "ipc")
# What the cluster's parts call their own, should any of it land in the host's network.
LINK = re.compile(r"^(veth|cni\d|br0$|n\d+$)")
CHAIN = re.compile(r"^:((KUBE|CNI|BIREME)-\S+)")


@contextlib.contextmanager
def watched(pids: list[int]) -> Iterator[set[str]]:
    """The namespaces of some processes, kept from being forgotten: their numbers are given away again at once."""
    with contextlib.ExitStack() as stack:
        found = set()
        for pid in pids:
            for kind in KINDS:
                with contextlib.suppress(OSError):
                    stack.enter_context(Path(f"/proc/{pid}/ns/{kind}").open())
            found |= _namespaces(pid)
        yield found


def _namespaces(pid: int) -> set[str]:
    found = set()
    for kind in KINDS:
        with contextlib.suppress(OSError):
            found.add(str(Path(f"/proc/{pid}/ns/{kind}").readlink()))
    return found if pid == os.getpid() else found - _namespaces(os.getpid())


def ground() -> list[str]:
    """The host's links and firewall chains that look like a cluster's; noted before the start, to compare."""
    links = [f"link {p.name}" for p in Path("/sys/class/net").iterdir() if LINK.match(p.name)]
    if shutil.which("iptables-save") is None:
        return sorted(links)
    done = subprocess.run(["iptables-save"], capture_output=True, text=True, check=False)
    chains = [f"firewall chain {m[1]}" for line in done.stdout.splitlines() if (m := CHAIN.match(line))]
    return sorted({*links, *chains})


def find(run: Path, group: str, spaces: set[str], before: list[str]) -> list[str]:
    """Everything that is still there, one line each."""
    left = [f"control group {d}" for d in cgroups.existing(group)]
    mounts = Path("/proc/self/mountinfo").read_text().splitlines()
    left += [f"mount {line.split()[4]}" for line in mounts if f"{run}/" in f"{line.split()[4]}/"]
    left += _processes(run, spaces)
    return left + [thing for thing in ground() if thing not in before]


def _processes(run: Path, spaces: set[str]) -> list[str]:
    left = []
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit() or int(entry.name) == os.getpid():
            continue
        try:
            arguments = (entry / "cmdline").read_bytes().split(b"\0")
        except OSError:
            continue
        inner = _namespaces(int(entry.name)) & spaces
        is_machine = any(a.startswith(f"{run}/".encode()) and a.endswith(b"machine.json") for a in arguments)
        if inner or is_machine:
            shown = b" ".join(arguments).decode(errors="replace")[:80]
            left.append(f"process {entry.name} ({shown}) {' '.join(sorted(inner))}".rstrip())
    return left
