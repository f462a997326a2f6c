"""The live panel fits the terminal, however long the job is."""

from __future__ import annotations

import os
import sys
from io import StringIO
from typing import Any

import pytest
from msgspec.structs import replace
from rich.console import Console, Group
from tests.unit.view.test_plain import CLOSED

from bireme.job.status import JobStatus, TrainerStatus
from bireme.view.terminal import LiveView, draw


def status(passes: int, trainers: int = 3, **more: Any) -> JobStatus:
    one = TrainerStatus(trainer=0, pass_id=11, batch=3, batches=250, cost=0.25, evals=(0.0425,), rate=123456.0)
    made = JobStatus(
        phase="training", first_pass=0, passes=4000, saved=passes - 1,
        trainers=tuple(replace(one, trainer=rank) for rank in range(trainers)),
        passes_done=tuple(replace(CLOSED, pass_id=i) for i in range(passes)),
    )  # fmt: skip
    return replace(made, **more)


def lines_of(status: JobStatus, width: int) -> list[str]:
    console = Console(file=StringIO(), width=width, color_system=None)
    console.print(Group(draw(status, width)))  # as `Live` does: a bare text would lose its own rules
    assert isinstance(console.file, StringIO)
    return console.file.getvalue().splitlines()


@pytest.mark.parametrize("width", [60, 80, 120])
@pytest.mark.parametrize("passes", [0, 1, 30, 3000])
def test_no_line_of_the_panel_is_wrapped(width: int, passes: int) -> None:
    lines = lines_of(status(passes), width)
    assert len(lines) == 1 + 3 + 1
    assert max(map(len, lines)) <= width


def test_what_is_wrong_stays_in_the_panel_on_one_line() -> None:
    lines = lines_of(
        status(1, warnings=("no snapshot since round 4: the disk is full: cannot write /a/" + 99 * "b",)), 80
    )
    assert len(lines) == 1 + 3 + 1 + 1
    assert lines[-2].startswith("warning: no snapshot since round 4: the disk is full")
    assert lines[-2].endswith("…") and len(lines[-2]) <= 80


def test_the_footer_counts_passes_of_earlier_runs() -> None:
    assert "12/4000 passes" in lines_of(status(2, saved=11), 80)[-1]
    assert "12/4000 passes" in lines_of(status(0, saved=11), 80)[-1]
    assert "first of 4,000 passes" in lines_of(status(0), 80)[-1]


def test_who_is_waited_for_is_reported_on_one_line() -> None:
    status = JobStatus(phase="gathering", trainers_missing=tuple(range(100)))
    assert len(lines_of(status, 80)) == 1


def test_stragglers_are_shown_below_the_trainers() -> None:
    said = "trainer 1, which all others waited for 72 % of the last 8 s"
    found = lines_of(status(1, waits_for=(said,)), 80)
    assert found[-2].strip() == f"waits for {said}"
    assert not any("waits for" in line for line in lines_of(status(1, waits_for=()), 80))


def test_passes_remarks_and_alerts_have_their_own_lines() -> None:
    view = LiveView()
    view._console.file = StringIO()
    view.note("compiling kernels")
    view.update(status(1))
    view.alert("stopping")
    lines = view._console.file.getvalue().splitlines()
    assert lines[0] == "compiling kernels"
    assert lines[1].startswith("pass   0  cost 0.3095")
    assert lines[-1] == "stopping"


def test_a_closed_terminal_is_noticed_on_update_and_left(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("TERM", "xterm")
    master, slave = os.openpty()
    with os.fdopen(slave, "w") as stream:
        monkeypatch.setattr(sys, "stdout", stream)
        view = LiveView()
        with view:
            view.update(status(1))
            shown = ""
            while "1/4000 passes" not in shown:  # each status is drawn at once
                shown += os.read(master, 1 << 16).decode()
            assert "pass   0" in shown
            os.close(master)
            view.update(status(2))
            assert view.is_silent
