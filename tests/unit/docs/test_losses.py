"""The table of losses is what the machines do."""

from __future__ import annotations

import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import generate
import losses
import pytest

from bireme.job.coordination import coordinator
from bireme.local.faults import Action, parse
from bireme.ps.lanes.rounds import LaneRounds, Take
from bireme.ps.lanes.stream import LaneStream

PAGES = Path(__file__).resolve().parents[3]
SYNC, APART, PRIVATE = losses.MODES.values()


def outcome(name: str, modes: Any = SYNC) -> losses.Outcome:
    (strike,) = [strike for what, strike in losses.LOSSES.items() if what.startswith(name)]
    return losses.outcome_of(strike, modes)


def test_losing_a_trainer_is_repaired_unless_it_had_state() -> None:
    assert outcome("[a trainer]") == (("trainer 1 was lost",), "mend", "one round again")
    assert outcome("[a trainer]", APART).repeated == "one batch a shard again"
    assert outcome("[a trainer]", PRIVATE)[1:] == ("rewind", "back to the last pass")


def test_a_pause_changes_nothing_and_is_reported() -> None:
    assert outcome("nothing") == (("trainer 1, silent for 30 s",), "nothing", "")


def test_the_table_changes_with_the_coordinator(monkeypatch: pytest.MonkeyPatch) -> None:
    before = losses.table()
    monkeypatch.setattr(coordinator, "has_private_state", lambda updates, wire: False)
    assert losses.table() != before


@pytest.mark.parametrize(("machine", "modes"), [(LaneRounds, SYNC), (LaneStream, APART)], ids=["rounds", "stream"])
def test_a_lane_that_takes_what_it_has_makes_no_table(
    monkeypatch: pytest.MonkeyPatch, machine: type[LaneRounds] | type[LaneStream], modes: Any
) -> None:
    monkeypatch.setattr(machine, "offer", lambda *_: Take(0))
    with pytest.raises(AssertionError):
        outcome("[a trainer]", modes)


def test_modes_that_would_differ_do_not_share_a_column() -> None:
    with pytest.raises(ValueError, match="too many values"):
        outcome("[a trainer]", (*SYNC, *PRIVATE))


def test_a_page_must_have_each_of_its_blocks_once() -> None:
    whole = (generate.DOCS / "recovery.md").read_text(encoding="utf-8")
    assert generate.filled("recovery.md", whole) == whole
    with pytest.raises(AssertionError, match="'phases' once"):
        generate.filled("recovery.md", "# Recovery\n")


def test_a_block_that_was_changed_by_hand_is_written_again() -> None:
    whole = (generate.DOCS / "recovery.md").read_text(encoding="utf-8")
    changed = whole.replace("a member was lost", "no process lost")
    assert changed != whole
    assert generate.filled("recovery.md", changed).count("no process lost") == 0


def test_pages_name_only_faults_that_a_drill_understands() -> None:
    demo = cast(Any, SimpleNamespace(trainers=3, pservers=3, nodes=3))
    found = 0
    for page in [PAGES / "README.md", *(PAGES / "docs").rglob("*.md")]:
        for action, fault in re.findall(r"--(kill|pause|cut) ([a-z]\S*@[^\s`]+)", page.read_text(encoding="utf-8")):
            parse(cast(Action, action), fault, demo)
            found += 1
    assert found > 10
