"""What a cut costs: `./dev bench cuts [--only NAME]… [--reps N] [--json]`.

A cluster of real processes does blocks of rounds, in turn one without a cut and one with a cut in it, so that
both kinds see the same machine. Trainers compute nothing: there is nothing to hide a cut behind. Results are, for each
size, the worst round of a block beside the median round without cuts, what a block with a cut takes
longer than its neighbour, and that as a share of the ten seconds that lie between two cuts of a job.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from engines.local_cluster import BATCHES, Cluster, Shape
from engines.running import RunFailedError
from machine import RESULTS, machine_facts, summarise

from bireme.core.errors import BiremeError, UsageError

MILLION = 1_000_000
EVERY_S = 10.0
"""How often a job is cut, unless its file says otherwise."""
SHAPES = {
    "dense-1m": Shape(2, 2, MILLION, method="adam", has_cuts=True),
    "dense-10m": Shape(2, 2, 10 * MILLION, method="adam", has_cuts=True),
    "dense-50m": Shape(2, 2, 50 * MILLION, method="adam", has_cuts=True),
    "rows": Shape(2, 2, 16, rows=30_000, has_cuts=True),
}
BLOCK_S = {"dense-50m": 5.0}
"""Long enough for the part to be written within it; a second and a half for all others."""
SETTLE = 3


@dataclass
class Taken:
    """Blocks of rounds, in seconds, and what pservers reported of the parts."""

    calm: list[list[float]] = field(default_factory=list)
    cut: list[list[float]] = field(default_factory=list)
    parts: list[dict[str, Any]] = field(default_factory=list)
    cpu: list[float] = field(default_factory=list)
    """Seconds of processor time that pservers had in a block with a cut beyond those without one."""


def one_block(cluster: Cluster, count: int, *, has_cut: bool) -> tuple[list[float], list[dict[str, Any]]]:
    """Do rounds; with a cut, also wait until its parts are on disk, so that the next block is not disturbed by it."""
    for pserver in cluster.pservers if has_cut else ():
        pserver.ask(do="cut")
        pserver.fetch()  # else the rounds may be over before it has heard
    seconds = cluster.rounds(count)
    for pserver in cluster.pservers if has_cut else ():
        pserver.ask(do="part")
    return seconds, [pserver.fetch() for pserver in cluster.pservers] if has_cut else []


def processor_s(cluster: Cluster) -> float:
    """Processor time of all pservers so far: it says something on a busy machine, too."""
    for pserver in cluster.pservers:
        pserver.ask(do="cpu")
    return float(sum(pserver.fetch()["seconds"] for pserver in cluster.pservers))


def time_shape(name: str, shape: Shape, reps: int, environment: Mapping[str, str]) -> Taken:
    """Blocks with and without a cut, in turn."""
    taken = Taken()
    with Cluster(shape, environment) as cluster:
        # The first rounds map all memory, the first cut its own.
        guess = min(cluster.rounds(2 * BATCHES))
        count = max(int(BLOCK_S.get(name, 1.5) / guess), 2 * SETTLE)
        one_block(cluster, count, has_cut=True)
        for _ in range(reps):
            begun = processor_s(cluster)
            taken.calm.append(one_block(cluster, count, has_cut=False)[0])
            between = processor_s(cluster)
            seconds, parts = one_block(cluster, count, has_cut=True)
            taken.cpu.append(processor_s(cluster) - between - (between - begun))
            taken.cut.append(seconds)
            taken.parts += parts
    return taken


def figure_of(shape: Shape, taken: Taken) -> dict[str, Any]:
    """What is written down: milliseconds, and shares of a round and of the time between cuts."""
    median = statistics.median(s for block in taken.calm for s in block)
    pairs = list(zip(taken.calm, taken.cut, strict=True))
    cost = [sum(cut) - sum(calm) for calm, cut in pairs]
    return {
        "trainers": shape.trainers,
        "pservers": shape.pservers,
        "parameters": shape.floats,
        "rows": shape.rows,
        "method": "adagrad" if shape.rows else shape.method,
        "rounds_in_a_block": len(taken.calm[0]),
        "round_ms": summarise([1e3 * s for block in taken.calm for s in block]) | {"samples": []},
        "worst_to_median": summarise([max(cut) / median for cut in taken.cut]),
        "worst_to_median_without_cuts": summarise([max(calm) / median for calm in taken.calm]),
        "cost_ms": summarise([1e3 * c for c in cost]),
        "overhead_percent": summarise([100 * c / EVERY_S for c in cost]),
        "processor_ms": summarise([1e3 * s for s in taken.cpu]),
        "part_mb": summarise([part["nbytes"] / 1e6 for part in taken.parts]),
        "on_disk_after_s": summarise([part["seconds"] for part in taken.parts]),
    }


def show(figures: Mapping[str, Mapping[str, Any]]) -> None:
    """A small table for people: medians, and what the best block had."""
    print(
        f"{'':<10} {'round':>9} {'worst / median':>20} {'without':>16} {'cut costs':>21} {'every 10 s':>17} {'cpu':>10}"
    )
    for name, figure in figures.items():
        worst, calm, cost = figure["worst_to_median"], figure["worst_to_median_without_cuts"], figure["cost_ms"]
        share = figure["overhead_percent"]
        print(
            f"{name:<10} {figure['round_ms']['median']:>6.2f} ms"
            f" {worst['median']:>8.2f} (best {worst['min']:.2f}) {calm['median']:>6.2f} ({calm['min']:.2f})"
            f" {cost['median']:>8.1f} ms (best {cost['min']:.1f})"
            f" {share['median']:>7.2f} % (best {share['min']:.2f}) {figure['processor_ms']['median']:>7.0f} ms"
        )


def parse(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """What the command line asks for."""
    parser = argparse.ArgumentParser(prog="./dev bench cuts", description="What a cut costs.")
    parser.add_argument("--only", action="append", choices=sorted(SHAPES), help="measure only this; can be repeated")
    parser.add_argument("--reps", type=int, default=5, help="pairs of blocks (default 5)")
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")
    given = parser.parse_args(arguments)
    if given.reps < 1:
        raise UsageError(f"--reps {given.reps}: at least one repetition is needed")
    return given


def main() -> None:
    """Parse, measure, print."""
    try:
        given = parse()
        facts = {**machine_facts(), "date": datetime.now(UTC).date().isoformat()}
        figures = {}
        for name in given.only or SHAPES:
            print(f"{name}: {given.reps} pairs of blocks …", file=sys.stderr, flush=True)
            figures[name] = figure_of(SHAPES[name], time_shape(name, SHAPES[name], given.reps, os.environ))
    except (BiremeError, RunFailedError) as e:
        print("\n".join(e.lines()) if isinstance(e, BiremeError) else e, file=sys.stderr)
        sys.exit(e.exit_code if isinstance(e, BiremeError) else 1)
    except KeyboardInterrupt:
        sys.exit(130)
    result = {"bench": "cuts", "machine": facts, "figures": figures}
    RESULTS.mkdir(exist_ok=True)
    (RESULTS / "cuts.json").write_text(json.dumps(result, indent=2) + "\n", encoding="utf-8")
    if given.json:
        print(json.dumps(result))
        return
    show(figures)
    print("\nwritten to bench/results/cuts.json")


if __name__ == "__main__":
    main()
