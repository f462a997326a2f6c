"""From answers to figures: rates, medians, ratios, costs, and the table that people read."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from engines.workloads import count_per_step, unit_of

Entry = dict[str, Any]


def rate_of(work: str, answers: Sequence[Mapping[str, Any]]) -> float:
    """Units per second of one run: steps are synchronous, so trainers differ only by noise."""
    return count_per_step(work) / statistics.mean(float(a["median_s"]) for a in answers)


def costs_of(answers: Sequence[Mapping[str, Any]], *, by_process: bool) -> dict[str, Any]:
    """Processor time and memory of a whole family; process by process only where it is ours."""
    processes: list[dict[str, Any]] = answers[0]["processes"]
    costs: dict[str, Any] = {
        "cpu_s_per_step": round(sum(p["cpu_s_per_step"] for p in processes), 6),
        "rss_mb": round(sum(p["rss_mb"] for p in processes), 1),
        "anon_mb": round(sum(p["anon_mb"] for p in processes), 1),
    }
    if by_process:
        costs["wire_bytes_per_step"] = answers[0]["wire_bytes_per_step"]
        costs["processes"] = processes
    return costs


class Samples:
    """What one engine gave for one work, run by run."""

    def __init__(self) -> None:
        self.rates: list[float] = []
        self.costs: list[dict[str, Any]] = []
        self.carrier: str | None = None
        self.failures: list[str] = []

    def add(self, rate: float, costs: dict[str, Any], carrier: str | None) -> None:
        """Note one run."""
        self.rates.append(rate)
        self.costs.append(costs)
        self.carrier = carrier

    @property
    def median(self) -> float | None:
        """The figure, or None where no run gave one."""
        return round(statistics.median(self.rates), 3) if self.rates else None

    def typical_costs(self) -> dict[str, Any] | None:
        """Costs of the run whose rate is nearest to the median."""
        if not self.rates:
            return None
        middle = statistics.median(self.rates)
        nearest = min(range(len(self.rates)), key=lambda i: abs(self.rates[i] - middle))
        return self.costs[nearest]

    def spread(self) -> dict[str, Any] | None:
        """Smallest, largest and all of them."""
        if not self.rates:
            return None
        rounded = [round(r, 3) for r in self.rates]
        return {"n": len(rounded), "min": min(rounded), "max": max(rounded), "samples": rounded}


def entry_of(work: str, ours: Samples, peers: Mapping[str, Samples], notes: Mapping[str, str]) -> Entry:
    """One row of the table as it is in the JSON; a peer without a figure stays in it, with the reason in `notes`."""
    engines = {"ours": ours, **peers}
    figures = {name: samples.median for name, samples in peers.items()}
    failed = {name: f"failed: {s.failures[-1]}" for name, s in engines.items() if s.failures}
    mine = ours.median
    return {
        "unit": unit_of(work),
        "ours": mine,
        "carrier": ours.carrier,
        "peers": figures,
        "ratios": {name: ratio_of(mine, figure) for name, figure in figures.items() if mine and figure},
        "spread": {name: samples.spread() for name, samples in engines.items()},
        "costs": {name: samples.typical_costs() for name, samples in engines.items()},
        "notes": {**failed, **notes},
    }


def ratio_of(ours: float | None, theirs: float | None) -> float:
    """How many times as fast we are."""
    if not ours or not theirs:
        raise ValueError("a ratio needs two figures")
    return round(ours / theirs, 3)


def short(value: float | None) -> str:
    """A figure in few characters; a dash where there is none."""
    if value is None:
        return "—"
    if value >= 10_000:
        return f"{value / 1000:.0f}k"
    if value >= 100:
        return f"{value:.0f}"
    return f"{value:.1f}" if value >= 10 else f"{value:.2f}"


def table(entries: Mapping[str, Entry]) -> str:
    """Figures with our ratio to each in brackets, one row a name, then the notes."""
    peers = list(dict.fromkeys(name for entry in entries.values() for name in entry["peers"]))
    rows = [["", "unit", "carrier", "ours", "(min–max)", *peers]]
    for name, entry in entries.items():
        spread = entry["spread"]["ours"]
        reach = f"{short(spread['min'])}–{short(spread['max'])}" if spread else ""
        row = [name, entry["unit"], entry["carrier"] or "—", short(entry["ours"]), reach]
        rows.append(row + [_with_ratio(entry, peer) for peer in peers])
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    lines = ["  ".join(_pad(cell, widths[i], i) for i, cell in enumerate(row)).rstrip() for row in rows]
    notes = [f"{name}: {who}: {why}" for name, e in entries.items() for who, why in e["notes"].items()]
    return "\n".join([*lines, *([""] if notes else []), *notes])


def _with_ratio(entry: Entry, peer: str) -> str:
    ratio = entry["ratios"].get(peer)
    figure = short(entry["peers"].get(peer))
    return f"{figure} ({ratio:.2f}×)" if ratio else figure


def _pad(cell: str, width: int, column: int) -> str:
    return cell.ljust(width) if column < 3 else cell.rjust(width)
