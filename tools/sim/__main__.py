"""`python -m tools.sim`: run random histories, or one of them again."""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from itertools import chain

from tools.sim.case import MODES, Mode, usual_shape
from tools.sim.faults import PROFILES
from tools.sim.history import Outcome, run_history

CHUNK = 50
"""Histories that a process runs before it reports."""


def parser() -> argparse.ArgumentParser:
    """The command line."""
    options = argparse.ArgumentParser(
        prog="./dev simulate",
        description="Run a job's own state machines through random histories of faults, in virtual time.",
        epilog="Example: ./dev simulate --histories 1000 --seed 7 --jobs 2",
    )
    options.add_argument("--histories", type=_count, default=1000, metavar="N", help="how many (1000)")
    options.add_argument(
        "--seed", type=int, default=0, metavar="S", help="of the first one; each has the next number (0)"
    )
    options.add_argument("--replay", type=int, metavar="SEED", help="run this one again and print what happened")
    options.add_argument("--mode", choices=MODES, help="how updates are made; a mix if left out")
    options.add_argument("--profile", choices=sorted(PROFILES), default="mixed", help="which faults are likely (mixed)")
    options.add_argument("--jobs", type=_count, default=1, metavar="N", help="processes to share the work (1)")
    options.add_argument("--usual", action="store_true", help="always the same job: 3 trainers, 3 pservers, 20 rounds")
    return options


def _count(text: str) -> int:
    if not text.isdecimal() or not int(text):
        raise argparse.ArgumentTypeError(f"{text!r} is not a number from 1 up")
    return int(text)


def main(arguments: list[str] | None = None) -> int:
    """Run histories; returns the exit code."""
    options = parser().parse_args(arguments)
    run = partial(_run, mode=options.mode, profile=options.profile, is_usual=options.usual)
    if options.replay is not None:
        outcome = run([options.replay])[0]
        _show(outcome, options)
        return 1 if outcome.broken else 0
    seeds = range(options.seed, options.seed + options.histories)
    chunks = [list(seeds[i : i + CHUNK]) for i in range(0, len(seeds), CHUNK)]
    began, began_cpu = time.perf_counter(), _cpu_s()
    count, faults, failed = 0, Counter[str](), None
    for outcome in _outcomes(run, chunks, options.jobs):
        count += 1
        faults += outcome.faults
        if outcome.broken:
            failed = outcome
            break
    took_s = time.perf_counter() - began
    print(_summary(seeds[:count], took_s, _cpu_s() - began_cpu, faults))
    if failed is not None:
        _show(failed, options)
        return 1
    print("all invariants held in all of them")
    return 0


def _run(seeds: list[int], *, mode: Mode | None, profile: str, is_usual: bool) -> list[Outcome]:
    return [run_history(seed, mode, profile, usual_shape() if is_usual else None) for seed in seeds]


def _cpu_s() -> float:
    """CPU time of this process and its finished children."""
    times = os.times()
    return times.user + times.system + times.children_user + times.children_system


def _summary(seeds: range, took_s: float, cpu_s: float, faults: Counter[str]) -> str:
    """One line with speed and faults, and the seeds to repeat it. A core's minute is one of CPU time."""
    count = len(seeds)
    each = ", ".join(f"{name} {n}" for name, n in faults.most_common())
    return (
        f"{count} histories in {took_s:.1f} s, seeds {seeds.start} to {seeds.stop - 1}: {count / took_s:.1f} a second, "
        f"{60 * count / max(cpu_s, 1e-3):,.0f} a minute and core; {faults.total()} faults: {each or 'none'}"
    )


def _outcomes(run: partial[list[Outcome]], chunks: list[list[int]], jobs: int) -> Iterator[Outcome]:
    if jobs == 1:
        yield from chain.from_iterable(map(run, chunks))
        return
    with ProcessPoolExecutor(jobs) as pool:
        for chunk in pool.map(run, chunks):
            yield from chunk


def _show(outcome: Outcome, options: argparse.Namespace) -> None:
    """Print a history: its last events, the broken invariant, and the command that repeats it."""
    print(f"seed {outcome.seed}: {outcome.shape}")
    for at, who, what in outcome.trace:
        print(f"{at:10.4f}  {who:<12} {what}")
    each = ", ".join(f"{name} {n}" for name, n in outcome.faults.items())
    print(f"{outcome.events} events, {outcome.seconds:.1f} virtual seconds; faults: {each or 'none'}")
    if not outcome.broken:
        print("all invariants held")
        return
    again = f"./dev simulate --replay {outcome.seed}"
    again += f" --mode {options.mode}" if options.mode else ""
    again += f" --profile {options.profile}" if options.profile != "mixed" else ""
    again += " --usual" if options.usual else ""
    print(f"BROKEN  {outcome.broken}\nsee it again: {again}")


if __name__ == "__main__":
    sys.exit(main())
