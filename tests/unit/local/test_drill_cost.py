"""What a fault cost, read from the lines that a job has left."""

from __future__ import annotations

from typing import Any

from bireme.local.drill import Struck, cost_of
from bireme.local.faults import Fault

KILL = Fault("kill", "all", "@after=10s", after_s=10.0)
INSIDE = Fault("kill", "pserver:1", "@round=42", round=42, point="lane.landed")


def lines(*rows: tuple[float, str, int]) -> list[dict[str, Any]]:
    kinds = {"begin": ("view", "begin"), "rewind": ("view", "rewind"), "mend": ("view", "mend")}
    return [
        {
            "unix": unix,
            "event": kinds.get(event, (event, ""))[0],
            "kind": kinds.get(event, ("", ""))[1],
            "round": round_,
        }
        for unix, event, round_ in rows
    ]


REWIND = lines(
    (0.0, "begin", 0), (5.0, "progress", 20), (9.5, "progress", 41), (10.2, "lost", 0), (11.0, "rewind", 5),
    (12.0, "recovered", 6),
)  # fmt: skip


def test_rounds_from_before_a_rewind_are_redone() -> None:
    (cost,) = cost_of([Struck(KILL, 10.0, round=0)], REWIND)
    assert cost == {"fault": "kill all @after=10s", "at_s": 10.0, "back_s": 2.0, "redone": 37, "kind": "rewind"}


def test_a_process_that_strikes_itself_knows_its_round_better() -> None:
    (cost,) = cost_of([Struck(INSIDE, 10.0, round=42)], REWIND)
    assert cost["redone"] == 38


def test_rewound_work_is_counted_with_one_rewind_only() -> None:
    again = lines((12.5, "lost", 0), (13.0, "rewind", 5), (14.0, "recovered", 6))
    _, second = cost_of([Struck(KILL, 10.0, round=41), Struck(KILL, 12.2, round=41)], [*REWIND[:-1], *again])
    assert second["redone"] == 1


def test_a_mend_repeats_the_open_round() -> None:
    rows = lines(
        (0.0, "begin", 0), (9.0, "progress", 40), (10.1, "lost", 0), (10.3, "mend", 0), (11.0, "recovered", 42)
    )
    (cost,) = cost_of([Struck(INSIDE, 10.0, round=42)], rows)
    assert (cost["redone"], cost["kind"]) == (1, "mend")
