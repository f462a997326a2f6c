"""How fast the demo's job trains on this machine: `./dev bench demo [--reps N] [--passes P] [--json]`.

The data is prepared once; then the job runs `reps` times as people run it, with `bireme train` and
real processes. A first pass may hold work that is done once, so rates are given with it and without it.
Runs must end with one hash: a figure for a wrong result would be worth nothing.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from machine import machine_facts, report, summarise

from bireme.demo.prepare import prepare


def train(job: Path, output: Path, flags: list[str], environment: dict[str, str]) -> dict[str, Any]:
    """One run; returns what `bireme train --json` says, with the seconds it took in all."""
    command = [sys.executable, "-m", "bireme", "train", str(job), "--output", str(output), "--json", *flags]
    begun = time.perf_counter()
    done = subprocess.run(command, check=False, stdout=subprocess.PIPE, env=environment)
    seconds = time.perf_counter() - begun
    result: dict[str, Any] = json.loads(done.stdout)
    if done.returncode:
        raise SystemExit(f"the job failed: {result}")
    return {**result, "wall_s": seconds}


def shares_of(closed: list[dict[str, Any]]) -> dict[str, float]:
    """Where trainer 0's time went after start-up, over all passes: shares by what was done."""
    spent: dict[str, float] = {}
    for one in closed:
        for name, seconds in one["spent"].items():
            if name != "begin":
                spent[name] = spent.get(name, 0.0) + seconds
    total = sum(spent.values())
    return {name: seconds / total for name, seconds in sorted(spent.items(), key=lambda item: -item[1])}


def figures_of(runs: list[dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """Rates and times over all runs."""
    passes = [run["passes_done"] for run in runs]

    def rate(closed: list[dict[str, Any]]) -> float:
        return float(sum(p["samples"] for p in closed) / sum(p["seconds"] for p in closed))

    figures = {
        "samples/s, all passes": [rate(p) for p in passes],
        "passes/s, all passes": [len(p) / sum(c["seconds"] for c in p) for p in passes],
        "first pass, s": [p[0]["seconds"] for p in passes],
        "whole command, s": [run["wall_s"] for run in runs],
    }
    shares = [shares_of(p) for p in passes]
    for name in shares[0]:
        figures[f"trainer 0's time: {name}, %"] = [100 * share.get(name, 0.0) for share in shares]
    if all(len(p) > 1 for p in passes):
        figures["samples/s, without the first pass"] = [rate(p[1:]) for p in passes]
        figures["later passes (median of each run), s"] = [
            statistics.median(c["seconds"] for c in p[1:]) for p in passes
        ]
    return {label: summarise(samples) for label, samples in figures.items()}


def measure(reps: int, flags: list[str], folder: Path) -> tuple[dict[str, dict[str, Any]], str]:
    """Run the job after one run that fills the caches; returns the figures and the one hash."""
    prepare(folder / "job")
    environment = {
        **os.environ,
        "XDG_CACHE_HOME": str(folder / "cache"),
        "XDG_STATE_HOME": str(folder / "state"),
    }
    runs = [train(folder / "job" / "job.yaml", folder / f"output-{rep}", flags, environment) for rep in range(reps + 1)]
    hashes = {run["hash"] for run in runs}
    if len(hashes) > 1:
        raise SystemExit(f"equal runs ended with different models: {sorted(hashes)}")
    return figures_of(runs[1:]), hashes.pop()


def main() -> None:
    """Parse, measure, print."""
    parser = argparse.ArgumentParser(description="Training speed of the demo's job, as people run it.")
    parser.add_argument("--reps", type=int, default=5, help="runs of the job (default 5)")
    parser.add_argument("--passes", type=int, default=10, help="passes of each run (default 10)")
    parser.add_argument("--trainers", type=int, default=3, help="trainers (default 3)")
    parser.add_argument("--pservers", type=int, default=3, help="pservers (default 3)")
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")
    given = parser.parse_args()
    counts = {"passes": given.passes, "trainers": given.trainers, "pservers": given.pservers}
    facts = machine_facts()
    flags = [f"--{name}={value}" for name, value in counts.items()]
    with tempfile.TemporaryDirectory(prefix="bireme-bench-") as folder:
        figures, digest = measure(max(given.reps, 1), flags, Path(folder))
    name = "demo" if (given.trainers, given.pservers) == (3, 3) else f"demo-{given.trainers}t-{given.pservers}p"
    report(name, {**facts, "job": counts, "model_hash": digest}, figures, as_json=given.json)


if __name__ == "__main__":
    main()
