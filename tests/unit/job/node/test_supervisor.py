from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest

from bireme.job.node.entry import too_many_deaths
from bireme.job.node.headway import NOWHERE, JobProgress
from bireme.job.node.supervisor import (
    MAX_DELAY_S,
    SHORT_S,
    Child,
    Ended,
    ProcessGroup,
    RestartPolicy,
    Supervisor,
    describe_exit,
    is_error,
)
from bireme.spec.job import Job
from bireme.spec.model import Logs, Restarts

WAIT_S = 30.0


@pytest.mark.parametrize(
    ("code", "words"),
    [
        (0, "exited with code 0"),
        (3, "exited with code 3"),
        (-9, "was killed by SIGKILL"),
        (-99, "was killed by signal 99"),
    ],
)
def test_an_exit_code_is_described_in_words(code: int, words: str) -> None:
    assert describe_exit(code) == words


@pytest.mark.parametrize(("code", "expected"), [(0, False), (1, True), (128, True), (137, False), (-9, False)])
def test_only_an_error_of_the_process_itself_is_final(code: int, expected: bool) -> None:
    assert is_error(code) == expected


def test_a_child_that_ran_long_enough_restarts_at_once() -> None:
    lives = RestartPolicy(Restarts(), born_s=10.0)
    assert lives.again_s(10.0 + SHORT_S) == 10.0 + SHORT_S


def test_a_child_that_dies_early_waits_longer_each_time() -> None:
    lives, delays = RestartPolicy(Restarts(limit=100)), []
    for birth in range(0, 100, 10):
        lives.born_s = float(birth)
        again = lives.again_s(birth + 1.0)
        assert again is not None
        delays.append(again - (birth + 1.0))
    assert delays[:3] == pytest.approx([0.2, 0.4, 0.8])
    assert delays[-1] == pytest.approx(MAX_DELAY_S)
    lives.born_s = 200.0
    assert lives.again_s(200.0 + SHORT_S) == 200.0 + SHORT_S
    lives.born_s = 300.0
    assert lives.again_s(301.0) == pytest.approx(301.2), "a long life makes the young deaths before it forgotten"


def test_too_many_deaths_within_the_time_are_the_end() -> None:
    lives = RestartPolicy(Restarts(limit=2, within_s=60.0))
    assert [lives.again_s(t) is not None for t in (100.0, 110.0, 150.0)] == [True, True, False]


def test_deaths_that_are_long_past_do_not_count() -> None:
    lives = RestartPolicy(Restarts(limit=2, within_s=60.0))
    assert all(lives.again_s(100.0 + 31.0 * i, JobProgress(1, i, i)) is not None for i in range(20))


def test_with_a_limit_of_none_the_first_death_is_the_end() -> None:
    assert RestartPolicy(Restarts(limit=0)).again_s(100.0) is None


SELDOM_S = 1000.0
"""Between two deaths: never too many within a time."""


def outlives(lives: RestartPolicy, *reached: JobProgress) -> list[bool]:
    """Whether there is hope after each of some deaths, long after one another, when the job had got so far."""
    start = lives.ended_s[-1] if lives.ended_s else 0.0
    return [lives.again_s(start + SELDOM_S * i, at) is not None for i, at in enumerate(reached, 1)]


def test_repeated_deaths_in_one_round_are_given_up_at_any_age() -> None:
    lives = RestartPolicy(Restarts(limit=3))
    assert outlives(lives, *[JobProgress(1, 100, 100)] * 4) == [True, True, True, False]
    assert (lives.in_vain, lives.is_too_often) == (4, False)


def test_the_same_death_after_a_rewind_is_given_up() -> None:
    back = [JobProgress(history, round_, 100) for history, round_ in ((1, 100), (2, 99), (3, 100), (4, 98))]
    assert outlives(RestartPolicy(Restarts(limit=3)), *back) == [True, True, True, False]


def test_repeated_deaths_before_the_first_round_are_given_up() -> None:
    assert outlives(RestartPolicy(Restarts(limit=2)), *[NOWHERE] * 3) == [True, True, False]


def test_a_job_that_gets_further_between_deaths_never_fails() -> None:
    assert all(outlives(RestartPolicy(Restarts(limit=1)), *(JobProgress(1, round_, round_) for round_ in range(100))))
    rewinds = [JobProgress(history, 10 + history, 10 + history) for history in range(1, 100)]
    assert all(outlives(RestartPolicy(Restarts(limit=1)), *rewinds))


def test_one_new_round_makes_the_deaths_before_it_forgotten() -> None:
    lives = RestartPolicy(Restarts(limit=2))
    stuck, further = [JobProgress(1, 100, 100)] * 2, [JobProgress(1, 101, 101)] * 3
    assert outlives(lives, *stuck, *further) == [True] * 4 + [False]


def test_repeated_rounds_count_until_a_rewind() -> None:
    """A pserver's death has cost an hour; a trainer that dies meanwhile causes no rewind."""
    lives = RestartPolicy(Restarts(limit=2))
    assert all(
        outlives(lives, JobProgress(1, 900, 1000), *(JobProgress(2, round_, 1000) for round_ in range(50, 900, 50)))
    )


def python(name: str, code: str, log: Path) -> Child:
    return Child(name, [sys.executable, "-S", "-c", code], log)


def await_end(pid: int) -> None:
    """Wait until a child has ended, without taking its exit code from the supervisor."""
    os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)


def test_output_goes_to_the_log_and_codes_are_known(tmp_path: Path) -> None:
    log = tmp_path / "node_0" / "train.log"
    with ProcessGroup() as family:
        await_end(family.start(python("a", "import sys; print('hello'); sys.exit(7)", log)))
        assert family.codes() == {"a": 7}
    assert log.read_text() == "hello\n"


def test_leaving_the_family_ends_every_child(tmp_path: Path) -> None:
    with ProcessGroup() as family:
        for name in ("a", "b"):
            family.start(python(name, "import signal; signal.pause()", tmp_path / name))
        assert family.codes() == {"a": None, "b": None}
    assert set(family.codes().values()) == {-15}


def test_a_child_that_does_not_listen_is_killed(tmp_path: Path) -> None:
    ready = tmp_path / "ready"
    os.mkfifo(ready)
    deaf = f"import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); open({str(ready)!r}, 'w'); signal.pause()"
    with ProcessGroup() as family:
        family.start(python("deaf", deaf, tmp_path / "log"))
        with ready.open():  # returns when the child has stopped listening
            pass
        family.end(0.05)
        assert family.codes() == {"deaf": -9}


PAUSE = "import signal; signal.pause()"


class House:
    """A keeper, its children, and whether their job is over."""

    def __init__(
        self,
        family: ProcessGroup,
        children: list[Child],
        rule: Restarts,
        reached: Callable[[], JobProgress] = lambda: NOWHERE,
    ) -> None:
        self.keeper = Supervisor(family, children, rule, Logs(), reached)
        self.is_over = False

    def look(self) -> Ended | bool:
        return self.keeper.look(lambda: self.is_over)

    def born(self) -> tuple[str, int, str]:
        """The next child to be started, waited for if it is not due yet."""
        deadline = time.monotonic() + WAIT_S
        while not self.keeper.started:
            assert self.look() is False
            assert time.monotonic() < deadline
        return self.keeper.started.pop(0)

    def kill(self, pid: int) -> None:
        os.kill(pid, signal.SIGKILL)
        await_end(pid)


def test_a_child_that_was_killed_comes_back_and_it_is_known_why(tmp_path: Path) -> None:
    with ProcessGroup() as family:
        house = House(family, [python(n, PAUSE, tmp_path / n) for n in ("a", "b")], Restarts())
        (_, first, why), (_, other, _) = house.born(), house.born()
        assert why == ""
        house.kill(first)
        name, second, why = house.born()
        assert (name, why) == ("a", "was killed by SIGKILL")
        assert second not in (first, other)
        assert family.codes() == {"a": None, "b": None}


def test_a_child_that_left_though_the_job_is_not_over_comes_back(tmp_path: Path) -> None:
    with ProcessGroup() as family:
        house = House(family, [python("a", "", tmp_path / "a")], Restarts())
        await_end(house.born()[1])
        assert house.born()[2] == "exited with code 0"


def test_a_young_death_is_not_answered_before_its_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = [100.0]
    monkeypatch.setattr(time, "monotonic", lambda: clock[0])
    with ProcessGroup() as family:
        keeper = Supervisor(family, [python("a", "", tmp_path / "a")], Restarts(), Logs())
        await_end(keeper.started.pop()[1])
        for now, count in ((100.5, 0), (100.6, 0), (100.8, 1)):  # due at 100.7
            clock[0] = now
            assert keeper.look(lambda: False) is False
            assert len(keeper.started) == count


def test_a_child_that_dies_too_often_ends_the_job(tmp_path: Path) -> None:
    with ProcessGroup() as family:
        house = House(family, [python(n, PAUSE, tmp_path / n) for n in ("a", "b")], Restarts(limit=1))
        house.kill(house.born()[1])
        house.born()
        house.kill(house.born()[1])
        assert house.look() == Ended("a", -9, deaths=2)


def test_a_child_that_dies_without_headway_ends_the_job(tmp_path: Path) -> None:
    at = [JobProgress(1, 6, 6)]
    with ProcessGroup() as family:
        rule = Restarts(limit=1, within_s=1e-9)
        house = House(family, [python("a", PAUSE, tmp_path / "a")], rule, lambda: at[0])
        house.kill(house.born()[1])
        second = house.born()[1]
        at[0] = JobProgress(1, 7, 7)
        house.kill(second)
        house.kill(house.born()[1])
        assert house.look() == Ended("a", -9, deaths=2, stuck_at=7)


@pytest.mark.parametrize(
    ("ended", "words"),
    [
        (Ended("a", -9), "a was killed by SIGKILL"),
        (Ended("a", -9, 3), "a died 3 times within 60 s; at last it was killed by SIGKILL"),
        (
            Ended("a", 0, 3, 7),
            "a died 3 times while the job got no further than round 7; at last it exited with code 0",
        ),
        (
            Ended("a", -9, 3, -1),
            "a died 3 times while the job got no further than its beginning; at last it was killed by SIGKILL",
        ),
    ],
)
def test_why_a_child_is_given_up_is_described_in_words(ended: Ended, words: str) -> None:
    error = too_many_deaths(ended, cast(Job, SimpleNamespace(restarts=Restarts())), "look there")
    assert (error.what, error.fix) == (words, "look there")


def test_a_child_that_leaves_with_an_error_is_not_started_again(tmp_path: Path) -> None:
    with ProcessGroup() as family:
        house = House(
            family, [python("a", PAUSE, tmp_path / "a"), python("b", "raise SystemExit(3)", tmp_path / "b")], Restarts()
        )
        house.born()
        await_end(house.born()[1])
        assert house.look() == Ended("b", 3)


def test_no_child_is_restarted_when_the_job_is_over(tmp_path: Path) -> None:
    with ProcessGroup() as family:
        house = House(family, [python(n, PAUSE, tmp_path / n) for n in ("a", "b")], Restarts())
        pids = [house.born()[1] for _ in range(2)]
        house.is_over = True
        house.kill(pids[0])
        assert house.look() is False
        house.kill(pids[1])
        assert house.look() is True
        assert house.keeper.started == []
