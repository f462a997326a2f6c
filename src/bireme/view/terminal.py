"""A job's progress on a terminal: finished passes scroll by, a live panel shows who is where."""

from __future__ import annotations

from typing import Any

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from bireme.view.plain import error_of, number, pass_line, percent, sparkline


def duration(seconds: float) -> str:
    """A time span for people."""
    whole = round(seconds)
    return f"{whole} s" if whole < 100 else f"{whole // 60} min {whole % 60:02d} s"


class LiveView:
    """Redraws a few times a second until it is left."""

    def __init__(self) -> None:
        self._console = Console()
        if self._console.no_color:  # NO_COLOR: no dim or bold either
            self._console = Console(color_system=None)
        self._live = Live(console=self._console, refresh_per_second=8, transient=True)
        self._passes = 0

    def __enter__(self) -> LiveView:
        self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._live.stop()

    def update(self, status: dict[str, Any]) -> None:
        """Show a status."""
        for closed in status.get("passes_done", [])[self._passes :]:
            self._live.console.print(Text(pass_line(closed)))
            self._passes += 1
        self._live.update(draw(status))


def draw(status: dict[str, Any]) -> RenderableType:
    """The live panel for one status."""
    phase = status.get("phase", "starting")
    if phase != "training":
        missing = status.get("trainers_missing") or []
        waiting = f", waiting for trainer {', '.join(map(str, missing))}" if missing and phase == "gathering" else ""
        return Text(f"{phase}{waiting} …", style="dim")
    return Group(_trainers(status), _footer(status))


def _trainers(status: dict[str, Any]) -> Table:
    table = Table(box=None, pad_edge=False, header_style="dim")
    for name, justify in (
        ("trainer", "left"),
        ("pass", "right"),
        ("", "left"),
        ("cost", "right"),
        ("error", "right"),
        ("samples/s", "right"),
    ):
        table.add_column(name, justify=justify)  # type: ignore[arg-type]
    for t in status["trainers"]:
        if "pass" not in t:
            table.add_row(str(t["trainer"]), "–", "", "–", "–", "–")
            continue
        bar = ProgressBar(total=t["batches"], completed=t["batch"], width=24)
        error = percent(t["evals"][0]) if t["evals"] else "–"
        table.add_row(str(t["trainer"]), str(t["pass"]), bar, number(t["cost"]), error, f"{t['rate']:,.0f}")
    return table


def _footer(status: dict[str, Any]) -> Text:
    done = status["passes_done"]
    total = status["passes"]
    text = Text()
    if done:
        costs = [c["cost"] for c in done]
        text.append(f"cost {sparkline(costs)}  ", style="cyan")
        left = (total - len(done)) * sum(c["seconds"] for c in done) / len(done)
        tested = error_of(done[-1]["test_evals"])
        if tested is not None:
            text.append(f"test error {percent(tested)}  ")
        text.append(f"{len(done)}/{total} passes, about {duration(left)} left", style="dim")
    else:
        text.append(f"first of {total} passes", style="dim")
    return text
