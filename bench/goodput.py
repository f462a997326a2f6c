"""What share of the time is work under faults: `./dev bench goodput [--mtbf 60] [--faults 30] [--pace MS] [--json]`.

The demo's job, made long by much data, is drilled with random faults (`bireme drill --random`: kills of trainers,
pservers, nodes and everything, and pauses) until the last of them has struck. How long a pass takes undisturbed is
the mean of those passes of the same run that no fault fell into, so that both have met the same machine. What the run
took longer than all its passes would have like that is lost: recomputed rounds, restarts, waiting and the start.
Goodput is the rest of the time until the last fault was over. Takes mtbf x faults seconds, and a tenth more. With
`--pace`, each message waits up to so many milliseconds, so that rounds take time but no processor, as where an
accelerator computes.
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
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from demo import train
from machine import RESULTS, machine_facts

from bireme.demo.prepare import prepare
from bireme.local.faults import at_random
from bireme.spec.load import load_job

TRIAL_PASSES = 5
REVIEWS = 240_000
"""Ten times the demo's: passes of seconds, so that saving models is the small part that it is in real jobs."""
PACED_REVIEWS = 24_000
PAUSE_S = 10.0
"""Longer than a random pause and what follows from it."""


def trial_pass_s(job: Path, output: Path, environment: dict[str, str]) -> float:
    """About how many seconds a pass takes, to know how many will be needed."""
    result = train(job, output, [f"--passes={TRIAL_PASSES}"], environment)
    return statistics.fmean(one["seconds"] for one in result["passes_done"][1:])


def undisturbed_s(passes: Sequence[Mapping[str, Any]], faults: Sequence[Mapping[str, Any]]) -> list[float]:
    """Seconds of the passes that no fault fell into, nor the time that it took to be back at work."""
    spans = [(one["at_s"], one["at_s"] + (one["back_s"] or PAUSE_S)) for one in faults]
    found = []
    for one in passes:
        begun, ended = one["t"] - one["seconds"], one["t"]
        if not any(start < ended and begun < end for start, end in spans):
            found.append(float(one["seconds"]))
    return found


def drill(job: Path, output: Path, flags: Sequence[str], environment: dict[str, str]) -> dict[str, Any]:
    """One disturbed run; what `bireme drill --json` reports of it."""
    command = [sys.executable, "-m", "bireme", "drill", str(job), "--output", str(output), "--no-reference", "--json"]
    done = subprocess.run([*command, *flags], check=True, stdout=subprocess.PIPE, env=environment)
    result: dict[str, Any] = json.loads(done.stdout)
    return result


def measure(mtbf_s: float, faults: int, seed: int, pace_ms: float, folder: Path) -> dict[str, Any]:
    """A short trial, and then the disturbed run."""
    prepare(folder / "job", reviews=PACED_REVIEWS if pace_ms else REVIEWS)
    job = folder / "job" / "job.yaml"
    environment = {**os.environ, "XDG_CACHE_HOME": str(folder / "cache"), "XDG_STATE_HOME": str(folder / "state")}
    if pace_ms:
        environment["BIREME_FAULTS"] = f"delay:seed=1,max_ms={pace_ms:g}"
    trial = trial_pass_s(job, folder / "trial", environment)
    last_s = at_random(load_job(job, {}), seed, mtbf_s, faults)[-1].after_s or 0.0
    # The last fault must find the job at work, also if the trial met a slower machine than the run does.
    passes = math.ceil((1.1 * last_s + mtbf_s / 2) / trial)
    flags = ["--random", f"--mtbf={mtbf_s}s", f"--seed={seed}", f"--faults={faults}", f"--passes={passes}"]
    result = drill(job, folder / "disturbed", flags, environment)
    lines = (folder / "disturbed" / "disturbed" / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    closed = [one for one in map(json.loads, lines) if one["event"] == "pass"]
    return {"mtbf_s": mtbf_s, "seed": seed, "pace_ms": pace_ms, "passes": passes, **figures_of(result, closed)}


def figures_of(result: Mapping[str, Any], closed: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Goodput and what it comes from, of one disturbed run."""
    calm = undisturbed_s(closed, result["each"])
    under_fire_s = max(one["at_s"] + (one["back_s"] or PAUSE_S) for one in result["each"])
    lost_s = result["seconds"] - statistics.fmean(calm) * len(closed)
    return {
        "faults": result["faults"],
        "seconds": round(result["seconds"], 1),
        "under_fire_s": round(under_fire_s, 1),
        "lost_s": round(lost_s, 1),
        "undisturbed_passes": len(calm),
        "undisturbed_pass_s": round(statistics.fmean(calm), 4),
        "goodput": round(1.0 - lost_s / under_fire_s, 4),
        "redone": result["redone"],
        "back_s_median": result["back_s_median"],
        "back_s_worst": result["back_s_worst"],
        "back_s_by_kind": by_kind(result["each"]),
        "each": result["each"],
    }


def by_kind(faults: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """The median time until the next round, by what was killed."""
    found: dict[str, list[float]] = {}
    for one in faults:
        action, who = one["fault"].split()[:2]
        if action == "kill" and one["back_s"] is not None:
            found.setdefault(who.partition(":")[0], []).append(one["back_s"])
    return {who: round(statistics.median(taken), 2) for who, taken in sorted(found.items())}


def main() -> None:
    """Parse, measure, print."""
    parser = argparse.ArgumentParser(description="The share of a disturbed job's time that is work.")
    parser.add_argument("--mtbf", type=float, default=60.0, help="mean seconds between two faults (default 60)")
    parser.add_argument("--faults", type=int, default=30, help="how many faults (default 30)")
    parser.add_argument("--seed", type=int, default=1, help="which faults (default 1)")
    parser.add_argument("--pace", type=float, default=0.0, help="milliseconds that messages wait at most (default 0)")
    parser.add_argument("--json", action="store_true", help="print JSON instead of two lines")
    given = parser.parse_args()
    facts = machine_facts()
    with tempfile.TemporaryDirectory(prefix="bireme-bench-") as folder:
        figures = measure(given.mtbf, given.faults, given.seed, given.pace, Path(folder))
    result = {"bench": "goodput", "machine": facts, "figures": figures}
    name = f"goodput-{given.mtbf:.0f}s.json"
    (RESULTS / name).write_text(json.dumps(result, indent=2) + "\n", encoding="utf-8")
    if given.json:
        print(json.dumps(result))
        return
    print(f"goodput {figures['goodput']:.1%} over {figures['faults']} faults, {given.mtbf:.0f} s apart on average")
    print(f"back at work after {figures['back_s_median']} s (median), {figures['back_s_worst']} s at worst")
    print("by what was killed: " + ", ".join(f"{who} {s} s" for who, s in figures["back_s_by_kind"].items()))
    print(f"written to bench/results/{name}")


if __name__ == "__main__":
    main()
