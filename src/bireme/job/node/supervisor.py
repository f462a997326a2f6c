"""Supervision of child processes: decide first, then act.

`RestartPolicy` decides, from a child's exit and the number of exits, whether and when it is restarted;
`ProcessGroup` starts, watches and ends real processes. A child that was killed, or exited before the job was over, is
restarted. One that exited with an error would do so again: its error is the job's. So is the death of one that has died
again and again while the job got no further, however long it ran each time.
"""

from __future__ import annotations

import contextlib
import math
import signal
import subprocess
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from bireme.core.files import storage_errors
from bireme.core.forking import Forked
from bireme.job.node.headway import NOWHERE, JobProgress
from bireme.job.node.log_budget import rotate
from bireme.spec.load import child_environment
from bireme.spec.model import Logs, Restarts

GRACE_S = 5.0
LINGER_S = 10.0
"""How long children may take to exit after the end of the job."""
SHORT_S = 2.0
"""After runs no longer than this, the delay before the next restart grows."""
MAX_DELAY_S = 5.0
LOGS_EVERY_S = 1.0


def describe_exit(code: int) -> str:
    if code >= 0:
        return f"exited with code {code}"
    try:
        return f"was killed by {signal.Signals(-code).name}"
    except ValueError:
        return f"was killed by signal {-code}"


def is_error(code: int) -> bool:
    """Whether a process exited with an error of its own; shells report signals as codes above 128."""
    return 0 < code <= 128


@dataclass(slots=True)
class RestartPolicy:
    """One child's restarts so far. No clock, no process."""

    rule: Restarts
    born_s: float = 0.0
    ended_s: list[float] = field(default_factory=list)
    reached: JobProgress = NOWHERE
    """The job's progress when the child last died."""
    in_vain: int = 0
    """Deaths since the job last got further."""
    _short: int = 0

    def again_s(self, now_s: float, reached: JobProgress = NOWHERE) -> float | None:
        """The time at which to restart a child that died now, at this progress; None if it has died too often."""
        self._short = self._short + 1 if now_s - self.born_s < SHORT_S else 0
        self.ended_s = [t for t in self.ended_s if now_s - t < self.rule.within_s] + [now_s]
        self.in_vain = 1 if reached.is_past(self.reached) else self.in_vain + 1
        self.reached = reached
        if self.is_too_often or self.in_vain > self.rule.limit:
            return None
        return now_s + (min(0.1 * 2**self._short, MAX_DELAY_S) if self._short else 0.0)

    @property
    def is_too_often(self) -> bool:
        return len(self.ended_s) > self.rule.limit


@dataclass(frozen=True, slots=True)
class Child:
    """What to start: a name for people, its command line and where its output goes."""

    name: str
    command: Sequence[str]
    log: Path
    mark: Path | None = None
    """An empty file on the machine's own disk that exists while the child takes part, for its node's readiness probe.

    The child makes it; the supervisor removes a dead child's, so an existing one is current.
    """


def put_mark(mark: Path | None) -> None:
    """Create a process's mark, if it has one; a failing disk is no reason to stop."""
    if mark is not None:
        with contextlib.suppress(OSError):
            mark.parent.mkdir(parents=True, exist_ok=True)
            mark.touch()


def take_mark(mark: Path | None) -> None:
    if mark is not None:
        with contextlib.suppress(OSError):
            mark.unlink(missing_ok=True)


Fork = Callable[[Sequence[str], int], Forked | None]
"""Forks a child with this command line and this file for its output."""


class ProcessGroup:
    """Started children; a context manager that ends them all."""

    def __init__(self, fork: Fork | None = None) -> None:
        """`fork` starts children that have loaded what they need, or none where it cannot."""
        self._fork = fork
        self._running: dict[str, subprocess.Popen[bytes] | Forked] = {}

    def __enter__(self) -> ProcessGroup:
        return self

    def __exit__(self, *_: object) -> None:
        self.end(GRACE_S)

    def start(self, child: Child) -> int:
        """Start a child in a session of its own, so that a terminal's Ctrl-C does not reach it; returns its pid."""
        with storage_errors(str(child.log)):
            child.log.parent.mkdir(parents=True, exist_ok=True)
            # Append: a restarted child continues its log, and `rotate` may truncate the file under it.
            out = child.log.open("ab")
        with out:
            forked = self._fork(child.command, out.fileno()) if self._fork is not None else None
            process = self._running[child.name] = forked or subprocess.Popen(
                child.command, stdin=subprocess.DEVNULL, stdout=out, stderr=out, start_new_session=True,
                env=child_environment(),
            )  # fmt: skip
        return process.pid

    def codes(self) -> dict[str, int | None]:
        return {name: process.poll() for name, process in self._running.items()}

    def end(self, grace_s: float) -> None:
        """Terminate all, wait up to `grace_s`, then kill the rest."""
        self._signal(signal.SIGTERM)
        deadline = time.monotonic() + grace_s
        for process in self._running.values():
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(max(0.0, deadline - time.monotonic()))
        self._signal(signal.SIGKILL)  # which ends paused processes too; SIGTERM waits until they continue
        for process in self._running.values():
            process.wait()

    def _signal(self, number: signal.Signals) -> None:
        for process in self._running.values():
            if process.poll() is None:
                process.send_signal(number)


@dataclass(frozen=True, slots=True)
class Ended:
    """A child that will not be restarted."""

    name: str
    code: int
    deaths: int = 1
    stuck_at: int | None = None
    """The round at which the job has stood since the first of these deaths, if that is the reason; -1 for none yet."""


class Supervisor:
    """Restarts children until their job is over."""

    def __init__(
        self,
        group: ProcessGroup,
        children: Sequence[Child],
        rule: Restarts,
        logs: Logs,
        reached: Callable[[], JobProgress] = lambda: NOWHERE,
    ) -> None:
        """Start all children; `reached` returns their job's progress."""
        self._group = group
        self._reached = reached
        self._logs = logs
        self._look_at_logs_s = 0.0
        self._children = {child.name: child for child in children}
        self._policies = {child.name: RestartPolicy(rule) for child in children}
        self._due_s: dict[str, float] = {}
        self._over_s = math.inf
        self.started: list[tuple[str, int, str]] = []
        """Names, process ids and reasons of starts; the caller clears it."""
        for child in children:
            self._start(child.name, "")

    def _start(self, name: str, why: str) -> None:
        self._policies[name].born_s = time.monotonic()
        take_mark(self._children[name].mark)
        self.started.append((name, self._group.start(self._children[name]), why))

    def look(self, is_over: Callable[[], bool]) -> Ended | bool:
        """Restart the children that are due; returns the child that ended the job, or whether all have exited."""
        if time.monotonic() >= self._look_at_logs_s:
            self._look_at_logs_s = time.monotonic() + LOGS_EVERY_S
            for child in self._children.values():
                rotate(child.log, self._logs)
        # Before `is_over` is called: a child that left because the job has ended did so after the final status was
        # written. Asked the other way round, one that leaves in between would be restarted.
        codes = self._group.codes()
        gone = {name: code for name, code in codes.items() if code is not None}
        for name, code in gone.items():
            take_mark(self._children[name].mark)
            # Before `is_over`: an error after the end of the job is still this node's exit code.
            if is_error(code):
                return Ended(name, code)
        if is_over():
            return len(gone) == len(codes) or self._has_lingered(time.monotonic())
        for name, code in gone.items():
            if not self._revive(name, code, time.monotonic()):
                policy = self._policies[name]
                if policy.is_too_often:
                    return Ended(name, code, len(policy.ended_s))
                return Ended(name, code, policy.in_vain, policy.reached.highest)
        return False

    def _has_lingered(self, now_s: float) -> bool:
        """End children that got no Stop, as they were starting or disconnected when the job ended."""
        self._over_s = min(self._over_s, now_s)
        if now_s - self._over_s < LINGER_S:
            return False
        self._group.end(GRACE_S)
        return True

    def _revive(self, name: str, code: int, now_s: float) -> bool:
        """Restart a child once it is due; False if it has died too often."""
        if name not in self._due_s:
            again = self._policies[name].again_s(now_s, self._reached())
            if again is None:
                return False
            self._due_s[name] = again
        if now_s >= self._due_s[name]:
            del self._due_s[name]
            self._start(name, describe_exit(code))
        return True
