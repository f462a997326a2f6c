from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from engines.process import costs_between, family_costs
from engines.running import BENCH, Part, Run, RunFailedError, end_all, free_ports, perform

Go = Callable[..., list[dict[str, object]]]
SCRIPT = """
import subprocess, sys, time
from engines.process import answer, begin
task = begin()
if task.work == "orphans":
    # A daemon of the kind that leaves its group and its parent.
    subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)", "bireme-orphan"], start_new_session=True)
if task.work == "dies":
    sys.exit("ValueError: element 0 is wrong")
if task.work == "silent" or task.role == "server":
    time.sleep(600)
answer(task, {"rank": task.rank, "steps": task.steps})
"""


@pytest.fixture
def run(tmp_path: Path) -> Go:
    """Runs a family of two trainers and a server, each a small script."""
    package = tmp_path / "engines"
    package.mkdir()
    (package / "__init__.py").write_text(f"__path__.append({str(BENCH / 'engines')!r})\n", encoding="utf-8")
    (package / "scripted.py").write_text(SCRIPT, encoding="utf-8")

    def go(work: str, timeout_s: float = 60.0) -> list[dict[str, object]]:
        parts = [Part("server", 0), Part("trainer", 0, True), Part("trainer", 1, True)]
        task = Run(sys.executable, "scripted", parts, work, warmup=1, steps=3)
        return perform(task, {**os.environ, "PYTHONPATH": str(tmp_path)}, [1], timeout_s)

    return go


def mine() -> set[int]:
    return set(family_costs(os.getpid()))


def test_answers_come_in_order_of_rank_and_no_process_is_left(run: Go) -> None:
    before = mine()
    assert run("fine") == [{"rank": 0, "steps": 3}, {"rank": 1, "steps": 3}]
    assert mine() <= before


def test_orphans_that_left_their_group_are_ended_too(run: Go) -> None:
    before = mine()
    run("orphans")
    assert mine() <= before


def test_a_process_that_dies_fails_the_run_with_its_last_words(run: Go) -> None:
    before = mine()
    with pytest.raises(RunFailedError, match=r"ended with code 1: .*ValueError: element 0 is wrong"):
        run("dies")
    assert mine() <= before


def test_a_run_without_an_answer_is_given_up(run: Go) -> None:
    before = mine()
    with pytest.raises(RunFailedError, match="no answer within 0 s"):
        run("silent", timeout_s=0.2)
    assert mine() <= before


def test_a_process_that_ignores_the_polite_request_is_killed() -> None:
    script = "import signal, sys; signal.signal(signal.SIGTERM, signal.SIG_IGN); print(1, flush=True); signal.pause()"
    process = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE)
    assert process.stdout is not None and process.stdout.readline() == b"1\n"
    end_all(lambda: {process.pid} & mine(), grace_s=0.05)
    process.stdout.close()
    process.poll()  # end_all has reaped it
    assert process.pid not in mine()


def test_costs_are_the_time_between_looks_and_the_peak_memory() -> None:
    before = {5: {"name": "a", "cpu_s": 1.0, "rss_mb": 4.0, "anon_mb": 8.5}}
    after = {
        6: {"name": "b", "cpu_s": 0.5, "rss_mb": 1.0, "anon_mb": 0.5},
        5: {"name": "a", "cpu_s": 3.0, "rss_mb": 9.0, "anon_mb": 8.0},
    }
    assert costs_between(before, after, 10) == [
        {"name": "a", "cpu_s_per_step": 0.2, "rss_mb": 9.0, "anon_mb": 8.5},
        {"name": "b", "cpu_s_per_step": 0.05, "rss_mb": 1.0, "anon_mb": 0.5},
    ]


def test_free_ports_are_different_ones() -> None:
    assert len(set(free_ports(6))) == 6
