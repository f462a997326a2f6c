"""Hundreds of random kills over all roles and moments; minutes long: `./dev test --chaos`.

Each seed is a job of its own that is killed at least twenty times. Jobs differ in what they train and in how gradients
travel, so that every kind of store, carrier and mode is under fire. Where the power fails, the runner
dies too, and a `resume` may be killed while processes are still starting.
"""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.conftest import PAIR, Cli, assert_ledger_is_exact, edit, save_often, take_rows
from tests.e2e.counting import count_updates
from tests.e2e.power import Machine

SEEDS = range(25)
KILLS = 20
FAULTS = 30
CUTS = 20
VARIANTS = ("dense", "dense over TCP", "rows", "unbounded rows", "local", "top_k", "async", "bounded")


def prepare(job: Path, variant: str) -> dict[str, Any]:
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
    result: dict[str, Any] = done.json
    assert result["hash"] == result["undisturbed"], variant
    kills = [row for row in result["each"] if row["fault"].startswith("kill")]
    assert len(kills) >= KILLS, f"{variant}: the job was over after {len(kills)} kills"
    sound = cli.run("verify", output / "disturbed")
    assert sound.code == 0, sound.out


@pytest.mark.chaos
@pytest.mark.timeout(900)
@pytest.mark.parametrize("seed", range(3))
def test_twenty_power_cuts_at_random_moments_change_nothing(cli: Cli, job: Path, tmp_path: Path, seed: int) -> None:
    save_often(job, passes=60)
    whole = cli.run("train", job, "--output", tmp_path / "whole", "--json")
    assert whole.code == 0, whole.err
    machine, draw, cuts = Machine(cli, job, tmp_path / "output"), random.Random(seed), 0
    while cuts < CUTS:
        # By turns while it starts, wherever that takes it, and some rounds after it trains.
        is_odd = cuts % 2 == 1
        if machine.lives_for(draw.uniform(0.0, 1.0) if is_odd else draw.uniform(0.2, 3.0), from_training=is_odd):
            break
        cuts += 1
    assert cuts >= CUTS // 2, f"the job was over after {cuts} power cuts"
    done = machine.finish()
    assert done.code == 0, done.err
    assert done.json["hash"] == whole.json["hash"]
    sound = cli.run("verify", machine.output)
    assert sound.code == 0, sound.out
    assert_ledger_is_exact(machine.output, passes=60)
