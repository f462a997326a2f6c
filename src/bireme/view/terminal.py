"""A job's progress on a terminal: finished passes scroll by, a live panel shows where each trainer is."""

from __future__ import annotations

from contextlib import suppress
from typing import Self

from msgspec import UNSET
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from bireme.job.status import JobStatus
from bireme.view.plain import CURVE_WIDTH, PlainView, count, number, percent, sparkline, time_left

BESIDE_BAR = 46
"""Columns that a trainer's line needs for all but its bar."""


class LiveView(PlainView):
    """Redraws with each status until it is left.

    No thread draws in between, so that the error of a closed terminal is raised by `update`.
    """

    has_panel = True

    def __init__(self) -> None:
        super().__init__()
        self._console = Console()
        if self._console.no_color:  # NO_COLOR: no dim or bold either
            self._console = Console(color_system=None)
        self._live = Live(console=self._console, auto_refresh=False, transient=True)

    def __enter__(self) -> Self:
        self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        with suppress(OSError):  # the terminal is gone, and the panel with it
            self._live.stop()

    def _update(self, status: JobStatus) -> None:
        for line in self._changes(status, self._console.width):
            self._note(line)
        self._live.update(draw(status, self._console.width), refresh=True)

    def _note(self, text: str) -> None:
        self._console.print(Text(text))

    _alert = _note  # above the panel, it has a line of its own whatever was typed meanwhile


def draw(status: JobStatus, width: int = 80) -> RenderableType:
    """The live panel for one status, no line of it wider than the terminal."""
    phase, missing = status.phase or "starting", status.trainers_missing
    if phase != "training":
        waiting = f", waiting for trainer {', '.join(map(str, missing))}" if missing and phase == "gathering" else ""
        return Text(f"{phase}{waiting} …", style="dim", no_wrap=True, overflow="ellipsis")
    waits = [f"waits for {', '.join(status.waits_for)}"] if status.waits_for else []
    warnings = [f"warning: {text}" for text in status.warnings]
    trainers = _trainers(status, min(24, max(4, width - BESIDE_BAR)))
    return Group(trainers, *map(_notice, waits + warnings), _footer(status, width))


def _notice(text: str) -> Text:
    return Text(text, style="yellow", no_wrap=True, overflow="ellipsis")


def _trainers(status: JobStatus, bar_width: int) -> Table:
    table = Table(box=None, pad_edge=False, header_style="dim")
    for name in ("trainer", "pass", "", "cost", "error", "samples/s"):
        table.add_column(name, justify="left" if name in ("trainer", "") else "right", no_wrap=True)
    for t in status.trainers:
        if t.pass_id is UNSET:
            table.add_row(str(t.trainer), "–", "", "–", "–", "–")
            continue
        bar = ProgressBar(total=t.batches, completed=t.batch, width=bar_width)
        error = percent(t.evals[0]) if t.evals else "–"
        table.add_row(str(t.trainer), str(t.pass_id), bar, number(t.cost), error, f"{t.rate:,.0f}")
    return table


def _footer(status: JobStatus, width: int) -> Text:
    closed, done, total = status.passes_done, status.done, status.total
    text = Text(no_wrap=True, overflow="ellipsis")
    if not closed:
        text.append(f"{done}/{total} passes" if done else f"first of {count(total, 'pass', 'passes')}", style="dim")
        return text
    tested = closed[-1].test_error
    words = f"test error {percent(tested)}  " if tested is not None else ""
    progress = f"{done}/{total} passes" + (f", {left}" if (left := time_left(status)) else "")
    curve = sparkline([c.cost for c in closed], min(CURVE_WIDTH, max(4, width - 7 - len(words + progress))))
    text.append(f"cost {curve}  ", style="cyan")
    text.append(words)
    text.append(progress, style="dim")
    return text
