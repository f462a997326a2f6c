from __future__ import annotations

import cuts
import pytest
from cuts import Taken
from engines.local_cluster import Shape

from bireme.core.errors import UsageError

SHAPE = Shape(2, 2, 10, method="adam", has_cuts=True)


def test_a_cuts_cost_is_its_blocks_time_beyond_its_neighbours() -> None:
    parts = [{"nbytes": 2_000_000, "seconds": 0.5}]
    taken = Taken([[0.1, 0.1, 0.12], [0.1, 0.1, 0.1]], [[0.1, 0.19, 0.1], [0.15, 0.1, 0.1]], parts, [0.02])
    found = cuts.figure_of(SHAPE, taken)
    assert found["round_ms"]["median"] == 100.0
    assert found["worst_to_median"]["samples"] == [1.9, 1.5]
    assert found["worst_to_median_without_cuts"]["samples"] == [1.2, 1.0]
    assert found["cost_ms"]["samples"] == [70.0, 50.0]
    assert found["overhead_percent"]["median"] == pytest.approx(0.6)
    assert (found["part_mb"]["median"], found["on_disk_after_s"]["median"]) == (2.0, 0.5)


def test_no_repetitions_are_refused() -> None:
    with pytest.raises(UsageError, match="--reps 0"):
        cuts.parse(["--reps", "0"])


def test_blocks_of_a_small_cluster_have_a_cut_in_every_other_one(monkeypatch: pytest.MonkeyPatch) -> None:
    import os

    monkeypatch.setitem(cuts.BLOCK_S, "small", 0.0)
    shape = Shape(1, 2, 5000, method="adam", has_cuts=True)
    taken = cuts.time_shape("small", shape, 2, os.environ)
    assert [len(taken.calm), len(taken.cut), len(taken.parts)] == [2, 2, 4]
    assert all(part["nbytes"] > 3 * 4 * 2048 for part in taken.parts)
