"""A job's progress as plain lines: for pipes, logs and people without a terminal."""

from __future__ import annotations

from typing import Any

import click

BARS = "▁▂▃▄▅▆▇█"


def sparkline(values: list[float]) -> str:
    """A curve in one line of block characters."""
    if not values:
        return ""
    low, high = min(values), max(values)
    scale = (len(BARS) - 1) / (high - low) if high > low else 0.0
    return "".join(BARS[round((v - low) * scale)] for v in values)


def error_of(evals: dict[str, float]) -> float | None:
    """The first evaluator, which for classifiers is the error rate."""
    return next(iter(evals.values()), None)


def percent(value: float | None) -> str:
    """A rate for people."""
    return "–" if value is None else f"{100 * value:.2f} %"


def number(value: float | None) -> str:
    """A cost for people."""
    if value is None:
        return "–"
    return f"{value:.4f}" if abs(value) < 1e6 else f"{value:.3e}"


def pass_line(closed: dict[str, Any]) -> str:
    """One finished pass in words."""
    rate = closed["samples"] / closed["seconds"] if closed["seconds"] else 0.0
    text = f"pass {closed['pass_id']:>3}  cost {number(closed['cost'])}"
    if closed["evals"]:
        text += f"  error {percent(error_of(closed['evals'])):>7}"
    if closed["test_cost"] is not None:
        text += f"  test cost {number(closed['test_cost'])}"
        if closed["test_evals"]:
            text += f"  test error {percent(error_of(closed['test_evals'])):>7}"
    return f"{text}  {rate:>9,.0f} samples/s"


_NEWS = {
    "gathering": "waiting for trainers",
    "setting-up": "handing out parameters",
    "training": "training",
}


class PlainView:
    """Prints each news once."""

    def __init__(self) -> None:
        self._phase = ""
        self._passes = 0

    def __enter__(self) -> PlainView:
        return self

    def __exit__(self, *_: object) -> None:
        return

    def update(self, status: dict[str, Any]) -> None:
        """Print what is new in a status."""
        phase = status.get("phase", "")
        if phase in _NEWS and phase != self._phase:
            click.echo(_NEWS[phase])
        self._phase = phase
        for closed in status.get("passes_done", [])[self._passes :]:
            click.echo(pass_line(closed))
            self._passes += 1


class SilentView:
    """Says nothing: for --json and --quiet."""

    def __enter__(self) -> SilentView:
        return self

    def __exit__(self, *_: object) -> None:
        return

    def update(self, status: dict[str, Any]) -> None:
        """Ignore the news."""
