"""Every mode and every coding by way of the command line: a model comes out, and its cost is reported."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from bireme.job.output.model import pass_name
from tests.e2e.conftest import Cli, edit

STALENESS = 2
MODES = {
    "bounded": f"mode: bounded\nstaleness: {STALENESS}\n",
    "async": "mode: async\n",
    "average": "mode: local\nlocal: {every: 4}\n",
    "elastic": "mode: local\nlocal: {every: 4, method: elastic, rate: 0.5}\n",
    "float16": "wire: {gradients: float16}\n",
    "bfloat16": "wire: {gradients: bfloat16}\n",
    "top_k": "wire: {gradients: top_k, top_k: 0.05}\n",
}
UPDATES = 3 * 13
"""Batches of 16 in shards of 201, 200 and 200 reviews."""
ONE = ("--trainers", 1, "--pservers", 1)
THREE = ("--trainers", 3, "--pservers", 1, "--ports-num", 2)


@pytest.fixture
def short(job: Path) -> Path:
    """The small job with more batches."""
    edit(job.parent / "quick_start" / "trainer_config.lr.py", ("is_predict else 128", "is_predict else 16"))
    return job


class Trained:
    """What the last pass of a job in some mode has left."""

    def __init__(self, cli: Cli, job: Path, mode: str, *layout: object, passes: int = 1) -> None:
        output = job.parent / f"{mode}-{layout[1]}"
        text = job.read_text()
        job.write_text(text + MODES[mode])
        done = cli.run("train", job, "--output", output, "--passes", passes, "--json", *layout)
        job.write_text(text)
        assert done.code == 0, done.err + done.out
        self.hash: str = done.json["hash"]
        lines = (output / "metrics.jsonl").read_text().splitlines()
        events = [event for event in map(json.loads, lines) if event["event"] == "pass"]
        assert len(events) == passes
        self.event = events[-1]
        self.metrics: dict[str, Any] = json.loads((output / pass_name(passes - 1) / "metrics.json").read_text())
        ledger = [json.loads(line) for line in (output / "ledger.jsonl").read_text().splitlines()]
        self.applied = [(row["read"], row["trained"], row["applied"]) for row in ledger if row["pass"] == passes - 1]


def check(found: Trained) -> None:
    """What holds in every mode: each sample counts once, the model has learnt, and both files agree."""
    assert found.applied == [(201, 201, 201), (200, 200, 200), (200, 200, 200)]
    assert found.metrics["test_samples"] == 120
    assert found.metrics["test_cost"] < 0.69  # a coin has ln 2 = 0.693
    for name in ("staleness", "wire_error", "cost", "test_cost"):
        assert found.event[name] == found.metrics[name]


@pytest.mark.parametrize("mode", ["bounded", "async"])
def test_updates_by_single_shards_are_counted_by_their_staleness(cli: Cli, short: Path, mode: str) -> None:
    # How much a pass teaches depends on the timing here, and under load one pass may teach next to nothing.
    found = Trained(cli, short, mode, *THREE, passes=4)
    check(found)
    staleness = {int(ahead): count for ahead, count in found.metrics["staleness"].items()}
    assert sum(staleness.values()) == UPDATES
    assert min(staleness) == 0
    assert mode != "bounded" or max(staleness) <= STALENESS
    assert found.metrics["wire_error"] == 0.0


@pytest.mark.parametrize("mode", [pytest.param("average", marks=pytest.mark.slow), "elastic"])
def test_local_shards_give_one_model_for_every_layout(cli: Cli, short: Path, mode: str) -> None:
    one, three = Trained(cli, short, mode, *ONE), Trained(cli, short, mode, *THREE)
    assert one.hash == three.hash
    for found in (one, three):
        check(found)
        assert (found.metrics["staleness"], found.metrics["wire_error"]) == ({}, 0.0)


@pytest.mark.parametrize(
    ("coding", "least", "most"),
    [
        pytest.param("float16", 1e-5, 1e-3, marks=pytest.mark.slow),
        ("bfloat16", 1e-4, 1e-2),
        ("top_k", 0.1, 1),
    ],
)
def test_every_coding_gives_one_model_for_every_layout(
    cli: Cli, short: Path, coding: str, least: float, most: float
) -> None:
    one, three = Trained(cli, short, coding, *ONE), Trained(cli, short, coding, *THREE)
    assert one.hash == three.hash
    for found in (one, three):
        check(found)
        assert found.metrics["staleness"] == {}
        assert least < found.metrics["wire_error"] < most


def test_local_training_continues_an_earlier_runs_schedule(cli: Cli, short: Path) -> None:
    config = short.parent / "quick_start" / "trainer_config.lr.py"
    decay = "learning_rate_decay_a=1e-2, learning_rate_decay_b=0.5, learning_method=MomentumOptimizer()"
    edit(config, ("learning_method=AdamOptimizer()", decay))
    shard = short.parent / "0" / "data" / "train.txt"  # shards of one size, as each counts for all
    shard.write_bytes(b"".join(shard.read_bytes().splitlines(keepends=True)[:200]))
    short.write_text(short.read_text() + "mode: local\n")
    whole = cli.run("train", short, "--output", short.parent / "whole", "--json", *ONE)
    parts = [cli.run("train", short, "--passes", 1, *ONE), cli.run("train", short, "--start-pass", 1, "--json", *ONE)]
    assert [whole.code, *(done.code for done in parts)] == [0, 0, 0], whole.err + parts[0].err + parts[1].err
    assert parts[1].json["hash"] == whole.json["hash"]
