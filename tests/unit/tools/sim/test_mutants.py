"""Every deliberate mistake is found by random histories, and by what they promise, not by a crash."""

from __future__ import annotations

import pytest
from tests.mutants import MUTANTS
from tools.sim.case import Mode
from tools.sim.history import Outcome, run_history

BUDGET = 2000
"""Histories within which a mistake must show. It does much sooner, unless the simulator has changed since."""
LONG = 5000
"""Histories within which a rare one must show that is looked for from the first seed on. One is rarer than that."""
# Where a mistake is rare: the mode and the faults that bring it about, and the first seed to try.
DIRECTED: dict[str, tuple[Mode | None, str, int]] = {
    "lanes do not check the view": ("sync", "mends", 40),
    "a pserver obeys an older coordinator": ("sync", "zombies", 21985),
    "trainers that know something are merely replaced": ("local", "mends", 0),
    "trainers begin at the newer round": ("sync", "mends", 0),
    "a repeat of a closed round counts again": ("sync", "mends", 0),
    "a push that counted is applied again": ("async", "mends", 0),
    "the duplicate filter is dropped on restart": ("async", "mends", 0),
    "rounds forget on restart what counted": ("sync", "mends", 0),
    "late pushes are refused after two rounds": ("sync", "mends", 395),
    "lanes cut at different rounds": ("sync", "kills", 10),
    "snapshots are loaded without a look at their parts": ("sync", "disk", 40),
    "the output directory is not synced either": ("sync", "disk", 0),
    "a pass is closed though its cut is lost": ("async", "disk", 0),
    "a pass that counts is closed again": ("sync", "disk", 0),
    "torn books are not mended": ("sync", "disk", 3060),
    "trainer 0 does not wait until a pass counts": ("sync", "mends", 405),
    "newer orders are ignored while lanes are being opened": ("sync", "mends", 0),
    "a finished job is not ended by the next coordinator": ("sync", "disk", 600),
    "waits are timed by the wall clock": ("sync", "clocks", 170),
    "the newest snapshot is the one of the latest date": ("sync", "clocks", 50),
}
# The usual mistakes of such systems.
CLASSIC = {
    "ack before apply": "a round is answered before it is applied",
    "no fencing": "lanes do not check the view",
    "rename before fsync": "files are renamed before they are synced",
    "manifest before files": "a cut is committed before all parts are there",
    "duplicate filter dropped on restart": "the duplicate filter is dropped on restart",
    "reader position off by one": "readers are one batch off after a restart",
}


def first_broken(name: str, mode: Mode | None, profile: str, seeds: range) -> Outcome:
    """The first history that a mistake breaks."""
    with MUTANTS[name]():
        outcomes = (run_history(seed, mode, profile) for seed in seeds)
        found = next((outcome for outcome in outcomes if outcome.broken), None)
    assert found is not None, f"not in {len(seeds)} histories"
    return found


@pytest.mark.parametrize("name", MUTANTS)
def test_an_invariant_finds_each_mutant(name: str) -> None:
    mode, profile, seed = DIRECTED.get(name, (None, "mixed", 0))
    found = first_broken(name, mode, profile, range(seed, seed + BUDGET))
    assert not found.is_crash, found.broken
    assert run_history(found.seed, mode, profile).broken == ""


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name, (_, _, seed) in DIRECTED.items() if seed < LONG])
def test_a_rare_mutant_is_found_without_a_hint_where_to_look(name: str) -> None:
    mode, profile, _ = DIRECTED[name]
    found = first_broken(name, mode, profile, range(LONG))
    assert not found.is_crash, found.broken


def test_the_classic_mistakes_are_among_the_mutants() -> None:
    assert set(CLASSIC.values()) <= set(MUTANTS)
