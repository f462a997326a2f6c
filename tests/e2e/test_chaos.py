"""Hundreds of random kills over all roles and moments; minutes long: `./dev test --chaos`.

Each seed is a job of its own that is killed at least twenty times. Jobs differ in what they train and in how gradients
travel, so that every kind of store, carrier and mode is under fire.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.e2e.conftest import PAIR, Cli, edit, save_often, take_rows
from tests.e2e.counting import count_updates

SEEDS = range(25)
KILLS = 20
FAULTS = 30
VARIANTS = ("dense", "dense over TCP", "rows", "unbounded rows", "local", "top_k", "async", "bounded")


def prepare(job: Path, variant: str) -> dict[str, str]:
    """Make the job this variant of itself, on three nodes; returns what its environment needs."""
    edit(job, (PAIR, ""))
    if variant.endswith("rows"):
        take_rows(job, is_unbounded=variant.startswith("unbounded"))
    if variant in ("async", "bounded"):
        count_updates(job)
        job.write_text(job.read_text().replace("passes: 2", "passes: 60") + f"mode: {variant}\n")
        return {}
    if not variant.endswith("rows"):
        save_often(job, passes=60 if variant == "local" else 40)
    else:
        job.write_text(job.read_text().replace("passes: 2", "passes: 60") + "snapshots: {every_s: 0.05, keep: 4}\n")
    more = {"local": "mode: local\n", "top_k": "wire: {gradients: top_k}\n"}.get(variant, "")
    job.write_text(job.read_text() + more)
    return {"BIREME_CARRIER": "tcp"} if variant.endswith("TCP") else {}


@pytest.mark.chaos
@pytest.mark.timeout(900)
@pytest.mark.parametrize("seed", SEEDS)
def test_twenty_kills_at_random_moments_change_nothing(cli: Cli, job: Path, seed: int) -> None:
    variant = VARIANTS[seed % len(VARIANTS)]
    environment = prepare(job, variant)
    output = job.parent / "drill"
    asked = ("--random", "--mtbf", "0.7s", "--seed", seed, "--faults", FAULTS)
    done = cli.run("drill", job, *asked, "--output", output, "--json", timeout_s=800, **environment)
    assert done.code == 0, f"{variant}: {done.err}"
    told: dict[str, Any] = done.json
    assert told["hash"] == told["undisturbed"], variant
    kills = [row for row in told["each"] if row["fault"].startswith("kill")]
    assert len(kills) >= KILLS, f"{variant}: the job was over after {len(kills)} kills"
    sound = cli.run("verify", output / "disturbed")
    assert sound.code == 0, sound.out
