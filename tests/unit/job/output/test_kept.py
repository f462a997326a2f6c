"""Which models stay: never fewer than the last one, and never one of which half is gone."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from bireme.job.output.kept import best_of, drop_models, passes_kept
from bireme.job.output.model import finished_passes, pass_name
from bireme.job.status import PassSummary


def metrics_of(pass_id: int, error: float | None, cost: float | None = None) -> PassSummary:
    return PassSummary(
        pass_id=pass_id, round=9, samples=4, samples_so_far=4, seconds=1.0, cost=1.0, evals={},
        test_cost=cost, test_evals={} if error is None else {"error": error},
    )  # fmt: skip


PASSES = {
    n: metrics_of(n, e, c) for n, (e, c) in enumerate([(0.3, 0.5), (0.1, 0.6), (0.1, 0.4), (0.2, 0.7), (0.2, 0.9)])
}


def leave(output: Path) -> None:
    for pass_id, metrics in PASSES.items():
        (output / pass_name(pass_id)).mkdir()
        (output / pass_name(pass_id) / "done").touch()
        (output / pass_name(pass_id) / "metrics.json").write_bytes(msgspec.json.encode(metrics))


@pytest.mark.parametrize(
    ("keep", "needs_costs", "kept"),
    [
        ("all", False, {0, 1, 2, 3, 4}),
        ("best", False, {1, 4}),
        ("best", True, {1, 2, 4}),
        ("last 2", False, {3, 4}),
        ("last 1", True, {2, 4}),
        ("last 9", False, {0, 1, 2, 3, 4}),
    ],
)
def test_what_stays_is_what_was_asked_for(tmp_path: Path, keep: str, needs_costs: bool, kept: set[int]) -> None:
    leave(tmp_path)
    assert passes_kept(PASSES, keep, needs_costs=needs_costs) == kept
    drop_models(tmp_path, 4, keep, needs_costs=needs_costs)
    assert finished_passes(tmp_path) == kept
    assert len(list(tmp_path.iterdir())) == len(kept)


def test_a_pass_that_does_not_count_yet_takes_no_model_away(tmp_path: Path) -> None:
    leave(tmp_path)
    drop_models(tmp_path, 2, "last 1", needs_costs=False)
    assert finished_passes(tmp_path) == {2, 3, 4}


def test_dropping_step_by_step_comes_to_the_same(tmp_path: Path) -> None:
    leave(tmp_path)
    for counted in range(5):
        drop_models(tmp_path, counted, "best", needs_costs=True)
    assert finished_passes(tmp_path) == {1, 2, 4}


def test_what_a_crash_left_of_a_drop_is_cleared_away(tmp_path: Path) -> None:
    leave(tmp_path)
    (tmp_path / ".pass-00001.dropped.tmp/half").mkdir(parents=True)
    drop_models(tmp_path, 4, "last 1", needs_costs=False)
    assert [path.name for path in tmp_path.iterdir()] == ["pass-00004"]


def test_a_model_that_cannot_go_is_no_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    leave(tmp_path)

    def refuse(*_: object) -> None:
        raise PermissionError("no")

    monkeypatch.setattr(Path, "replace", refuse)
    drop_models(tmp_path, 4, "last 1", needs_costs=False)
    assert finished_passes(tmp_path) == set(PASSES)


def test_nothing_is_best_of_no_passes() -> None:
    assert best_of({}) is None
