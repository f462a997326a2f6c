from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import growth
import numpy as np
import pytest
from engines import local_cluster as lc
from engines.local_cluster import Shape
from growth import Curve

from bireme.core.errors import UsageError

FACTS = {"cpu": "a <fast> one", "cores": 2, "memory_gib": 8.0, "kernel": "6.1", "date": "2026-11-16"}
CURVE = Curve("trainers", "trainers", "2 pservers", {1: Shape(1, 2, 10), 2: Shape(2, 2, 10), 4: Shape(4, 2, 10)})


def test_exponents_are_slopes_between_successive_points() -> None:
    assert growth.exponents({10: 1.0, 100: 10.0, 1000: 10.0}) == pytest.approx([1.0, 0.0])
    assert growth.exponents({4: 1.0, 1: 4.0}) == pytest.approx([-1.0])


def test_the_overall_exponent_fits_all_points() -> None:
    assert growth.overall({1: 1.0, 4: 2.0, 16: 4.0}) == pytest.approx(0.5)


@pytest.mark.parametrize(
    ("exponent", "said"),
    [
        (-0.5, "falls"),
        (0.0, "hardly changes"),
        (0.5, "grows, but less than in proportion"),
        (1.0, "grows in proportion"),
        (1.5, "grows faster than in proportion"),
    ],
)
def test_an_exponent_is_put_into_words(exponent: float, said: str) -> None:
    assert growth.in_words(exponent) == said


def test_the_sentence_is_computed_from_the_figures() -> None:
    assert growth.sentence(CURVE, {1: 2.0, 2: 2.0, 4: 4.0}) == (
        "trainers: a round takes 2 ms with 1 trainers and 4 ms with 4; "
        "over all of them it grows, but less than in proportion (exponent 0.50), "
        "over the last step it grows in proportion (1.00)."
    )
    assert growth.sentence(CURVE, {1: 2.0}) == "trainers: too few points to say anything."


def test_points_that_do_not_fit_in_memory_are_left_out_and_said(monkeypatch: pytest.MonkeyPatch) -> None:
    shapes = {n: Shape(2, 2, n) for n in (1_000_000, 100_000_000)}
    monkeypatch.setattr(growth, "free_mb", lambda: 1000.0)
    monkeypatch.setattr(growth, "time_point", lambda shape, _: shape.floats / 1e9)
    found = growth.measure([Curve("parameters-local", "parameters", "", shapes)], 2, {})
    assert list(found["figures"]["parameters-local"]["round_ms"]) == ["1000000"]
    assert found["figures"]["parameters-local"]["exponent"] is None
    assert list(found["left_out"]) == ["parameters-local 100,000,000"]
    assert "needs about 2,080 MB" in found["left_out"]["parameters-local 100,000,000"]


def test_figures_are_medians_with_their_exponents(monkeypatch: pytest.MonkeyPatch) -> None:
    seconds = iter([1.0, 2.0, 4.0, 3.0, 6.0, 12.0])
    monkeypatch.setattr(growth, "time_point", lambda *_: next(seconds))
    figure = growth.measure([CURVE], 2, {})["figures"]["trainers"]
    assert [point["median"] for point in figure["round_ms"].values()] == [2000.0, 4000.0, 8000.0]
    assert figure["exponents"] == [1.0, 1.0] and figure["exponent"] == 1.0
    shown = growth.table({"trainers": figure})
    assert "2 pservers" in shown and "4,000.000" in shown and "in proportion (exponent 1.00)" in shown


def all_figures() -> dict[str, Any]:
    return {c.name: growth.figure_of(c, {n: [n / 1e6] for n in c.shapes}) for c in growth.curves()}


def test_the_picture_has_a_line_for_each_curve() -> None:
    root = ElementTree.fromstring(growth.draw(all_figures(), "on <this>"))
    inside = {"{http://www.w3.org/2000/svg}" + tag: list(root.iter("{http://www.w3.org/2000/svg}" + tag)) for tag in
              ("circle", "polyline", "text")}  # fmt: skip
    circles, _, texts = inside.values()
    assert len(circles) == sum(len(c.shapes) for c in growth.curves())
    width, height = float(root.attrib["width"]), float(root.attrib["height"])
    assert all(0 < float(c.attrib["cx"]) < width and 0 < float(c.attrib["cy"]) < height for c in circles)
    assert {"shared memory", "TCP", "200M", "300k", "on <this>"} <= {text.text for text in texts}


def test_a_picture_of_few_points_can_be_drawn_too() -> None:
    figures = {"rows": growth.figure_of(growth.curves()[-1], {1000: [0.001]})}
    assert "<circle" in growth.draw({**figures, "trainers": growth.figure_of(CURVE, {})}, "")


def test_results_and_picture_are_written(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(growth, "RESULTS", tmp_path / "results")
    monkeypatch.setattr(growth, "PICTURE", tmp_path / "img" / "growth.svg")
    growth.keep({"machine": FACTS, "figures": all_figures()})
    assert "rows" in json.loads((tmp_path / "results" / "growth.json").read_text(encoding="utf-8"))["figures"]
    assert "Measured 2026-11-16 on a &lt;fast&gt; one" in (tmp_path / "img" / "growth.svg").read_text(encoding="utf-8")


def test_only_a_full_run_is_kept_and_unknown_names_are_refused() -> None:
    assert growth.parse([]).keeps
    assert not growth.parse(["--quick"]).keeps
    assert [c.name for c in growth.parse(["--only", "rows"]).curves] == ["rows"]
    with pytest.raises(UsageError, match="there is no curve 'row'"):
        growth.parse(["--only", "row"])


def test_through_tcp_a_cluster_needs_more_memory() -> None:
    assert growth.memory_mb(Shape(2, 2, 10**8, place="tcp")) > growth.memory_mb(Shape(2, 2, 10**8)) > 1600


def test_a_batch_shares_half_its_rows_with_its_neighbour() -> None:
    first, second = lc.row_ids(0, 1, 3000), lc.row_ids(1, 1, 3000)
    assert len(np.unique(first)) == 3000 and (np.diff(first.astype(np.int64)) > 0).all()
    assert len(np.intersect1d(first, second)) == 1500
    assert len(np.unique(lc.row_ids(1, 3, 300_000))) == 300_000


def test_rows_are_adagrad_of_the_summed_gradients() -> None:
    shape = Shape(2, 2, 16, rows=4)
    both = np.intersect1d(lc.row_ids(0, 0, 4), lc.row_ids(1, 0, 4))
    # Rounds 0 and 4 touch these rows, with 1 + 2 and then 2 + 3.
    due = -lc.TABLE_RATE * (3 / 3 + 5 / np.sqrt(9 + 25))
    np.testing.assert_allclose(lc.row_truth(shape, 5, both), due)


@pytest.mark.parametrize("shape", [Shape(3, 2, 5000), Shape(2, 2, 16, rows=200)])
def test_a_point_is_timed_on_a_real_cluster(shape: Shape, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(growth, "POINT_S", 0.0)
    assert growth.time_point(shape, os.environ) > 0
