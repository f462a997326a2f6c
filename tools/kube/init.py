"""The first process of a machine of the test cluster: makes its mounts, starts its daemons, reaps its orphans.

It runs as PID 1 of fresh mount, network, process, host name and IPC namespaces, from the plan in the file that
its one argument names. Afterwards it answers requests on a Unix socket in the machine's directory, one JSON
line each way: `start`, `signal` and `list` daemons. Killing it from outside ends all of the machine at once:
that is how a machine is switched off, and how a node is lost. Standard library only: it runs by its path.
"""

from __future__ import annotations

import json
import os
import select
import signal
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

CONTROL = "init.sock"


class Daemons:
    """What was started here: name, process id, and the exit code once it ended."""

    def __init__(self) -> None:
        self._pids: dict[str, int] = {}
        self._codes: dict[str, int] = {}

    def start(self, *, name: str, argv: list[str], log: str, fds: list[int]) -> int:
        """Start a daemon in a session of its own, its output appended to `log`."""
        if name in self._pids and name not in self._codes:
            raise ValueError(f"{name} runs already")
        with Path(log).open("ab") as output:
            process = subprocess.Popen(  # reaped by hand, with all other children
                argv, stdin=subprocess.DEVNULL, stdout=output, stderr=output, start_new_session=True, pass_fds=fds
            )
        self._codes.pop(name, None)
        self._pids[name] = process.pid
        process.returncode = 0  # or subprocess would warn of a child that was not waited for
        return process.pid

    def signal(self, *, name: str, number: int) -> None:
        """Send a signal to a daemon, if it still runs."""
        if name not in self._pids:
            raise ValueError(f"{name} was never started here")
        if name not in self._codes:
            os.kill(self._pids[name], number)

    def list(self) -> dict[str, dict[str, int | None]]:
        """Every daemon ever started here; `code` is None while it runs."""
        return {name: {"pid": pid, "code": self._codes.get(name)} for name, pid in self._pids.items()}

    def reap(self) -> None:
        """Take the exit codes of children that ended, and bury orphans (container shims leave many)."""
        names = {pid: name for name, pid in self._pids.items() if name not in self._codes}
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            if pid in names:
                self._codes[names[pid]] = os.waitstatus_to_exitcode(status)


def furnish(plan: dict[str, Any]) -> None:
    """Make the machine's own view of the file system: private places for what daemons write."""
    socket.sethostname(plan["hostname"])
    for place in plan["tmpfs"]:
        _mount("-t", "tmpfs", "-o", "mode=755", "tmpfs", place)
    for source, place in plan["binds"]:
        target = Path(place)
        if not target.exists():
            target.mkdir(parents=True)
        _mount("--bind", source, place)
    _mount("--make-rshared", "/")
    for path, value in plan["sysctls"].items():
        Path(path).write_text(value)


def _mount(*arguments: str) -> None:
    subprocess.run(["mount", *arguments], check=True)


def answer(daemons: Daemons, request: dict[str, Any]) -> object:
    """Do what was asked; the answer goes back as JSON."""
    verb = request.pop("do")
    if verb == "start":
        return daemons.start(**request)
    if verb == "signal":
        daemons.signal(**request)
        return None
    if verb == "list":
        return daemons.list()
    raise ValueError(f"no such request: {verb}")


def converse(daemons: Daemons, connection: socket.socket) -> None:
    """Read one request, answer it. Whatever is wrong with it, PID 1 continues."""
    connection.settimeout(10)
    try:
        with connection, connection.makefile("rwb") as stream:
            try:
                reply = {"ok": answer(daemons, json.loads(stream.readline()))}
            except (OSError, ValueError, KeyError, TypeError) as e:
                reply = {"error": f"{type(e).__name__}: {e}"}
            stream.write(json.dumps(reply).encode() + b"\n")
    except OSError as e:
        print(f"init: a request was lost: {e}", file=sys.stderr, flush=True)


def serve(directory: Path) -> None:
    """Answer requests and reap children, for ever."""
    os.chdir(directory)  # a socket's path may have 107 bytes at most; a relative one always fits
    Path(CONTROL).unlink(missing_ok=True)
    server = socket.socket(socket.AF_UNIX)
    server.bind(CONTROL)
    server.listen(16)
    os.chdir("/")
    woken, wake = socket.socketpair()
    wake.setblocking(False)
    signal.set_wakeup_fd(wake.fileno())
    signal.signal(signal.SIGCHLD, lambda number, frame: None)
    daemons = Daemons()
    while True:
        ready, _, _ = select.select([server, woken], [], [])
        if woken in ready:
            woken.recv(4096)
            daemons.reap()
        if server in ready:
            converse(daemons, server.accept()[0])


def main() -> None:
    """Become the machine that the plan describes."""
    plan = Path(sys.argv[1])
    furnish(json.loads(plan.read_text()))
    serve(plan.parent)


if __name__ == "__main__":
    main()
