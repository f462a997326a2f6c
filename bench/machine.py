"""What every bench shares: facts about the machine, robust statistics, and where results go.

A figure without the machine it was measured on says nothing, so each result file carries both.
Benches print and record; they never judge a time.
"""

from __future__ import annotations

import json
import os
import platform
import statistics
from collections.abc import Mapping, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).resolve().parent / "results"
PACKAGES = ("bireme", "numpy", "numba", "msgspec", "click")


def machine_facts() -> dict[str, Any]:
    """The processor, memory, kernel and versions here, and how busy the machine is right now."""
    return {
        "cpu": _first_after("/proc/cpuinfo", "model name"),
        "cores": len(os.sched_getaffinity(0)),
        "memory_gib": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30, 1),
        "kernel": platform.release(),
        "python": platform.python_version(),
        **{name: _version(name) for name in PACKAGES},
        "load_before": [round(x, 2) for x in os.getloadavg()],
    }


def _first_after(file: str, key: str) -> str:
    for line in Path(file).read_text(encoding="utf-8").splitlines():
        if line.startswith(key):
            return line.partition(":")[2].strip()
    return "unknown"


def _version(package: str) -> str:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        from bireme import __version__

        return __version__ if package == "bireme" else "not installed"


def summarise(samples: Sequence[float]) -> dict[str, Any]:
    """Median, smallest and largest: a mean would hide that one repetition was disturbed."""
    return {
        "n": len(samples),
        "median": round(statistics.median(samples), 4),
        "min": round(min(samples), 4),
        "max": round(max(samples), 4),
        "samples": [round(s, 4) for s in samples],
    }


def report(name: str, facts: Mapping[str, Any], figures: Mapping[str, Mapping[str, Any]], *, as_json: bool) -> None:
    """Write bench/results/NAME.json and print the same as JSON or as a small table."""
    result = {"bench": name, "machine": facts, "figures": figures}
    RESULTS.mkdir(exist_ok=True)
    (RESULTS / f"{name}.json").write_text(json.dumps(result, indent=2) + "\n", encoding="utf-8")
    if as_json:
        print(json.dumps(result))
        return
    packages = ", ".join(f"{p} {facts[p]}" for p in PACKAGES)
    print(f"{facts['cpu']}, {facts['cores']} cores, {facts['memory_gib']} GiB, Linux {facts['kernel']}")
    print(f"Python {facts['python']}, {packages}; load before: {facts['load_before'][0]}\n")
    print(f"{'':<52} {'median':>10} {'min':>10} {'max':>10}  n")
    for label, figure in figures.items():
        row = " ".join(f"{_short(figure[k]):>10}" for k in ("median", "min", "max"))
        print(f"{label:<52} {row}  {figure['n']}")
    print(f"\nwritten to bench/results/{name}.json")


def _short(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3f}"
