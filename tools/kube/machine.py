"""One machine of the test cluster, seen from the host: boot it, give it daemons, look inside, switch it off.

A machine is a set of namespaces with `init.py` as its first process. Nothing of it is bound anywhere on the
host: no named network namespace, no mount. So the kernel clears all of it away when that process is killed.
Which process that is, is read from /proc each time, by the plan file in its arguments: there is no record that
could be out of date.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bireme.core.errors import ProcessError

INIT = Path(__file__).with_name("init.py")
NAMESPACES = ("--net", "--mount", "--pid", "--uts", "--ipc")
# Daemons get this and nothing of the caller's: a proxy variable, for one, would send image pulls astray.
ENVIRONMENT = {
    "PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
    "HOME": "/root",
    "LANG": "C.UTF-8",
}


def wait_for(what: str, check: Callable[[], bool], *, seconds: float, every: float = 0.1) -> None:
    """Look again and again until `check` holds; say what was waited for when it never does."""
    end = time.monotonic() + seconds
    while not check():
        if time.monotonic() > end:
            raise ProcessError(f"waited {seconds:g} s in vain: {what}", fix="`./dev kube status` names the logs")
        time.sleep(every)


def tail(log: Path, lines: int = 12) -> str:
    """The last lines of a log, indented, for an error message."""
    if not log.exists():
        return "    (no log)"
    text = log.read_text(errors="replace").splitlines()[-lines:]
    return "\n".join(f"    {line[:300]}" for line in text) or "    (an empty log)"


@dataclass(frozen=True)
class Machine:
    """A machine by its name, its address on the cluster's wire, and the directory that is its disk."""

    name: str
    address: str
    directory: Path

    @property
    def plan(self) -> Path:
        """The file that its first process reads, and by whose path it is found."""
        return self.directory / "machine.json"

    def log(self, daemon: str) -> Path:
        """Where a daemon's output goes."""
        return self.directory.parent / "logs" / f"{self.name}-{daemon}.log"

    def boot(self, *, binds: dict[str, str], fds: Sequence[int] = ()) -> None:
        """Make the namespaces and start the first process; returns once it answers."""
        for part in ("varlib", "varlog"):
            (self.directory / part).mkdir(parents=True, exist_ok=True)
        self.plan.write_text(json.dumps(self._plan(binds)))
        isolate = ["unshare", *NAMESPACES, "--propagation=private", "--fork", "--kill-child", "--mount-proc", "--"]
        with self.log("init").open("ab") as log:
            process = subprocess.Popen(
                [*isolate, sys.executable, "-I", "-S", str(INIT), str(self.plan)],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=ENVIRONMENT,
                start_new_session=True,
                pass_fds=fds,
            )

        def answers() -> bool:
            if process.poll() is not None:
                raise ProcessError(f"machine {self.name} did not start:\n{tail(self.log('init'))}")
            return self.is_on()

        wait_for(f"machine {self.name} to start", answers, seconds=20, every=0.02)
        process.returncode = 0  # it stays when we leave; do not warn about that

    def _plan(self, binds: dict[str, str]) -> dict[str, object]:
        kept = {"/var/lib": self.directory / "varlib", "/var/log": self.directory / "varlog"}
        sysctls = {}
        # A kubelet sets these three for the whole kernel; it gets files of its own to write to instead.
        for key, value in {"vm/overcommit_memory": "1", "kernel/panic": "10", "kernel/panic_on_oops": "1"}.items():
            file = self.directory / key.replace("/", ".")
            file.write_text(value)
            sysctls[f"/proc/sys/{key}"] = file
        everything = {**kept, **{k: Path(v) for k, v in binds.items()}, **sysctls}
        return {
            "hostname": self.name,
            "tmpfs": ["/run", "/srv"],
            "binds": [[str(source), place] for place, source in everything.items()],
            "sysctls": {"/proc/sys/net/ipv4/ip_forward": "1"},
        }

    def pid(self) -> int | None:
        """The host's number of the first process, or None where the machine is off."""
        return next((pid for pid in self.processes() if _is_first(pid)), None)

    def processes(self) -> Iterable[int]:
        """The first process and the `unshare` that made it."""
        wanted = str(self.plan).encode()
        for entry in Path("/proc").iterdir():
            if entry.name.isdigit() and wanted in _arguments(entry):
                yield int(entry.name)

    def is_on(self) -> bool:
        """Whether its first process answers."""
        if self.pid() is None:
            return False
        try:
            self.daemons()
        except (ProcessError, OSError):
            return False
        return True

    def off(self) -> None:
        """Switch it off: every process, mount and link of it is gone when this returns."""
        first = self.pid()
        for pid in [*([first] if first else []), *self.processes()]:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

            def is_gone(pid: int = pid) -> bool:
                with contextlib.suppress(ChildProcessError):  # bury it where this very process had started it
                    os.waitpid(pid, os.WNOHANG)
                return not _is_alive(pid)

            wait_for(f"machine {self.name} to end", is_gone, seconds=20, every=0.01)

    def ask(self, **request: Any) -> Any:
        """One request to the first process."""
        directory = os.open(self.directory, os.O_PATH)
        try:
            with socket.socket(socket.AF_UNIX) as connection:
                connection.settimeout(15)
                connection.connect(f"/proc/self/fd/{directory}/init.sock")
                with connection.makefile("rwb") as stream:
                    stream.write(json.dumps(request).encode() + b"\n")
                    stream.flush()
                    reply = json.loads(stream.readline() or b'{"error": "it closed the connection"}')
        except (ConnectionError, FileNotFoundError) as e:
            raise ProcessError(f"machine {self.name} does not answer: {e}", fix="`./dev kube status` shows more") from e
        finally:
            os.close(directory)
        if "error" in reply:
            raise ProcessError(f"machine {self.name}: {reply['error']}")
        return reply["ok"]

    def start(self, daemon: str, argv: Sequence[str], *, fds: Sequence[int] = ()) -> None:
        """Start a daemon that lives as long as the machine."""
        self.ask(do="start", name=daemon, argv=list(argv), log=str(self.log(daemon)), fds=list(fds))

    def stop(self, daemon: str, number: int = signal.SIGKILL) -> None:
        """End one daemon and wait until it is gone; what it started runs on."""
        self.ask(do="signal", name=daemon, number=int(number))
        wait_for(f"{self.name}'s {daemon} to end", lambda: self.daemons()[daemon]["code"] is not None, seconds=90)

    def daemons(self) -> dict[str, dict[str, int | None]]:
        """What was started here; `code` is None for what still runs."""
        answer: dict[str, dict[str, int | None]] = self.ask(do="list")
        return answer

    def check(self) -> None:
        """Name a daemon that died, with the last lines of its log."""
        for name, facts in self.daemons().items():
            if facts["code"] is not None:
                raise ProcessError(
                    f"{name} of {self.name} ended with code {facts['code']}; its last lines:\n{tail(self.log(name))}",
                    fix=f"all of it: {self.log(name)}",
                )

    def inside(self, *argv: str, only_net: bool = False) -> list[str]:
        """The command line that runs a command in this machine."""
        pid = self.pid()
        if pid is None:
            raise ProcessError(f"machine {self.name} is off", fix=f"`./dev kube restart-node {self.name}`")
        spaces = ["--net"] if only_net else NAMESPACES
        return ["nsenter", "--target", str(pid), *spaces, "--", *argv]

    def run(self, *argv: str, stdin: str = "", only_net: bool = False) -> str:
        """Run a command in this machine to its end, and return what it printed."""
        done = subprocess.run(
            self.inside(*argv, only_net=only_net), input=stdin, capture_output=True, text=True, check=False
        )
        if done.returncode:
            raise ProcessError(f"on {self.name}: `{' '.join(argv)[:200]}` failed: {done.stderr.strip()[-600:]}")
        return done.stdout


def _arguments(entry: Path) -> list[bytes]:
    try:
        return (entry / "cmdline").read_bytes().split(b"\0")
    except OSError:
        return []


def _is_first(pid: int) -> bool:
    try:
        status = Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return False
    numbers = next((line.split()[1:] for line in status.splitlines() if line.startswith("NSpid:")), [])
    return len(numbers) > 1 and numbers[-1] == "1"


def _is_alive(pid: int) -> bool:
    """Whether a process runs; one that only waits to be reaped does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False
