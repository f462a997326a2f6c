from __future__ import annotations

import pytest

from bireme.core.text import duration, first_of, parse_duration, shortened


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("90", 90), ("90s", 90), (" 5 m", 300), ("1.5h", 5400), ("2d", 172800), ("500ms", 0.5), ("50µs", 5e-5)],
)
def test_a_duration_is_a_number_with_a_unit(text: str, seconds: float) -> None:
    assert parse_duration(text, " ns us µs ms s m h d") == pytest.approx(seconds)


@pytest.mark.parametrize("text", ["", "5 minutes", "-3m", "m", "1e3s", "5", "5h", "1..5s"])
def test_other_texts_and_units_are_refused(text: str) -> None:
    with pytest.raises(ValueError):
        parse_duration(text, "ms s m")


def test_durations_are_rounded_unless_exact_ones_are_wanted() -> None:
    assert [duration(s) for s in (0.4, 119, 120, 7200, 172800)] == ["0 s", "119 s", "2 min", "2 h", "2 days"]
    exact = [duration(s, is_exact=True) for s in (99, 100, 725, 3599.6, 12000, 172799, 172800)]
    assert exact == ["99 s", "1 min 40 s", "12 min 05 s", "1 h 00 min", "3 h 20 min", "47 h 59 min", "2 days"]


def test_a_list_ends_with_the_number_of_those_left_out() -> None:
    assert first_of([1, 2], 2) == "1, 2"
    assert first_of("abcd", 2) == "a, b and 2 more"
    assert first_of(["a", "b", "c"], 2, "; ") == "a; b; and 1 more"


def test_a_long_text_is_cut_to_its_limit() -> None:
    assert [shortened(text, 4) for text in ("", "abcd", "abcde")] == ["", "abcd", "abc…"]
