"""What share of the time is work under faults: `./dev bench goodput [--mtbf 60] [--faults 30] [--seed N] [--json]`.

The demo's job, made long by much data, is drilled with random faults (`bireme drill --random`: kills of trainers,
pservers, nodes and everything, and pauses) until the last of them has struck. How long the same passes take undisturbed
is known from runs before and after, on the same machine. Goodput is the one divided by the other: recomputed
rounds, restarts and waiting are losses. Takes mtbf x faults seconds and a few minutes.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from demo import train
from machine import RESULTS, machine_facts

from bireme.local.demo import prepare
from bireme.local.drilling import at_random
from bireme.spec.load import load_job

CALM_PASSES = 20
REVIEWS = 240_000
"""Ten times the demo's: passes of seconds, so that saving models is the small part that it is in real jobs."""


def calm_pass_s(job: Path, output: Path, environment: dict[str, str]) -> float:
    """Seconds that one pass takes undisturbed, cuts included."""
    told = train(job, output, [f"--passes={CALM_PASSES}"], environment)
    return statistics.fmean(one["seconds"] for one in told["passes_done"][1:])


def drill(job: Path, output: Path, flags: Sequence[str], environment: dict[str, str]) -> dict[str, Any]:
    """One disturbed run; what `bireme drill --json` tells of it."""
    command = [sys.executable, "-m", "bireme", "drill", str(job), "--output", str(output), "--no-reference", "--json"]
    done = subprocess.run([*command, *flags], check=True, stdout=subprocess.PIPE, env=environment)
    told: dict[str, Any] = json.loads(done.stdout)
    return told


def measure(mtbf_s: float, faults: int, seed: int, folder: Path) -> dict[str, Any]:
    """Calm, disturbed, calm again."""
    prepare(folder / "job", reviews=REVIEWS)
    job = folder / "job" / "job.yaml"
    environment = {**os.environ, "XDG_CACHE_HOME": str(folder / "cache"), "XDG_STATE_HOME": str(folder / "state")}
    before = calm_pass_s(job, folder / "before", environment)
    last_s = at_random(load_job(job, {}), seed, mtbf_s, faults)[-1].after_s or 0.0
    # The last fault must find the job at work, and a disturbed job is slower than this takes it to be.
    passes = math.ceil((last_s + mtbf_s / 2) / before)
    flags = ["--random", f"--mtbf={mtbf_s}s", f"--seed={seed}", f"--faults={faults}", f"--passes={passes}"]
    told = drill(job, folder / "disturbed", flags, environment)
    after = calm_pass_s(job, folder / "after", environment)
    return {
        "mtbf_s": mtbf_s,
        "seed": seed,
        "faults": told["faults"],
        "passes": passes,
        "calm_pass_s": [round(before, 4), round(after, 4)],
        "seconds": round(told["seconds"], 1),
        "goodput": round((before + after) / 2 * passes / told["seconds"], 4),
        "redone": told["redone"],
        "back_s_median": told["back_s_median"],
        "back_s_worst": told["back_s_worst"],
        "each": told["each"],
    }


def main() -> None:
    """Parse, measure, tell."""
    parser = argparse.ArgumentParser(description="The share of a disturbed job's time that is work.")
    parser.add_argument("--mtbf", type=float, default=60.0, help="mean seconds between two faults (default 60)")
    parser.add_argument("--faults", type=int, default=30, help="how many faults (default 30)")
    parser.add_argument("--seed", type=int, default=1, help="which faults (default 1)")
    parser.add_argument("--json", action="store_true", help="print JSON instead of two lines")
    given = parser.parse_args()
    facts = machine_facts()
    with tempfile.TemporaryDirectory(prefix="bireme-bench-") as folder:
        figures = measure(given.mtbf, given.faults, given.seed, Path(folder))
    told = {"bench": "goodput", "machine": facts, "figures": figures}
    name = f"goodput-{given.mtbf:.0f}s.json"
    (RESULTS / name).write_text(json.dumps(told, indent=2) + "\n", encoding="utf-8")
    if given.json:
        print(json.dumps(told))
        return
    print(f"goodput {figures['goodput']:.1%} over {figures['faults']} faults, {given.mtbf:.0f} s apart on average")
    print(f"back at work after {figures['back_s_median']} s (median), {figures['back_s_worst']} s at worst")
    print(f"written to bench/results/{name}")


if __name__ == "__main__":
    main()
