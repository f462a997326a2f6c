"""Words and curves keep to the room that they are given."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from bireme.job.status import JobStatus, PassSummary
from bireme.view.plain import (
    CURVE_WIDTH,
    PlainView,
    best_pass,
    count,
    pass_line,
    pass_lines,
    plan_lines,
    sparkline,
)
from bireme.view.readers import View, alert

CLOSED = PassSummary(
    pass_id=7, round=63, samples=24000, samples_so_far=24000, seconds=0.3, cost=0.3095, evals={"error": 0.0435},
    test_cost=0.384, test_evals={"error": 0.0683},
)  # fmt: skip


def test_a_curve_of_few_values_has_a_place_for_each() -> None:
    assert sparkline([]) == ""
    assert sparkline([3.0, 2.0, 1.0]) == "█▅▁"


def test_a_curve_of_many_values_keeps_its_width_and_its_shape() -> None:
    curve = sparkline([1.0 / (i + 1) for i in range(1000)])
    assert len(curve) == CURVE_WIDTH
    assert (curve[0], curve[-1]) == ("█", "▁")
    assert sparkline([1.0] * 50, 10) == "▁" * 10


def test_a_pass_is_reported_in_full_where_there_is_room() -> None:
    line = "pass   7  cost 0.3095  error  4.35 %  test cost 0.3840  test error  6.83 %     80,000 samples/s"
    assert pass_line(CLOSED) == pass_line(CLOSED, 200) == line


def test_in_eighty_columns_the_test_cost_is_left_out_first() -> None:
    assert pass_line(CLOSED, 80) == "pass   7  cost 0.3095  error  4.35 %  test error  6.83 %     80,000 samples/s"
    assert pass_line(CLOSED, 60) == "pass   7  cost 0.3095  error  4.35 %  test error  6.83 %"


@pytest.mark.parametrize(("number", "text"), [(0, "0 rows"), (1, "1 row"), (2, "2 rows"), (1500, "1,500 rows")])
def test_one_is_written_in_the_singular(number: int, text: str) -> None:
    assert count(number, "row") == text


def test_a_plural_that_is_not_made_with_s_is_given() -> None:
    assert (count(1, "pass", "passes"), count(3, "pass", "passes")) == ("1 pass", "3 passes")


@pytest.mark.parametrize(
    ("tested", "best"),
    [
        ([(0.4, {"error": 0.08}), (0.3, {"error": 0.05}), (0.2, {"error": 0.05})], (1, "test error 5.00 %")),
        ([(0.4, {}), (0.3, {}), (0.2, {})], (2, "test cost 0.2000")),
        ([(None, {}), (None, {})], (0, "cost 0.3095")),
        ([(0.4, {"error": 0.08})], None),
        ([], None),
    ],
)
def test_the_best_pass_has_the_lowest_test_error_or_cost(tested: list[Any], best: tuple[int, str] | None) -> None:
    closed = [replace(CLOSED, pass_id=n, test_cost=c, test_evals=e) for n, (c, e) in enumerate(tested)]
    assert best_pass(reversed(closed)) == best


def test_a_remark_is_for_the_plain_view_and_an_alert_for_both(capsys: pytest.CaptureFixture[str]) -> None:
    for view in (PlainView(), View()):
        view.note("a remark")
        view.alert("an alert")
    captured = capsys.readouterr()
    assert captured.out == "a remark\n"
    assert captured.err == "an alert\nan alert\n"


def test_on_a_terminal_an_alert_begins_a_line_of_its_own(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stderr.isatty", lambda: True)
    alert("stopping")
    assert capsys.readouterr().err == "\nstopping\n"


def test_passes_are_shown_once_where_a_status_has_the_last_ones(capsys: pytest.CaptureFixture[str]) -> None:
    view = PlainView()
    for done in range(1, 31):
        view.update(JobStatus(passes_done=tuple(replace(CLOSED, pass_id=one) for one in range(done))[-20:]))
    shown = capsys.readouterr().out.splitlines()
    assert [line.split()[1] for line in shown] == [str(one) for one in range(30)]


def test_an_alert_without_a_reader_is_harmless(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object, **__: object) -> None:
        raise OSError("Input/output error")

    monkeypatch.setattr("click.echo", fail)
    alert("stopping")


def test_a_loss_is_reported_once_until_it_is_over(capsys: pytest.CaptureFixture[str]) -> None:
    view = PlainView()
    lost = JobStatus(phase="training", losses=("trainer 1 was lost",))
    for status in (lost, lost, JobStatus(phase="training"), lost):
        view.update(status)
    assert capsys.readouterr().out.splitlines() == [
        "trainer 1 was lost; the job continues",
        "training",
        "trainer 1 was lost; the job continues",
    ]


def test_a_warning_is_reported_once_until_it_is_over(capsys: pytest.CaptureFixture[str]) -> None:
    view = PlainView()
    for round_ in (3, 5, 0, 7):
        view.update(JobStatus(warnings=(f"no snapshot: cannot write {round_}",) if round_ else ()))
    assert capsys.readouterr().out.splitlines() == [
        "warning: no snapshot: cannot write 3",
        "warning: no snapshot: cannot write 7",
    ]


def test_of_many_passes_ten_are_shown_and_the_others_counted() -> None:
    closed = [replace(CLOSED, pass_id=number) for number in range(25)]
    lines = list(pass_lines(closed, shows_all=False))
    assert lines[0] == "(15 passes before these; --all shows all)"
    assert [line[:8] for line in lines[1:]] == [f"pass {number:>3}" for number in range(15, 25)]
    assert len(list(pass_lines(closed, shows_all=True))) == 25
    assert len(list(pass_lines(closed[:10], shows_all=False))) == 10


def test_a_plan_speaks_of_one_thing_in_the_singular() -> None:
    parameters = [
        {"name": "w", "shape": [50, 2], "values": 100, "is_sparse": True},
        {"name": "b", "shape": [2], "values": 2, "is_sparse": False},
    ]
    plan = {
        "job": "small", "program": "c.py", "parameters": parameters, "passes": 1, "batch_size": 4, "mode": "sync",
        "processes": 1, "bytes_per_round": 9, "output": "out", "pservers": [], "trainers": [],
    }  # fmt: skip
    assert list(plan_lines(plan)) == [
        "small: c.py, 2 values in 1 dense parameter, 1 pass, batch 4 per shard",
        "mode sync, 1 process, 9 bytes per round, output in out",
        "w: 50 rows of 2, on the sparse lanes of all pservers",
    ]
