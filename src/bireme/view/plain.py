"""A job's plan and progress as plain lines: for pipes, logs and people without a terminal."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import click

from bireme.core.text import duration
from bireme.job.output.kept import best_of
from bireme.job.status import JobStatus, PassSummary
from bireme.view.readers import View

BARS = "▁▂▃▄▅▆▇█"
CURVE_WIDTH = 24
LAST_PASSES = 10


def sparkline(values: list[float], width: int = CURVE_WIDTH) -> str:
    """A curve in one line of block characters; where there are more values than places, neighbours share one."""
    if not values:
        return ""
    places = min(width, len(values))
    cuts = [i * len(values) // places for i in range(places + 1)]
    means = [sum(values[a:b]) / (b - a) for a, b in itertools.pairwise(cuts)]
    low, high = min(means), max(means)
    scale = (len(BARS) - 1) / (high - low) if high > low else 0.0
    return "".join(BARS[round((v - low) * scale)] for v in means)


def count(number: int, what: str, many: str = "") -> str:
    """`1 row`, `2 rows`; `many` where an s does not make the plural."""
    return f"{number:,} {what if number == 1 else many or what + 's'}"


def percent(value: float | None) -> str:
    return "–" if value is None else f"{100 * value:.2f} %"


def number(value: float | None) -> str:
    if value is None:
        return "–"
    return f"{value:.4f}" if abs(value) < 1e6 else f"{value:.3e}"


def pass_line(closed: PassSummary, width: int | None = None) -> str:
    """One finished pass in words; in a narrow place, what can be missed most easily is left out."""
    rate = closed.samples / closed.seconds if closed.seconds else 0.0
    words = {"pass": f"pass {closed.pass_id:>3}", "cost": f"cost {number(closed.cost)}"}
    if closed.evals:
        words["error"] = f"error {percent(closed.error):>7}"
    if closed.test_cost is not None:
        words["test cost"] = f"test cost {number(closed.test_cost)}"
        if closed.test_evals:
            words["test error"] = f"test error {percent(closed.test_error):>7}"
    words["rate"] = f"{rate:>9,.0f} samples/s"
    for spare in ("test cost", "rate", "error"):
        if width is not None and len("  ".join(words.values())) > width:
            words.pop(spare, None)
    return "  ".join(words.values())


def pass_lines(closed: Sequence[PassSummary], *, shows_all: bool) -> Iterator[str]:
    """Finished passes in words, one a line; the last few, unless all are wanted."""
    hidden = 0 if shows_all else max(0, len(closed) - LAST_PASSES)
    if hidden:
        yield f"({count(hidden, 'pass', 'passes')} before these; --all shows all)"
    yield from (pass_line(one) for one in closed[hidden:])


def best_pass(closed: Iterable[PassSummary]) -> tuple[int, str] | None:
    """The pass with the lowest test error, and how low it is; where nothing is tested, by its cost.

    Of equals the first; None where there is nothing to choose from.
    """
    metrics = {each.pass_id: each for each in closed}
    best = best_of(metrics)
    if len(metrics) < 2 or best is None:
        return None
    pass_id, name, value = best
    return pass_id, f"{name} {(percent if name == 'test error' else number)(value)}"


def time_left(status: JobStatus) -> str:
    """How long a job will last if its passes take as long as those before; '' while that is not known."""
    closed, left = status.passes_done, status.total - status.done
    if not closed or left <= 0:
        return ""
    left_s = left * sum(c.seconds for c in closed) / len(closed)
    return f"about {duration(left_s, is_exact=True)} left"


def plan_lines(plan: Mapping[str, Any]) -> Iterator[str]:
    """What `train --dry-run` prints."""
    tables = [p for p in plan["parameters"] if p["is_sparse"]]
    dense = [p["values"] for p in plan["parameters"] if not p["is_sparse"]]
    size = f"{count(sum(dense), 'value')} in {count(len(dense), 'dense parameter')}"
    passes, processes = count(plan["passes"], "pass", "passes"), count(plan["processes"], "process", "processes")
    yield f"{plan['job']}: {plan['program']}, {size}, {passes}, batch {plan['batch_size']} per shard"
    yield f"mode {plan['mode']}, {processes}, {plan['bytes_per_round']:,} bytes per round, output in {plan['output']}"
    for p in tables:
        yield f"{p['name']}: {count(p['shape'][0], 'row')} of {p['shape'][1]}, on the sparse lanes of all pservers"
    for p in plan["pservers"]:
        ports = p["ports"] if isinstance(p["ports"], str) else f"{p['ports'][0]}–{p['ports'][-1]}"
        yield f"pserver {p['pserver']}, ports {ports}"
        for lane in p["lanes"]:
            held = ", ".join(f"{h['parameter']}[{h['from']}:{h['to']}]" for h in lane["holds"]) or "nothing"
            yield f"  lane {lane['lane']}: {held} ({lane['bytes']:,} bytes)"
    for t in plan["trainers"]:
        yield f"trainer {t['trainer']} reads shard {', '.join(map(str, t['shards']))}"


_PHASE_LINES = {"gathering": "waiting for trainers", "setting-up": "handing out parameters", "training": "training"}


class PlainView(View):
    """Prints each change once."""

    has_panel = False

    def __init__(self) -> None:
        super().__init__()
        self._phase = ""
        self._losses: tuple[str, ...] = ()
        self._warnings: tuple[str, ...] = ()

    def _update(self, status: JobStatus) -> None:
        for line in self._changes(status):
            self._note(line)

    def _note(self, text: str) -> None:
        click.echo(text)

    def _changes(self, status: JobStatus, width: int | None = None) -> Iterator[str]:
        yield from (f"{loss}; the job continues" for loss in status.losses if loss not in self._losses)
        if not self._warnings:  # a text names files, so each attempt has another: the first one is enough
            yield from (f"warning: {warning}" for warning in status.warnings)
        if not self.has_panel and status.phase != self._phase and status.phase in _PHASE_LINES:
            yield _PHASE_LINES[status.phase]
        self._losses, self._warnings, self._phase = status.losses, status.warnings, status.phase
        for closed in status.passes_done:  # of a job on a cluster, only the last ones
            if closed.pass_id > self.last_pass:
                self.last_pass = closed.pass_id
                yield pass_line(closed, width)
