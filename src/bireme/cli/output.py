"""What commands print: results on stdout, as one JSON object or as lines; remarks and progress on stderr; errors."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import click

from bireme.core.errors import BiremeError

Progress = Callable[[int, int], None]
"""Gets the bytes that are done, and all bytes."""
_PLAIN_FROM_BYTES = 64 << 20
"""In a pipe, a smaller transfer is over before a line about it could be read."""


def emit(value: Any, lines: Iterable[str] | str, *, as_json: bool, error: BiremeError | None = None) -> None:
    """Print a result as one JSON object or as lines; an error after it is raised, with JSON as its exit code alone."""
    if as_json:
        click.echo(json.dumps(value))
    else:
        for line in [lines] if isinstance(lines, str) else lines:
            click.echo(line)
    if error is not None:
        raise SystemExit(error.exit_code) if as_json else error


def note(text: str) -> None:
    """Print a remark that is not part of the result."""
    click.echo(text, err=True)


def print_error(error: BiremeError, *, as_json: bool) -> None:
    if as_json:
        click.echo(error_as_json(error))
    else:
        note(f"error: {error}")


def error_as_json(error: BiremeError) -> str:
    return json.dumps({"error": type(error).__name__, "what": error.what, "why": error.why, "fix": error.fix})


@contextmanager
def progress(doing: str, as_json: bool, *, is_plain_shown: bool = True) -> Iterator[Progress | None]:
    """Show the progress of a transfer: a bar on a terminal, a few lines in a pipe, nothing with JSON."""
    if as_json or not (is_plain_shown or sys.stderr.isatty()):
        yield None
    elif not sys.stderr.isatty():
        yield plain_progress(doing)
    else:
        from rich.console import Console
        from rich.progress import BarColumn, DownloadColumn, TimeRemainingColumn
        from rich.progress import Progress as Bar

        console = Console(stderr=True)
        columns = ("{task.description}", BarColumn(), DownloadColumn(), TimeRemainingColumn())
        with Bar(*columns, console=console, transient=True) as bar:
            task = bar.add_task(doing, total=None)
            yield lambda done, total: bar.update(task, completed=done, total=total)


def plain_progress(doing: str) -> Progress:
    """Print a line for each quarter of a large transfer."""
    quarters = 0

    def show(done: int, total: int) -> None:
        nonlocal quarters
        reached = 4 * done // max(total, 1)
        if total >= _PLAIN_FROM_BYTES and quarters < reached < 4:
            quarters = reached
            note(f"{doing}: {25 * reached} %")

    return show
