"""A job's progress as plain lines: for pipes, logs and people without a terminal."""

from __future__ import annotations

import itertools
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from typing import Self

import click

from bireme.core.text import duration
from bireme.job.output.kept import best_of
from bireme.job.status import JobStatus, PassSummary

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
    """A rate for people."""
    return "–" if value is None else f"{100 * value:.2f} %"


def number(value: float | None) -> str:
    """A cost for people."""
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
    """How long a job will go on if its passes last as long as those before; '' while that is not known."""
    closed, left = status.passes_done, status.total - status.done
    if not closed or left <= 0:
        return ""
    left_s = left * sum(c.seconds for c in closed) / len(closed)
    return f"about {duration(left_s, is_exact=True)} left"


def passes_after(pass_id: int, status: JobStatus) -> list[PassSummary]:
    """The finished passes that came after one; the status from a cluster holds only the last ones."""
    return [closed for closed in status.passes_done if closed.pass_id > pass_id]


def new_losses(shown: list[str], status: JobStatus) -> list[str]:
    """Losses that were not shown yet; `shown` becomes those of the status."""
    fresh = [loss for loss in status.losses if loss not in shown]
    shown[:] = status.losses
    return [f"{loss}; started again, the job goes on" for loss in fresh]


def new_warnings(shown: list[str], status: JobStatus) -> list[str]:
    """Warnings to show now; `shown` becomes those of the status.

    The text changes with each failed attempt (it names files), so a warning is shown once until there is none.
    """
    fresh = () if shown else status.warnings
    shown[:] = status.warnings
    return [f"warning: {warning}" for warning in fresh]


_PHASE_LINES = {
    "gathering": "waiting for trainers",
    "setting-up": "handing out parameters",
    "training": "training",
}


def alert(text: str) -> None:
    """Print on standard error; on a terminal after a line break, as it has just shown `^C`."""
    with suppress(OSError):  # its reader is gone
        click.echo(f"\n{text}" if sys.stderr.isatty() else text, err=True)


class PlainView:
    """Prints each change once."""

    has_panel = False

    def __init__(self) -> None:
        self._phase = ""
        self._pass = -1
        self._losses: list[str] = []
        self._warnings: list[str] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        return

    def note(self, text: str) -> None:
        """Print a remark."""
        click.echo(text)

    def alert(self, text: str) -> None:
        """Print what must not be missed."""
        alert(text)

    def update(self, status: JobStatus) -> None:
        """Print what is new in a status."""
        for loss in new_losses(self._losses, status):
            click.echo(loss)
        for warning in new_warnings(self._warnings, status):
            click.echo(warning)
        if status.phase in _PHASE_LINES and status.phase != self._phase:
            click.echo(_PHASE_LINES[status.phase])
        self._phase = status.phase
        for closed in passes_after(self._pass, status):
            click.echo(pass_line(closed))
            self._pass = closed.pass_id


class SilentView:
    """Prints alerts only: for --json and --quiet."""

    has_panel = True

    def __enter__(self) -> SilentView:
        return self

    def __exit__(self, *_: object) -> None:
        return

    def note(self, text: str) -> None:
        """Ignore a remark."""

    def alert(self, text: str) -> None:
        """Print what must not be missed."""
        alert(text)

    def update(self, status: JobStatus) -> None:
        """Ignore a status."""
