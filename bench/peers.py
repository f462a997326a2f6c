"""Ours beside the engines that people could pick instead: `./dev bench peers [--only NAME]… [--reps N] [--json]`.

In every repetition each engine runs once, in turn, so that whatever else the machine does meets all of
them. Every run proves its result by arithmetic before its figure counts. Peers have one transport
each, so a repetition's figure of theirs stands beside ours over TCP and ours on one machine.
Machines differ: only ratios within one run say anything.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from engines.catalogue import PEERS, Engine, ours
from engines.homes import python_of
from engines.picture import draw
from engines.running import BENCH, RunFailedError, free_ports, perform
from engines.tables import Entry, Samples, costs_of, entry_of, rate_of, table
from engines.workloads import BOW_STEP, DENSE_SIZES, WORKS
from machine import RESULTS, machine_facts

import bireme
from bireme.core.errors import BiremeError, MissingError, UsageError

NAMES = (*(f"{size}-{place}" for size in DENSE_SIZES for place in ("tcp", "local")), "sparse", "bow")
PICTURE = BENCH.parent / "docs" / "img" / "peers.svg"
FIRST_STEPS = {"dense-1m": 60, "dense-10m": 12, "dense-50m": 4, "sparse": 15, "bow": 120}
WARMUP = {"dense-1m": 10, "dense-10m": 3, "dense-50m": 2, "sparse": 4, "bow": 20}
TIMED_S = 2.5
MOST_STEPS = 3000
"""More, and rounding could hide a lost step."""
MOST_FAILURES = 2


def split_name(name: str) -> tuple[str, str]:
    """Work and place of a name; without a place the library's own choice counts."""
    work, _, place = name.rpartition("-")
    return (work, place) if place in ("tcp", "local") else (name, "local")


def chosen(only: Sequence[str]) -> list[str]:
    """The names to measure, in our order."""
    for name in only:
        if name not in NAMES:
            raise UsageError(f"there is no work {name!r}", fix=f"choose from {', '.join(NAMES)}")
    return [name for name in NAMES if not only or name in only]


def next_steps(work: str, median_s: float) -> int:
    """As many steps as fill the time of a run, judged by the run before."""
    fewest = max(BOW_STEP + 1 - WARMUP[work], 0) if work == "bow" else 4
    return min(max(int(TIMED_S / median_s), fewest), MOST_STEPS)


class Bench:
    """Runs engines in turn and keeps what they gave."""

    def __init__(self, environment: Mapping[str, str]) -> None:
        self._environment = environment
        self._steps: dict[tuple[str, str, str], int] = {}
        self.pythons: dict[str, str] = {"": sys.executable}
        self.missing: dict[str, str] = {}

    def prepare(self, homes: Sequence[str]) -> None:
        """Find or make the peers' environments; what cannot be had is reported, not left out."""
        for home in dict.fromkeys(homes):
            try:
                self.pythons[home] = python_of(home, self._environment)
            except MissingError as e:
                self.missing[home] = f"not available: {e.what}" + (f" ({e.fix})" if e.fix else "")
                _say(f"{home} is {self.missing[home]}")

    def run(self, engine: Engine, work: str, samples: Samples) -> None:
        """One run of one engine; a failure is noted with the samples."""
        if engine.home in self.missing or len(samples.failures) >= MOST_FAILURES:
            return
        key = (engine.name, engine.options.get("place", ""), work)
        steps = self._steps.get(key, FIRST_STEPS[work])
        ports = free_ports(6)
        run = engine.run(work, steps, WARMUP[work], self.pythons[engine.home], ports)
        try:
            answers = perform(run, self._variables(engine), ports)
        except RunFailedError as e:
            samples.failures.append(str(e))
            _say(f"{engine.name}, {work}: {e}")
            return
        self._steps[key] = next_steps(work, answers[0]["median_s"])
        is_ours = not engine.home
        samples.add(rate_of(work, answers), costs_of(answers, by_process=is_ours), answers[0].get("carrier"))

    def _variables(self, engine: Engine) -> dict[str, str]:
        source = [] if engine.home else [str(Path(bireme.__file__).resolve().parent.parent)]
        # gRPC would ask a proxy for the way to this very machine.
        direct = {"no_proxy": "127.0.0.1,localhost", "NO_PROXY": "127.0.0.1,localhost"}
        return {**self._environment, **direct, "PYTHONPATH": os.pathsep.join([str(BENCH), *source])}


def measure(bench: Bench, names: Sequence[str], reps: int) -> dict[str, Entry]:
    """All names; works are measured one after the other, engines interleaved within a work."""
    found: dict[str, Entry] = {}
    for work in WORKS:
        mine = {name: Samples() for name in names if split_name(name)[0] == work}
        theirs = {peer.name: Samples() for peer in PEERS}
        for rep in range(reps if mine else 0):
            _say(f"{work}: repetition {rep + 1} of {reps} …")
            for name, samples in mine.items():
                bench.run(ours(split_name(name)[1]), work, samples)
            for peer in PEERS:
                bench.run(peer, work, theirs[peer.name])
        notes = {peer.name: bench.missing[peer.home] for peer in PEERS if peer.home in bench.missing}
        found.update({name: entry_of(work, samples, theirs, notes) for name, samples in mine.items()})
    return {name: found[name] for name in names}


def keep(entries: Mapping[str, Entry], facts: Mapping[str, Any]) -> None:
    """Add to results and picture; names that were not measured now keep their figures, and the machine of these."""
    file = RESULTS / "peers.json"
    before: dict[str, Any] = json.loads(file.read_text(encoding="utf-8")) if file.exists() else {}
    earlier: dict[str, Entry] = before.get("figures", {})
    # Ratios come from one run, so rows of several machines may stand below each other, if each says which it was.
    kept = {name: {"machine": before.get("machine", {}), **entry} for name, entry in earlier.items()}
    merged: dict[str, Entry] = {**kept, **{name: {**entry, "machine": facts} for name, entry in entries.items()}}
    figures = {name: merged[name] for name in NAMES if name in merged}
    for entry in figures.values():
        if entry["machine"] == facts:
            del entry["machine"]  # it is that of the whole file
    result = {"bench": "peers", "machine": facts, "figures": figures}
    RESULTS.mkdir(exist_ok=True)
    file.write_text(json.dumps(result, indent=2) + "\n", encoding="utf-8")
    PICTURE.parent.mkdir(parents=True, exist_ok=True)
    notes = {name: where(entry["machine"]) for name, entry in figures.items() if "machine" in entry}
    PICTURE.write_text(draw(figures, caption(facts), notes), encoding="utf-8")


def where(facts: Mapping[str, Any]) -> str:
    """The day and the machine, for a row that another run measured."""
    return ", ".join(str(facts[key]) for key in ("date", "cpu") if key in facts) + f", {facts.get('cores', '?')} cores"


def caption(facts: Mapping[str, Any]) -> str:
    """When and on what."""
    machine = f"{facts['cpu']}, {facts['cores']} cores, {facts['memory_gib']} GiB, Linux {facts['kernel']}"
    return f"Measured {facts['date']} on {machine}; medians, engines interleaved in one run."


def _say(text: str) -> None:
    print(f"bench: {text}", file=sys.stderr, flush=True)


def parse(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """What the command line asks for."""
    parser = argparse.ArgumentParser(
        prog="./dev bench peers",
        description="Our data plane beside other engines. All works together take from half an hour to an hour; "
        "one with `--only NAME --reps 1` takes one to three minutes.",
        epilog="The first time it installs TensorFlow (1.7 GB), Ray (400 MB) and MXNet (300 MB), each into an "
        "environment of its own under ~/.cache/bireme/peers, and as root Debian's python3-torch (1 GB) with apt-get. "
        "What cannot be installed is reported, not measured. Writes bench/results/peers.json and docs/img/peers.svg.",
    )
    parser.add_argument("--only", action="append", default=[], metavar="NAME", help=f"one of {', '.join(NAMES)}")
    parser.add_argument("--reps", type=int, default=5, help="repetitions of each work (default 5)")
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")
    given = parser.parse_args(arguments)
    if given.reps < 1:
        raise UsageError(f"--reps {given.reps}: at least one repetition is needed")
    given.names = chosen(given.only)
    return given


def show(entries: Mapping[str, Entry], facts: Mapping[str, Any], *, as_json: bool) -> None:
    """Print one object for one name, an object of objects for several, or the table."""
    if as_json:
        full = {name: {"name": name, **entry, "machine": facts} for name, entry in entries.items()}
        print(json.dumps(next(iter(full.values())) if len(full) == 1 else full))
        return
    load = f"load before {facts['load_before'][0]}, after {facts['load_after'][0]}"
    print(f"{caption(facts)}\n{load}; in brackets: ours / theirs\n\n{table(entries)}")
    print("\nwritten to bench/results/peers.json and docs/img/peers.svg")


def main() -> None:
    """Parse, measure, record, print."""
    try:
        given = parse()
        bench = Bench(os.environ)
        bench.prepare([peer.home for peer in PEERS])
        facts = {**machine_facts(), "date": datetime.now(UTC).date().isoformat(), "reps": given.reps}
        entries = measure(bench, given.names, given.reps)
        facts["load_after"] = [round(x, 2) for x in os.getloadavg()]
        stamp = {"date": facts["date"], "reps": given.reps, "load": facts["load_before"][0]}
        entries = {name: {**entry, "measured": stamp} for name, entry in entries.items()}
        keep(entries, facts)
        show(entries, facts, as_json=given.json)
    except BiremeError as e:
        print("\n".join(e.lines()), file=sys.stderr)
        sys.exit(e.exit_code)
    except KeyboardInterrupt:
        sys.exit(130)
    if any(entry["ours"] is None for entry in entries.values()):
        sys.exit(1)


if __name__ == "__main__":
    main()
