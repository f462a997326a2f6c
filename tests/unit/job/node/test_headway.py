from __future__ import annotations

import json
from pathlib import Path

import pytest
from tests.unit.job.story import Story, lines, progress

from bireme.job.node import headway
from bireme.job.node.headway import METRICS, NOWHERE, Headway, JobProgress


def note(output: Path, *rounds: tuple[int, int]) -> None:
    """Write what a coordinator writes when trainers report progress, of these histories and rounds."""
    with (output / METRICS).open("a") as f:
        for history, round_ in rounds:
            f.write(json.dumps({"event": "progress", "view": 99, "round": round_, "history": history}) + "\n")


def test_a_job_that_has_noted_nothing_is_nowhere(tmp_path: Path) -> None:
    seen = Headway(tmp_path)
    assert seen.look() == NOWHERE
    (tmp_path / METRICS).write_text('{"event":"view","kind":"begin","round":0}\n{"event":"progr')
    assert seen.look() == NOWHERE


def test_the_highest_round_is_remembered_after_a_rewind(tmp_path: Path) -> None:
    seen = Headway(tmp_path)
    note(tmp_path, (1, 8), (1, 9), (1, 8))
    assert seen.look() == JobProgress(1, 9, 9)
    note(tmp_path, (4, 5), (4, 6))
    assert seen.look() == JobProgress(4, 6, 9)
    note(tmp_path, (1, 10))
    assert seen.look() == JobProgress(4, 6, 9), "no member is in that history any more"


def test_what_earlier_runs_have_noted_does_not_count(tmp_path: Path) -> None:
    note(tmp_path, (1, 400))
    seen = Headway(tmp_path)
    assert seen.look() == NOWHERE
    note(tmp_path, (2, 315))
    assert seen.look() == JobProgress(2, 315, 315)


def test_only_the_end_of_a_long_book_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(headway, "TAIL_NBYTES", 200)
    seen = Headway(tmp_path)
    note(tmp_path, (1, 500), *((1, round_) for round_ in range(400)))
    assert seen.look() == JobProgress(1, 399, 399)


def test_a_book_that_was_cut_off_or_cannot_be_read_is_no_harm(tmp_path: Path) -> None:
    (tmp_path / METRICS).write_text('{"event":"progress"' * 100)
    seen = Headway(tmp_path)
    (tmp_path / METRICS).write_text("")
    note(tmp_path, (1, 3))
    (tmp_path / METRICS).unlink()
    (tmp_path / METRICS).symlink_to("/dev/full")
    assert seen.look() == NOWHERE


def test_progress_from_before_a_rewind_is_of_no_history() -> None:
    story = Story().train()
    (fresh,) = lines(METRICS, story.deliver(10, progress(0, story.machine.view)))
    assert fresh["history"] == story.machine.history
    story.lose(21)
    (stale,) = lines(METRICS, story.deliver(10, progress(0, story.machine.view - 1)))
    assert "history" not in stale and stale["round"] == fresh["round"]


def test_a_day_of_progress_is_some_thousand_lines_a_trainer() -> None:
    story = Story().train()
    noted = [story.now_s]
    for tenth in range(1, 36_000):
        story.now_s = 100.0 + tenth / 5
        if lines(METRICS, story.deliver(10, progress(0, story.machine.view))):
            noted.append(story.now_s)
    # Two hours with five words a second: all of them at first, then one in a thousandth of the job's age.
    assert sum(moment < 300.0 for moment in noted) > 990
    assert 4000 < len(noted) < 5000
    story.now_s += 3 * 86400
    assert lines(METRICS, story.deliver(10, progress(0, story.machine.view)))
    for seconds, count in ((9.9, 0), (10.1, 1)):
        moment = story.now_s + seconds
        assert len(lines(METRICS, story.machine.receive(10, progress(0, story.machine.view), moment))) == count


def test_the_first_progress_in_a_view_is_noted_at_any_age() -> None:
    story = Story().train()
    story.now_s += 86400
    assert lines(METRICS, story.deliver(10, progress(0, story.machine.view)))
    assert not lines(METRICS, story.deliver(10, progress(0, story.machine.view)))
    story.lose(11)
    story.join(1, 31)
    story.ready()
    assert lines(METRICS, story.deliver(10, progress(0, story.machine.view)))
