"""How the time of a round grows: `./dev bench growth [--only NAME]… [--reps N] [--json]`.

Against parameters (in shared memory, and through TCP), trainers, pservers, and rows touched in a table.
Each point is a cluster of real processes that is started, timed, checked by arithmetic and ended; every
repetition walks over all points, so that a busy moment does not fall on one alone. Between two points the exponent
e in time ~ size^e is given: 1 is growth in proportion, 0 none. What does not fit in memory is left out with a note.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import statistics
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from html import escape
from itertools import pairwise
from pathlib import Path
from typing import Any, Literal

from engines.local_cluster import BATCHES, MOST_ROUNDS, TABLE_ROWS, TABLE_WIDTH, Cluster, Shape
from engines.picture import FONT, INK, OURS_COLOUR, PAPER, PEER_COLOUR, _text
from engines.running import BENCH, RunFailedError
from machine import RESULTS, machine_facts, summarise

from bireme.core.errors import BiremeError, UsageError

PICTURE = BENCH.parent / "docs" / "img" / "growth.svg"
POINT_S = 1.0
"""About how long the timed rounds of a point take."""
FEWEST_ROUNDS = 4
PROCESS_MB = 120
"""What a process holds before it has any parameters."""
MEMORY_SHARE = 0.7
MILLION = 1_000_000


@dataclass(frozen=True)
class Curve:
    """One line of the picture: sizes, and the cluster that each means."""

    name: str
    what: str
    """What the sizes count."""
    beside: str
    shapes: Mapping[int, Shape]


def curves(*, is_quick: bool = False) -> list[Curve]:
    """All that is measured; `is_quick`: two tiny points each."""
    sizes = (10_000, 20_000) if is_quick else tuple(m * MILLION for m in (1, 5, 20, 50, 100, 200))
    trainers, pservers = ((1, 2), (1, 2)) if is_quick else ((1, 2, 4, 8, 16), (1, 2, 4, 8))
    small, middle = (10_000, 10_000) if is_quick else (MILLION, 10 * MILLION)
    rows = (100, 200) if is_quick else (1_000, 3_000, 10_000, 30_000, 100_000, 300_000)
    pair = "2 trainers, 2 pservers"

    def flat(place: Literal["local", "tcp"], how: str) -> Curve:
        shapes = {n: Shape(2, 2, n, place=place) for n in sizes}
        return Curve(f"parameters-{place}", "parameters", f"{pair}, {how}", shapes)

    return [
        flat("local", "shared memory"),
        flat("tcp", "TCP"),
        Curve("trainers", "trainers", f"2 pservers, {small:,} parameters", {n: Shape(n, 2, small) for n in trainers}),
        Curve("pservers", "pservers", f"2 trainers, {middle:,} parameters", {n: Shape(2, n, middle) for n in pservers}),
        Curve("rows", "rows touched", f"{pair}, adagrad", {n: Shape(2, 2, 16, rows=n) for n in rows}),
    ]


def memory_mb(shape: Shape) -> float:
    """About what a cluster holds: gradients and two sets of parameters, and through TCP copies of both."""
    copies = shape.trainers + 2 if shape.place == "local" else 3 * shape.trainers + 2
    # Values and state of each row, and of those that were touched last.
    table = (4 * TABLE_ROWS + 8 * shape.rows * shape.trainers) * TABLE_WIDTH * 4 if shape.rows else 0
    return (4 * shape.floats * copies + table) / 1e6 + PROCESS_MB * (shape.trainers + shape.pservers)


def free_mb() -> float:
    """Memory that can be had right now."""
    for line in Path("/proc/meminfo").read_text(encoding="ascii").splitlines():
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) / 1000
    raise AssertionError("/proc/meminfo does not say what is available: this is a bug")


def time_point(shape: Shape, environment: Mapping[str, str]) -> float:
    """Seconds of a round, the median of one cluster's timed rounds."""
    with Cluster(shape, environment) as cluster:
        # The first round with each batch makes its rows; without a table, one round is enough to map all memory.
        guess = min(cluster.rounds(BATCHES + 1 if shape.rows else 3)[-2:])
        count = min(max(int(POINT_S / guess), FEWEST_ROUNDS), MOST_ROUNDS // 2)
        seconds = statistics.median(cluster.rounds(count))
        cluster.check()
    return seconds


def measure(wanted: Sequence[Curve], reps: int, environment: Mapping[str, str]) -> dict[str, Any]:
    """Every point of every curve, `reps` times."""
    taken: dict[str, dict[int, list[float]]] = {curve.name: {} for curve in wanted}
    skipped: dict[str, str] = {}
    for rep in range(reps):
        for curve in wanted:
            _say(f"repetition {rep + 1} of {reps}: {curve.name}, {', '.join(f'{n:,}' for n in curve.shapes)} …")
            for size, shape in curve.shapes.items():
                need, free = memory_mb(shape), free_mb()
                if need > MEMORY_SHARE * free:
                    why = f"needs about {need:,.0f} MB, {MEMORY_SHARE:.0%} of the {free:,.0f} MB free are less"
                    skipped[f"{curve.name} {size:,}"] = why
                    _say(f"{curve.name}, {size:,}: left out, it {why}")
                    continue
                taken[curve.name].setdefault(size, []).append(time_point(shape, environment))
    figures = {curve.name: figure_of(curve, taken[curve.name]) for curve in wanted}
    return {"figures": figures, "left_out": skipped}


def figure_of(curve: Curve, taken: Mapping[int, Sequence[float]]) -> dict[str, Any]:
    """What is written down of a curve: milliseconds, exponents, and a sentence."""
    points = {size: summarise([1e3 * s for s in samples]) for size, samples in sorted(taken.items())}
    medians = {size: point["median"] for size, point in points.items()}
    return {
        "what": curve.what,
        "beside": curve.beside,
        "round_ms": {str(size): point for size, point in points.items()},
        "exponents": [round(e, 3) for e in exponents(medians)],
        "exponent": round(overall(medians), 3) if len(medians) > 1 else None,
        "sentence": sentence(curve, medians),
    }


def exponents(times: Mapping[int, float]) -> list[float]:
    """The slope between successive points, both axes logarithmic."""
    return [math.log(times[b] / times[a]) / math.log(b / a) for a, b in pairwise(sorted(times))]


def overall(times: Mapping[int, float]) -> float:
    """The slope of the straight line that fits all points best, both axes logarithmic."""
    fit = statistics.linear_regression([math.log(n) for n in times], [math.log(t) for t in times.values()])
    return float(fit.slope)


def in_words(exponent: float) -> str:
    """What an exponent means."""
    if exponent < -0.15:
        return "falls"
    if exponent < 0.15:
        return "hardly changes"
    if exponent < 0.85:
        return "grows, but less than in proportion"
    return "grows in proportion" if exponent <= 1.15 else "grows faster than in proportion"


def sentence(curve: Curve, times: Mapping[int, float]) -> str:
    """What is seen, from the figures alone."""
    if len(times) < 2:
        return f"{curve.name}: too few points to say anything."
    first, last = min(times), max(times)
    steep = exponents(times)
    words = f"a round takes {_ms(times[first])} with {first:,} {curve.what} and {_ms(times[last])} with {last:,}"
    seen = f"over all of them it {in_words(overall(times))} (exponent {overall(times):.2f})"
    end = f"over the last step it {in_words(steep[-1])} ({steep[-1]:.2f})"
    return f"{curve.name}: {words}; {seen}, {end}." if len(steep) > 1 else f"{curve.name}: {words}; {seen}."


def _ms(value: float) -> str:
    return f"{value:,.0f} ms" if value >= 100 else f"{value:.3g} ms"


def table(figures: Mapping[str, Any]) -> str:
    """Points under each other: size, milliseconds, spread, exponent from the point before."""
    lines: list[str] = []
    for name, figure in figures.items():
        steep = ["", *(f"{e:.2f}" for e in figure["exponents"])]
        lines += [f"{name} ({figure['beside']})", f"{figure['what']:>14} {'ms':>11} {'(min–max)':>20} {'exponent':>9}"]
        for (size, point), exponent in zip(figure["round_ms"].items(), steep, strict=False):
            reach = f"{point['min']:,.2f}–{point['max']:,.2f}"
            lines.append(f"{int(size):>14,} {point['median']:>11,.3f} {reach:>20} {exponent:>9}")
        lines.append("")
    return "\n".join([*lines, *(figure["sentence"] for figure in figures.values())])


PANEL_WIDTH, PANEL_HEIGHT = 350, 210
MARGIN_LEFT, MARGIN_TOP = 64, 76
ACROSS, DOWN = 430, 310


def draw(figures: Mapping[str, Any], caption: str) -> str:
    """Four pictures, both axes logarithmic: the dotted line is growth in proportion from the first point."""
    panels = [[name for name in figures if name.startswith(start)] for start in ("param", "train", "pserv", "rows")]
    shown = [[name for name in names if figures[name]["round_ms"]] for names in panels]
    parts: list[str] = []
    for number, names in enumerate(names for names in shown if names):
        left, top = MARGIN_LEFT + number % 2 * ACROSS, MARGIN_TOP + number // 2 * DOWN
        parts += _panel({name: figures[name] for name in names}, left, top)
    width, height = 2 * ACROSS, MARGIN_TOP + -(-sum(map(bool, shown)) // 2) * DOWN
    title = "bireme: milliseconds of a round, and how they grow (both axes logarithmic; dotted: in proportion)"
    return "\n".join(
        [
            f"<svg xmlns='http://www.w3.org/2000/svg' viewBox='0 0 {width} {height}' width='{width}' "
            f"height='{height}' {FONT}>",
            f"<title>{escape(title)}</title>",
            f"<rect width='{width}' height='{height}' fill='{PAPER}'/>",
            _text(16, 24, title, size=15, weight="600"),
            *parts,
            _text(16, height - 10, caption, size=11),
            "</svg>\n",
        ]
    )


def _panel(figures: Mapping[str, Any], left: int, top: int) -> list[str]:
    points = {name: _points(figure) for name, figure in figures.items()}
    sizes = sorted({size for line in points.values() for size in line})
    times = [t for line in points.values() for t in line.values()]
    decades = range(math.floor(math.log10(min(times))), math.floor(math.log10(max(times))) + 2)

    def x(size: float) -> float:
        return left + PANEL_WIDTH * math.log(size / sizes[0]) / (math.log(sizes[-1] / sizes[0]) or 1.0)

    def y(ms: float) -> float:
        return top + PANEL_HEIGHT * (decades[-1] - math.log10(ms)) / (len(decades) - 1)

    first = next(iter(figures.values()))
    beside = first["beside"] if len(figures) == 1 else "2 trainers, 2 pservers"
    parts = [_text(left, top - 22, f"{first['what']} ({beside})", size=12, weight="600")]
    for decade in decades:
        parts += [_line([(left, y(10**decade)), (left + PANEL_WIDTH, y(10**decade))], PEER_COLOUR, width=0.6)]
        parts += [_text(left - 6, y(10**decade) + 4, f"{10.0**decade:g}", size=11, anchor="end")]
    parts += [_text(x(size), top + PANEL_HEIGHT + 17, _few(size), size=11, anchor="middle") for size in sizes]
    for number, (name, line) in enumerate(points.items()):
        colour = (OURS_COLOUR, "#b3541e")[number % 2]
        start, most = min(line), min(max(line), min(line) * 10 ** decades[-1] / line[min(line)])
        parts += [_line([(x(start), y(line[start])), (x(most), y(line[start] * most / start))], colour, dash="2 4")]
        parts += [_line([(x(n), y(t)) for n, t in line.items()], colour, width=2.2)]
        parts += [f"<circle cx='{x(n):.1f}' cy='{y(t):.1f}' r='3.2' fill='{colour}'/>" for n, t in line.items()]
        if len(points) > 1:
            label = "shared memory" if name.endswith("local") else "TCP"
            parts += [_text(left + 8, top + 14 + 16 * number, label, size=12, weight="600").replace(INK, colour)]
    return parts


def _points(figure: Mapping[str, Any]) -> dict[int, float]:
    return {int(size): float(point["median"]) for size, point in figure["round_ms"].items()}


def _line(points: Sequence[tuple[float, float]], colour: str, *, width: float = 1.2, dash: str = "none") -> str:
    where = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
    style = f"fill='none' stroke='{colour}' stroke-width='{width}' stroke-dasharray='{dash}'"
    return f"<polyline points='{where}' {style}/>"


def _few(size: int) -> str:
    if size >= MILLION:
        return f"{size / MILLION:g}M"
    return f"{size / 1000:g}k" if size >= 1000 else str(size)


def keep(result: Mapping[str, Any]) -> None:
    """Write results and picture."""
    facts = result["machine"]
    RESULTS.mkdir(exist_ok=True)
    (RESULTS / "growth.json").write_text(json.dumps(result, indent=2) + "\n", encoding="utf-8")
    PICTURE.parent.mkdir(parents=True, exist_ok=True)
    where = f"{facts['cpu']}, {facts['cores']} cores, {facts['memory_gib']} GiB, Linux {facts['kernel']}"
    PICTURE.write_text(draw(result["figures"], f"Measured {facts['date']} on {where}; medians."), encoding="utf-8")


def _say(text: str) -> None:
    print(f"bench: {text}", file=sys.stderr, flush=True)


def parse(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """What the command line asks for."""
    names = [curve.name for curve in curves()]
    parser = argparse.ArgumentParser(prog="./dev bench growth", description="How the time of a round grows.")
    parser.add_argument("--only", action="append", default=[], metavar="NAME", help=f"one of {', '.join(names)}")
    parser.add_argument("--reps", type=int, default=2, help="walks over all points (default 2)")
    parser.add_argument("--quick", action="store_true", help="tiny sizes, to see that it works")
    parser.add_argument("--json", action="store_true", help="print JSON instead of tables")
    given = parser.parse_args(arguments)
    if given.reps < 1:
        raise UsageError(f"--reps {given.reps}: at least one repetition is needed")
    for name in given.only:
        if name not in names:
            raise UsageError(f"there is no curve {name!r}", fix=f"choose from {', '.join(names)}")
    given.curves = [c for c in curves(is_quick=given.quick) if not given.only or c.name in given.only]
    given.keeps = not given.quick and not given.only
    return given


def main() -> None:
    """Parse, measure, record, print."""
    try:
        given = parse()
        facts = {**machine_facts(), "date": datetime.now(UTC).date().isoformat(), "reps": given.reps}
        found = measure(given.curves, given.reps, os.environ)
        facts["load_after"] = [round(x, 2) for x in os.getloadavg()]
        result = {"bench": "growth", "machine": facts, **found}
        if given.keeps:
            keep(result)
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
    print(table(found["figures"]))
    for point, why in found["left_out"].items():
        print(f"left out: {point} {why}")
    kept = "written to bench/results/growth.json and docs/img/growth.svg"
    print(f"\n{kept if given.keeps else 'not written: only a full run is'}")


if __name__ == "__main__":
    main()
