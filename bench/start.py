"""How long people and processes wait before anything happens: `./dev bench start [--reps N] [--json]`.

Measured from outside, with fresh processes: the CLI's help, a pserver from its start to its first
answer, a trainer from its start until the coordinator counts it as joined. Files are warm (the
first, discarded repetition reads them) and Numba's cache is filled; packing a shard is measured apart.
"""

from __future__ import annotations

import argparse
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from machine import machine_facts, report, summarise

from bireme.core.errors import BiremeError
from bireme.demo.prepare import prepare
from bireme.job.coordination.messages import Address, GetStatus, ask
from bireme.job.status import JobStatus

bireme = [sys.executable, "-m", "bireme"]
PATIENCE_S = 60.0
POLL_S = 0.002


def wait_for(is_there: Callable[[], bool], what: str) -> None:
    """Ask again and again, every 2 ms, until something is there."""
    deadline = time.monotonic() + PATIENCE_S
    while not is_there():
        if time.monotonic() > deadline:
            raise SystemExit(f"{what} did not happen within {PATIENCE_S:.0f} s")
        time.sleep(POLL_S)


def free_port() -> int:
    """A port that is free right now."""
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        port: int = sock.getsockname()[1]
        return port


def is_listening(port: int) -> bool:
    """Whether a connection to the port opens."""
    with socket.socket() as sock:
        return sock.connect_ex(("127.0.0.1", port)) == 0


def status_of(port: int) -> JobStatus:
    """The status from the coordinator on this port; an empty one while it does not answer."""
    try:
        return ask(Address(host="127.0.0.1", ports=(port,)), GetStatus())
    except (BiremeError, OSError):
        return JobStatus()


@contextmanager
def running(command: list[str], cwd: Path, environment: dict[str, str]) -> Iterator[None]:
    """A process that is ended, whatever happens."""
    nowhere = subprocess.DEVNULL
    process = subprocess.Popen(command, cwd=cwd, env=environment, stdout=nowhere, stderr=nowhere)
    try:
        yield
    finally:
        process.terminate()
        process.wait()


def time_command(command: list[str]) -> float:
    """Seconds from start to exit."""
    begun = time.perf_counter()
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    return time.perf_counter() - begun


def time_pserver(cwd: Path, environment: dict[str, str]) -> tuple[float, float]:
    """Seconds until a pserver's port opens, and until it has answered a question."""
    port = free_port()
    begun = time.perf_counter()
    with running([*bireme, "pserver", f"--port={port}"], cwd, environment):
        wait_for(lambda: is_listening(port), "a pserver's first accept")
        opened = time.perf_counter() - begun
        wait_for(lambda: bool(status_of(port).phase), "a pserver's first answer")
        return opened, time.perf_counter() - begun


def time_trainer(cwd: Path, environment: dict[str, str]) -> float:
    """Seconds until a trainer has read its config and data and joined; a second one is never started."""
    port = free_port()
    with running([*bireme, "pserver", f"--port={port}", "--num_gradient_servers=2"], cwd, environment):
        wait_for(lambda: bool(status_of(port).phase), "a pserver's first answer")
        begun = time.perf_counter()
        flags = [f"--port={port}", "--config=trainer_config.lr.py", "--save_dir=models"]
        with running([*bireme, "trainer", *flags], cwd, environment):
            wait_for(lambda: bool(status_of(port).trainers), "a trainer's joining")
            return time.perf_counter() - begun


def measure(reps: int, folder: Path) -> dict[str, dict[str, Any]]:
    """Every figure, each from `reps` repetitions after one that is thrown away."""
    prepare(folder / "job")
    shard = folder / "job" / "0"
    for script in (folder / "job" / "quick_start").glob("*.py"):
        shutil.copy(script, shard)
    cache = folder / "cache"
    environment = {**os.environ, "XDG_CACHE_HOME": str(cache), "XDG_STATE_HOME": str(folder / "state")}
    taken: dict[str, list[float]] = {}

    def note(label: str, seconds: float, rep: int) -> None:
        if rep > 0:
            taken.setdefault(label, []).append(seconds)

    for rep in range(reps + 1):
        note("python -c pass, s", time_command([sys.executable, "-c", "pass"]), rep)
        note("bireme --help, s", time_command([*bireme, "--help"]), rep)
        opened, answered = time_pserver(folder, environment)
        note("pserver: start to first accept, s", opened, rep)
        note("pserver: start to first answer, s", answered, rep)
        shutil.rmtree(cache, ignore_errors=True)
        note("trainer: start to joined, shard to be packed, s", time_trainer(shard, environment), rep)
        note("trainer: start to joined, shard packed before, s", time_trainer(shard, environment), rep)
    return {label: summarise(samples) for label, samples in taken.items()}


def main() -> None:
    """Parse, measure, print."""
    parser = argparse.ArgumentParser(description="Start-up times of the command line and of the processes.")
    parser.add_argument("--reps", type=int, default=7, help="repetitions of each measurement (default 7)")
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")
    given = parser.parse_args()
    facts = machine_facts()
    with tempfile.TemporaryDirectory(prefix="bireme-bench-") as folder:
        figures = measure(max(given.reps, 1), Path(folder))
    report("start", facts, figures, as_json=given.json)


if __name__ == "__main__":
    main()
