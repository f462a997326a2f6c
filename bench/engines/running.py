"""Starts the processes of one measured run, waits for the trainers' answers, and leaves nothing behind.

The bench makes itself the reaper of orphans, so that daemons which leave their process group (Ray has some)
are still found among its descendants and ended. First politely, then not.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from engines.process import Task, family_costs

_PR_SET_CHILD_SUBREAPER = 36
TIMEOUT_S = 120.0
GRACE_S = 3.0
POLL_S = 0.02
BENCH = Path(__file__).resolve().parent.parent


class RunFailedError(Exception):
    """A run ended without a figure; the message says why."""


@dataclass(frozen=True)
class Part:
    """One process of a run."""

    role: str
    rank: int
    answers: bool = False
    environment: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Run:
    """One engine doing one work once."""

    python: str
    module: str
    parts: Sequence[Part]
    work: str
    warmup: int
    steps: int
    options: Mapping[str, str] = field(default_factory=dict)


def free_ports(count: int) -> list[int]:
    """Ports that are free right now."""
    with contextlib.ExitStack() as held:
        sockets = [held.enter_context(socket.socket()) for _ in range(count)]
        for sock in sockets:
            sock.bind(("127.0.0.1", 0))
        return [int(sock.getsockname()[1]) for sock in sockets]


def perform(run: Run, base: Mapping[str, str], ports: list[int], timeout_s: float = TIMEOUT_S) -> list[dict[str, Any]]:
    """Run to the end and return the answers in order of rank, or raise RunFailedError."""
    # A short name: Ray puts sockets under it, whose paths may have some hundred characters.
    started: list[tuple[Part, subprocess.Popen[bytes]]] = []
    with tempfile.TemporaryDirectory(prefix="bp-") as name, _no_survivors(started):
        folder = Path(name)
        for part in run.parts:
            started.append((part, _start(run, part, base, ports, folder)))
        waiting = {_answer_of(part, folder) for part in run.parts if part.answers}
        deadline = time.monotonic() + timeout_s
        while any(not path.exists() for path in waiting):
            _raise_if_dead(started, folder)
            if time.monotonic() > deadline:
                raise RunFailedError(f"no answer within {timeout_s:.0f} s; {_last_words(run.parts, folder)}")
            time.sleep(POLL_S)
        return [json.loads(path.read_text(encoding="utf-8")) for path in sorted(waiting)]


def _start(run: Run, part: Part, base: Mapping[str, str], ports: list[int], folder: Path) -> subprocess.Popen[bytes]:
    task = Task(
        role=part.role,
        rank=part.rank,
        work=run.work,
        warmup=run.warmup,
        steps=run.steps,
        ports=ports,
        root=os.getpid(),
        answer=str(_answer_of(part, folder)),
        folder=str(folder),
        options=dict(run.options),
    )
    with _log_of(part, folder).open("wb") as log:
        return subprocess.Popen(
            [run.python, "-m", f"engines.{run.module}", task.to_json()],
            env={**base, **part.environment},
            cwd=folder,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )


def _answer_of(part: Part, folder: Path) -> Path:
    return folder / f"answer-{part.role}-{part.rank}.json"


def _log_of(part: Part, folder: Path) -> Path:
    return folder / f"{part.role}-{part.rank}.log"


def _raise_if_dead(started: Sequence[tuple[Part, subprocess.Popen[bytes]]], folder: Path) -> None:
    for part, process in started:
        code = process.poll()
        if code is None or (code == 0 and (not part.answers or _answer_of(part, folder).exists())):
            continue
        raise RunFailedError(f"{part.role} {part.rank} ended with code {code}: {_last_words([part], folder)}")


def _last_words(parts: Sequence[Part], folder: Path) -> str:
    for part in reversed(parts):
        log = _log_of(part, folder)
        lines = log.read_text(encoding="utf-8", errors="replace").strip().splitlines() if log.exists() else []
        if lines:
            return f"{part.role} {part.rank} said last: {lines[-1].strip()[:300]}"
    return "no process wrote anything"


@contextlib.contextmanager
def _no_survivors(started: Sequence[tuple[Part, subprocess.Popen[bytes]]]) -> Iterator[None]:
    """End every process that was started inside, also when the body fails or is interrupted."""
    ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    before = set(family_costs(os.getpid()))
    try:
        yield
    finally:
        end_all(lambda: set(family_costs(os.getpid())) - before)
        for _, process in started:
            process.poll()  # it is gone; its object has to hear of it


def end_all(find: Callable[[], set[int]], grace_s: float = GRACE_S) -> None:
    """Terminate what `find` returns until nothing is left; kill what does not listen."""
    deadline = time.monotonic() + grace_s
    asked: set[int] = set()
    while left := find():
        is_late = time.monotonic() > deadline
        for pid in left:
            if is_late or pid not in asked:
                asked.add(pid)
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL if is_late else signal.SIGTERM)
            with contextlib.suppress(ChildProcessError):
                os.waitpid(pid, os.WNOHANG)
        time.sleep(POLL_S)
