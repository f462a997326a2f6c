"""Looking after child processes: decide first, then act.

`decide` is a pure function of what is known about the children; `Family` starts, watches and
ends them for real. For now one child's failure ends the others: nobody is started again.
"""

from __future__ import annotations

import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from bireme.core.files import storage_errors
from bireme.spec.load import child_environment

Verdict = Literal["go-on", "all-done", "end-others"]
GRACE_S = 5.0


def decide(codes: Mapping[str, int | None]) -> Verdict:
    """What the exit codes so far mean; None is a child that runs."""
    if any(code not in (None, 0) for code in codes.values()):
        return "end-others"
    return "all-done" if all(code == 0 for code in codes.values()) else "go-on"


def describe_exit(code: int) -> str:
    """An exit code in words."""
    if code >= 0:
        return f"exited with code {code}"
    try:
        return f"was killed by {signal.Signals(-code).name}"
    except ValueError:
        return f"was killed by signal {-code}"


@dataclass(frozen=True, slots=True)
class Child:
    """What to start: a name for people, its command line and where its output goes."""

    name: str
    command: Sequence[str]
    log: Path


class Family:
    """Started children; a context manager that leaves none behind."""

    def __init__(self) -> None:
        self._running: dict[str, subprocess.Popen[bytes]] = {}

    def __enter__(self) -> Family:
        return self

    def __exit__(self, *_: object) -> None:
        self.end(GRACE_S)

    def start(self, child: Child) -> int:
        """Start a child in a session of its own, so that a terminal's Ctrl-C does not reach it; returns its pid."""
        with storage_errors(str(child.log)):
            child.log.parent.mkdir(parents=True, exist_ok=True)
            out = child.log.open("ab")
        with out:
            process = subprocess.Popen(
                child.command,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=out,
                start_new_session=True,
                env=child_environment(),
            )
        self._running[child.name] = process
        return process.pid

    def codes(self) -> dict[str, int | None]:
        """Exit codes by name; None while a child runs."""
        return {name: process.poll() for name, process in self._running.items()}

    def end(self, grace_s: float) -> None:
        """Ask all to leave, wait a little, then make them."""
        self._signal(signal.SIGTERM)
        deadline = time.monotonic() + grace_s
        for process in self._running.values():
            try:
                process.wait(max(0.0, deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                continue
        self._signal(signal.SIGKILL)
        for process in self._running.values():
            process.wait()

    def _signal(self, number: signal.Signals) -> None:
        for process in self._running.values():
            if process.poll() is None:
                process.send_signal(number)
