"""Whichever process is killed or stopped, a job ends by itself with the bits of an undisturbed run."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import time
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from bireme.job.output.verify import verify
from tests.e2e.conftest import Cli, Undisturbed, assert_ledger_is_exact, lines_of, pids_of, save_often, wait_until

PASSES = 10


@pytest.fixture
def long(job: Path) -> Path:
    """A job that lasts for some seconds, with a snapshot every few rounds."""
    return save_often(job, passes=PASSES)


class Disturbed:
    """A job that has saved its first pass, and has most of its work before it."""

    def __init__(self, cli: Cli, job: Path) -> None:
        self._cli = cli
        self.output = job.parent / "output"
        self.process: subprocess.Popen[str] = cli.start("train", job, "--json", "--trainers=2", "--pservers=2")
        wait_until(lambda: self.events("pass") or self.process.poll() is not None, "the first pass is saved")
        assert self.process.poll() is None, self.process.communicate()

    def events(self, name: str) -> list[dict[str, Any]]:
        """What the coordinator has noted of a kind."""
        return [line for line in lines_of(self.output / "metrics.jsonl") if line["event"] == name]

    def signal(self, number: signal.Signals, *names: str) -> None:
        """Send a signal to these processes, or to all but the runner."""
        pids = pids_of(self.output)
        for name in names or pids:
            os.kill(pids[name], number)

    def ends_as(self, undisturbed: Undisturbed) -> None:
        """The job ends well, as if nothing had happened."""
        out, err = self.process.communicate(timeout=120)
        assert self.process.returncode == 0, (out, err)
        assert f'"hash": "{undisturbed(PASSES)}"' in out
        assert_ledger_is_exact(self.output, PASSES)
        assert verify(self.output).problems == []

    def was_restarted(self, name: str, how: str) -> bool:
        role, rank = name.split()
        log = (self.output / f"node_{rank}" / "node.log").read_text()
        return re.search(rf"started {role}={rank} pid=\d+ previous=.{how}", log) is not None


KILLED = {
    "trainer 0": ("mend", "trainer 0 was lost"),
    "pserver 1": ("rewind", "pserver 1 was lost"),
    "pserver 0": ("rewind", "the coordinator was lost"),
}


def test_kills_one_after_another_change_no_bit(cli: Cli, long: Path, undisturbed: Undisturbed) -> None:
    job = Disturbed(cli, long)
    for number, name in enumerate(KILLED, 1):
        job.signal(signal.SIGKILL, name)
        wait_until(partial(has_recovered, job, number), f"the job continues without {name}")
    job.ends_as(undisturbed)
    assert all(job.was_restarted(name, "was killed by SIGKILL") for name in KILLED)
    assert [event["kind"] for event in job.events("view")] == ["begin", *(kind for kind, _ in KILLED.values())]
    for recovered, (_, cause) in zip(job.events("recovered"), KILLED.values(), strict=True):
        assert cause in recovered["after"]


def test_a_node_that_is_lost_with_all_its_processes_comes_back(cli: Cli, long: Path, undisturbed: Undisturbed) -> None:
    job = Disturbed(cli, long)
    job.signal(signal.SIGKILL, "node 1")
    job.ends_as(undisturbed)
    assert {event["kind"] for event in job.events("view")} == {"begin", "rewind"}
    assert {"pserver 1 was lost", "trainer 1 was lost"} <= {event["what"] for event in job.events("lost")}


def test_a_job_comes_back_when_all_but_its_runner_are_killed(cli: Cli, long: Path, undisturbed: Undisturbed) -> None:
    job = Disturbed(cli, long)
    job.signal(signal.SIGKILL)
    job.ends_as(undisturbed)
    (recovered,) = job.events("recovered")
    assert "the coordinator was lost" in recovered["after"]


def test_a_stopped_trainer_is_named_and_not_replaced(cli: Cli, long: Path, undisturbed: Undisturbed) -> None:
    job = Disturbed(cli, long)
    job.signal(signal.SIGSTOP, "trainer 1")
    said = re.compile(r"trainer 1, silent for (\d+) s")
    seconds: list[int] = []

    def is_named() -> bool:
        time.sleep(0.5)  # each look is a process of its own
        status = cli.run("status", "small", "--json").json["status"]
        seconds.extend(int(found[1]) for who in status["waits_for"] if (found := said.fullmatch(who)))
        return max(seconds, default=0) >= 4

    try:
        wait_until(is_named, "the status says that trainer 1 is silent for 4 s")
    finally:
        job.signal(signal.SIGCONT, "trainer 1")
    job.ends_as(undisturbed)
    assert [event["kind"] for event in job.events("view")] == ["begin"]


def test_a_stopped_coordinator_is_named_and_continues_later(cli: Cli, long: Path, undisturbed: Undisturbed) -> None:
    job = Disturbed(cli, long)
    job.signal(signal.SIGSTOP, "pserver 0")
    try:
        output = cli.run("status", "small").out
        status = cli.run("status", "small", "--json").json["status"]
        why = cli.run("why", "small").out
    finally:
        job.signal(signal.SIGCONT, "pserver 0")
    assert "waits for pserver 0 (the coordinator), which does not answer\n" in output
    assert "small: running" in output and "\npass   0 " in output
    assert (status["phase"], len(status["waits_for"])) == ("training", 1)
    assert "The job waits for pserver 0 (the coordinator), which does not answer" in why
    job.ends_as(undisturbed)
    assert [event["kind"] for event in job.events("view")] == ["begin"]


def test_a_process_that_keeps_dying_ends_the_job(cli: Cli, long: Path) -> None:
    long.write_text(long.read_text() + "restarts: {limit: 2, within_s: 90}\n")
    job = Disturbed(cli, long)
    kill_trainer_1_until_the_end(job)
    out, err = job.process.communicate()
    assert job.process.returncode == 13, (out, err)
    assert "trainer 1 died 3 times within 90 s; at last it was killed by SIGKILL" in out + err
    assert "node_1/train.log" in out + err
    assert (job.output / "pass-00000" / "done").is_file()


def test_rare_deaths_of_one_cause_end_the_job(cli: Cli, long: Path) -> None:
    long.write_text(long.read_text() + SELDOM)
    job = Disturbed(cli, long)
    kill_trainer_1_until_the_end(job)
    out, err = job.process.communicate()
    assert job.process.returncode == 13, (out, err)
    pattern = r"trainer 1 died \d times while the job got no further than round (\d+); at last it was killed by SIGKILL"
    found = re.search(pattern, out + err)
    assert found is not None, (out, err)
    assert int(found[1]) == max(event["round"] for event in job.events("progress"))


@pytest.mark.parametrize("name", ["trainer 1", pytest.param("pserver 0", marks=pytest.mark.slow)])
def test_a_job_that_gets_further_between_deaths_continues(
    cli: Cli, long: Path, undisturbed: Undisturbed, name: str
) -> None:
    long.write_text(long.read_text() + SELDOM)
    job = Disturbed(cli, long)
    for deaths in range(6):
        before = highest(job)
        wait_until(partial(is_further, job, before), "the job gets further")
        wait_until(partial(is_mended, job, deaths), "the process that was killed is back")
        job.signal(signal.SIGKILL, name)
    job.ends_as(undisturbed)
    assert len(job.events("view")) > 6


def test_a_job_without_rounds_gets_further_in_every_pass(cli: Cli, long: Path) -> None:
    long.write_text(long.read_text() + SELDOM + "mode: async\n")
    job = Disturbed(cli, long)
    for pass_id in range(1, 5):
        wait_until(partial(is_in_pass, job, pass_id), "the next pass begins")
        assert job.process.poll() is None, job.process.communicate()
        wait_until(partial(is_mended, job, pass_id - 1), "the trainer that was killed is back")
        job.signal(signal.SIGKILL, "trainer 1")
    out, err = job.process.communicate(timeout=120)
    assert job.process.returncode == 0, (out, err)
    assert [event["kind"] for event in job.events("view")] == ["begin"] + ["mend"] * 4
    assert_ledger_is_exact(job.output, PASSES)


SELDOM = "restarts: {limit: 2, within_s: 0.01}\n"
"""No process can die three times within so short a time."""


def has_recovered(job: Disturbed, times: int) -> bool:
    return len(job.events("recovered")) == times


def is_further(job: Disturbed, least: int) -> bool:
    return highest(job) > least


def is_in_pass(job: Disturbed, pass_id: int) -> bool:
    return reached_pass(job) >= pass_id or job.process.poll() is not None


def is_mended(job: Disturbed, deaths: int) -> bool:
    """Whether every death has had its view: on a busy machine the others may get further before the next life."""
    return len(job.events("view")) > deaths


def highest(job: Disturbed) -> int:
    return max((int(event["round"]) for event in job.events("progress")), default=-1)


def reached_pass(job: Disturbed) -> int:
    return max((int(event["pass"]) for event in job.events("progress")), default=0)


def kill_trainer_1_until_the_end(job: Disturbed) -> None:
    killed: set[int] = set()

    def kill_it_as_soon_as_it_is_there() -> bool:
        pid = pids_of(job.output).get("trainer 1")
        if pid is not None and pid not in killed:
            killed.add(pid)
            os.kill(pid, signal.SIGKILL)
        return job.process.poll() is not None

    wait_until(kill_it_as_soon_as_it_is_there, "the job is given up")
