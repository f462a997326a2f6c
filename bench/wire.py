"""From which bandwidth down do coded gradients pay? `./dev bench wire [--mbit 100 300 …] [--reps N] [--json]`.

Two pservers and two trainers, each process in a network namespace of its own, joined by a bridge as machines are by a
switch. Every cable is limited at both ends to the same rate (a token bucket; no delay is added). For each coding a
whole cluster is up and does rounds in its turn, so that all codings meet the same conditions. Below 1000 Mbit/s the
model is ten times smaller, or a round would take a quarter of a minute: there the cables set the time of every
coding, which falls with the bytes for all alike. Results are checked to the last bit.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import shutil
import signal
import statistics
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from itertools import pairwise
from pathlib import Path
from typing import Any, get_args

from engines.local_cluster import Cluster, Seat, Shape
from engines.running import RunFailedError
from engines.tables import short
from machine import RESULTS, machine_facts, summarise

from bireme.core.errors import BiremeError, MissingError, UsageError
from bireme.core.processes import is_alive
from bireme.spec.model import Coding

CODINGS: tuple[Coding, ...] = get_args(Coding)
PLAIN: Coding = "float32"
RATES_MBIT = (100, 300, 1000, 3000, 10000)
FLOATS = 10_000_000
SLOW_MBIT = 1000
SIDES = (("pserver", 2), ("trainer", 2))
PREFIX = "bireme-wire"
SUBNET = "10.83.41"
BURST_S = 0.001
LEAST_BURST = 1 << 17
"""Bytes: two of the large packets that the kernel hands over in one piece."""
QUEUE_MS = 50
TURN_S = 0.7
"""About how long one turn of a coding takes, if a round is not longer."""


class Network:
    """Namespaces, cables and a switch, made on entering and gone on leaving, whatever happens in between."""

    def __init__(self) -> None:
        self._mine = f"{PREFIX}-{os.getpid()}"
        self._ends = [f"{role}-{rank}" for role, count in SIDES for rank in range(count)]

    def __enter__(self) -> Network:
        sweep()
        try:
            self._build()
        except BaseException:
            self.__exit__()
            raise
        return self

    def _build(self) -> None:
        hub = f"{self._mine}-hub"
        _call("ip", "netns", "add", hub)
        _call("ip", "-n", hub, "link", "add", "switch", "type", "bridge")
        _call("ip", "-n", hub, "link", "set", "switch", "up")
        for number, end in enumerate(self._ends):
            own = f"{self._mine}-{end}"
            _call("ip", "netns", "add", own)
            cable = ("link", "add", "cable", "type", "veth", "peer", "name", f"port{number}", "netns", hub)
            _call("ip", "-n", own, *cable)
            _call("ip", "-n", own, "address", "add", f"{self._address(number)}/24", "dev", "cable")
            _call("ip", "-n", own, "link", "set", "cable", "up")
            _call("ip", "-n", hub, "link", "set", f"port{number}", "master", "switch", "up")

    def _address(self, number: int) -> str:
        return f"{SUBNET}.{number + 1}"

    def __exit__(self, *_: object) -> None:
        for end in ("hub", *self._ends):
            # What lives in a namespace goes with it, the other end of each cable too.
            subprocess.run(["ip", "netns", "delete", f"{self._mine}-{end}"], check=False, stderr=subprocess.DEVNULL)

    def limit(self, mbit: int) -> None:
        """Let every cable carry that much in each direction from now on."""
        burst = max(LEAST_BURST, int(mbit * 1e6 / 8 * BURST_S))
        bucket = ("root", "tbf", "rate", f"{mbit}mbit", "burst", str(burst), "latency", f"{QUEUE_MS}ms")
        for number, end in enumerate(self._ends):
            for namespace, device in ((end, "cable"), ("hub", f"port{number}")):
                _call("tc", "-n", f"{self._mine}-{namespace}", "qdisc", "replace", "dev", device, *bucket)

    def seat(self, role: str, rank: int) -> Seat:
        """Where a process sits."""
        end = f"{role}-{rank}"
        prefix = ("ip", "netns", "exec", f"{self._mine}-{end}")
        return Seat(self._address(self._ends.index(end)), prefix)


def _call(*command: str) -> None:
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    if done.returncode:
        said = (done.stderr.strip().splitlines() or ["it did not say why"])[-1]
        raise MissingError(
            f"`{' '.join(command)}` failed: {said}",
            why="without network namespaces, veth, a bridge and tbf in the kernel, no slow network can be made here",
            fix="run this bench where `ip netns add`, `ip link add … type veth` and `tc qdisc … tbf` work",
        )


def sweep(names: Sequence[str] | None = None) -> list[str]:
    """Remove what a bench that was killed has left; returns the namespaces it found."""
    folder = Path("/run/netns")
    found = list(names) if names is not None else [entry.name for entry in folder.iterdir()] if folder.exists() else []
    left = [name for name in found if name.startswith(f"{PREFIX}-") and not is_alive(_owner(name))]
    for name in left:
        subprocess.run(["ip", "netns", "delete", name], check=False, stderr=subprocess.DEVNULL)
    return left


def _owner(namespace: str) -> int:
    pid = namespace.removeprefix(f"{PREFIX}-").partition("-")[0]
    return int(pid) if pid.isdecimal() else 0


def check_rights(user: int, path: str | None = None) -> None:
    """Raise MissingError unless networks can be made by this user with these programs."""
    missing = [name for name in ("ip", "tc") if shutil.which(name, path=path) is None]
    if missing or user != 0:
        what = "`./dev bench wire` MAKES A NETWORK OF ITS OWN: it needs root, and the programs `ip` and `tc`"
        lack = [*(["you are not root"] if user != 0 else []), *(f"`{name}` is not installed" for name in missing)]
        fix = "type: sudo ./dev bench wire" if not missing else "type: apt-get install iproute2, and be root"
        raise MissingError(what, why=f"here {' and '.join(lack)}; nothing was changed", fix=fix)


def floats_at(mbit: int, floats: int) -> int:
    """How large the model is at a rate."""
    return floats if mbit >= SLOW_MBIT else max(floats // 10, 1)


def cable_s(mbit: int, floats: int) -> float:
    """Seconds that a plain round needs at least: a trainer's cable carries all gradients out, all parameters in."""
    return 2 * 4 * 8 * floats / (mbit * 1e6)


def rounds_in_turn(mbit: int, floats: int) -> int:
    """Rounds of one turn, from what the cables allow."""
    return min(max(int(TURN_S / cable_s(mbit, floats)), 1), 8)


def measure(network: Network, rates: Sequence[int], floats: int, reps: int) -> dict[int, dict[Coding, list[float]]]:
    """Steps per second for each rate and coding, one sample a repetition."""
    found: dict[int, dict[Coding, list[float]]] = {mbit: {coding: [] for coding in CODINGS} for mbit in rates}
    for size in sorted({floats_at(mbit, floats) for mbit in rates}):
        _say(f"starting {len(CODINGS)} clusters with {size:,} floats …")
        with ExitStack() as stack:
            clusters: dict[Coding, Cluster] = {}
            for coding in CODINGS:
                shape = Shape(trainers=2, pservers=2, floats=size, coding=coding, place="tcp")
                clusters[coding] = stack.enter_context(Cluster(shape, os.environ, network.seat))
                clusters[coding].rounds(2)
            here = [mbit for mbit in rates if floats_at(mbit, floats) == size]
            for rep in range(reps):
                _say(f"repetition {rep + 1} of {reps} at {', '.join(map(str, here))} Mbit/s …")
                for mbit in here:
                    network.limit(mbit)
                    for coding, cluster in clusters.items():
                        found[mbit][coding].append(_turn(cluster, rounds_in_turn(mbit, size)))
            for cluster in clusters.values():
                cluster.check()
        network.limit(max(RATES_MBIT))
    return found


def _turn(cluster: Cluster, rounds: int) -> float:
    if rounds > 1:
        cluster.rounds(1)  # connections find out what the cables carry now
    return 1.0 / statistics.median(cluster.rounds(rounds))


def figures_of(found: Mapping[int, Mapping[Coding, Sequence[float]]], floats: int) -> dict[str, Any]:
    """What is written down: medians, spreads and ratios against float32."""
    figures = {}
    for mbit, samples in found.items():
        plain = statistics.median(samples[PLAIN])
        size = floats_at(mbit, floats)
        codings = {
            coding: {**summarise(taken), "ratio": round(statistics.median(taken) / plain, 3)}
            for coding, taken in samples.items()
        }
        bound = round(1.0 / cable_s(mbit, size), 4)
        figures[str(mbit)] = {"floats": size, "float32_steps_s_at_most": bound, "steps_s": codings}
    return figures


def crossing(ratios: Mapping[int, float]) -> float:
    """The rate below which a ratio stays above 1; 0 if it never is, infinite if it is at the highest rate too."""
    rates = sorted(ratios)
    last = max((mbit for mbit in rates if ratios[mbit] > 1.0), default=0)
    if last in (0, rates[-1]):
        return math.inf if last else 0.0
    low, high = next(pair for pair in pairwise(rates) if pair[0] == last)
    share = (ratios[low] - 1.0) / (ratios[low] - ratios[high])
    return float(math.exp(math.log(low) + share * math.log(high / low)))


def sentence(coding: Coding, ratios: Mapping[int, float]) -> str:
    """What the figures say of one coding."""
    rates, limit = sorted(ratios), crossing(ratios)
    best = max(rates, key=lambda mbit: ratios[mbit])
    beside = f"at best {ratios[best]:.2f} times float32's speed, at {best:,} Mbit/s"
    if limit == 0.0:
        return f"{coding} does not pay at any of these rates: {beside}."
    if limit == math.inf:
        return f"{coding} pays at all rates up to {rates[-1]:,} Mbit/s: {beside}."
    return f"{coding} pays below about {float(f'{limit:.2g}'):,.0f} Mbit/s: {beside}."


def sentences(figures: Mapping[str, Any]) -> dict[str, str]:
    """One for each coding but the plain one."""
    coded = [coding for coding in CODINGS if coding != PLAIN]
    return {c: sentence(c, {int(r): f["steps_s"][c]["ratio"] for r, f in figures.items()}) for c in coded}


def table(figures: Mapping[str, Any]) -> str:
    """Steps per second, and in brackets how many times as fast as float32."""
    lines = [f"{'Mbit/s':>7} {'floats':>11}" + "".join(f"{coding:>17}" for coding in CODINGS) + f"{'cables allow':>15}"]
    for mbit, figure in figures.items():
        cells = [(c["median"], f"({c['ratio']:.2f}×)") for c in figure["steps_s"].values()]
        row = "".join(f"{short(median):>9} {ratio:>7}" for median, ratio in cells)
        lines.append(f"{int(mbit):>7,} {figure['floats']:>11,}{row}{short(figure['float32_steps_s_at_most']):>15}")
    return "\n".join(lines)


def _say(text: str) -> None:
    print(f"bench: {text}", file=sys.stderr, flush=True)


def parse(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """What the command line asks for."""
    parser = argparse.ArgumentParser(prog="./dev bench wire", description="At which bandwidth coded gradients pay.")
    parser.add_argument("--mbit", type=int, nargs="+", default=list(RATES_MBIT), help="rates of every cable")
    parser.add_argument("--floats", type=int, default=FLOATS, help="parameters; a tenth of it below 1000 Mbit/s")
    parser.add_argument("--reps", type=int, default=3, help="repetitions (default 3)")
    parser.add_argument("--quick", action="store_true", help="a tiny model, to see that it works; writes no results")
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")
    given = parser.parse_args(arguments)
    if given.reps < 1 or given.floats < 1 or min(given.mbit) < 1:
        raise UsageError("--mbit, --floats and --reps must be at least 1")
    given.mbit = sorted(set(given.mbit))
    if given.quick:
        given.floats, given.reps = min(given.floats, 100_000), 1
    return given


def run(given: argparse.Namespace) -> dict[str, Any]:
    """Measure, and write the result down unless it was only a trial."""
    check_rights(os.geteuid())
    facts = machine_facts()
    with Network() as network:
        found = measure(network, given.mbit, given.floats, given.reps)
    facts["load_after"] = [round(x, 2) for x in os.getloadavg()]
    figures = figures_of(found, given.floats)
    how = {"pservers": 2, "trainers": 2, "reps": given.reps, "limit": "every process's cable, each direction"}
    result = {"bench": "wire", "machine": facts, "how": how, "figures": figures, "sentences": sentences(figures)}
    if not given.quick:
        RESULTS.mkdir(exist_ok=True)
        (RESULTS / "wire.json").write_text(json.dumps(result, indent=2) + "\n", encoding="utf-8")
    return result


def main() -> None:
    """Parse, measure, print."""
    # As Ctrl-C: the network goes before we do.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        given = parse()
        result = run(given)
    except BiremeError as e:
        print("\n".join(e.lines()), file=sys.stderr)
        sys.exit(e.exit_code)
    except RunFailedError as e:
        sys.exit(f"bench: {e}")
    except KeyboardInterrupt:
        sys.exit(130)
    if given.json:
        print(json.dumps(result))
        return
    print("steps/s of 2 trainers and 2 pservers, every cable limited in each direction; ×: beside float32\n")
    print("\n".join([table(result["figures"]), "", *result["sentences"].values()]))
    print("\ntiny sizes: these figures say nothing" if given.quick else "\nwritten to bench/results/wire.json")


if __name__ == "__main__":
    main()
