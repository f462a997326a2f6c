"""Power that fails again and again, and a person who types the right command each time it is back."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from tests.e2e.conftest import Cli, Done, lines_of, wait_until


def processes_with(home: Path) -> list[str]:
    """Command lines of live processes that were started, by whomever, by a `Cli` with this home."""
    mark, found = f"XDG_STATE_HOME={home}/".encode(), []
    for entry in Path("/proc").iterdir():
        try:
            if entry.name.isdecimal() and mark in (entry / "environ").read_bytes():
                found.append((entry / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace"))
        except OSError:
            continue  # it has just ended
    return found


def cut_power(cli: Cli, process: subprocess.Popen[str]) -> None:
    """Kill the runner; the kernel kills all that it has started, as a power cut would."""
    os.kill(process.pid, signal.SIGKILL)
    process.communicate()
    wait_until(lambda: not processes_with(cli.home), "all processes are gone", 20)


@dataclass(frozen=True)
class Machine:
    """A machine on which one job is to be done, however often its power fails."""

    cli: Cli
    job: Path
    output: Path

    def start(self) -> subprocess.Popen[str]:
        """Resume the job, or begin it where no trace of it is left."""
        if (self.output / "job.json").is_file():
            return self.cli.start("resume", self.output, "--json")
        return self.cli.start("train", self.job, "--output", self.output, "--json")

    def fail_when(self, is_time: Callable[[], object], what: str) -> None:
        """Start, and lose power at this moment."""
        process = self.start()
        wait_until(lambda: process.poll() is not None or is_time(), what)
        assert process.poll() is None, ("it ended before its power failed", process.communicate())
        cut_power(self.cli, process)

    def lives_for(self, seconds: float, *, from_training: bool) -> bool:
        """Start, and lose power so many seconds later, or after it trains; returns whether the job was done before."""
        process = self.start()
        if from_training:
            before = self.views()
            wait_until(lambda: process.poll() is not None or self.views() > before, "it trains")
        try:
            output = process.communicate(timeout=seconds)
        except subprocess.TimeoutExpired:
            cut_power(self.cli, process)
            return False
        assert process.returncode == 0, output
        return True

    def views(self) -> int:
        """How often training has begun so far."""
        return sum(line["event"] == "view" for line in lines_of(self.output / "metrics.jsonl"))

    def finish(self) -> Done:
        """Continue without being disturbed; returns at once where the job is done."""
        process = self.start()
        out, err = process.communicate(timeout=240)
        return Done(process.returncode, out, err)
