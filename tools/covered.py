"""Print what `./dev coverage` measured, as a table with a line for each room; with --lines PATH, what PATH lacks."""

from __future__ import annotations

import argparse
import json
from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import coverage

ROOT = Path(__file__).parents[1]
DEEP = ("bireme", "ps", "job", "kube", "tests", "unit")
"""Folders whose folders are rooms of their own."""


def room_of(file: str) -> str:
    """The room that a file is in: `ps/wire` for src/bireme/ps/wire/codec.py, `tests/unit/ps` for its tests."""
    folders = list(Path(file).parts[:-1])
    if "bireme" in folders:
        folders = folders[folders.index("bireme") :]
    depth = next((i for i, folder in enumerate(folders) if folder not in DEEP), len(folders) - 1)
    return "/".join(folders[: depth + 1]).removeprefix("bireme/")


def table(files: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """One line for each room: statements and branches, what no test reached of either, and the share that is left."""
    rooms: dict[str, Counter[str]] = {}
    for file, measured in files.items():
        rooms.setdefault(room_of(file), Counter()).update({k: v for k, v in measured["summary"].items() if k in _SUMS})
    lines = [f"{'room':<24} {'lines':>7} {'missed':>7} {'branches':>9} {'missed':>7} {'covered':>8}"]
    for name, sums in sorted(rooms.items(), key=lambda room: (room[0].startswith("tests"), room[0])):
        lines.append(_line(name, sums))
    for name, which in (("the package", False), ("the tests", True)):
        parts = [sums for room, sums in rooms.items() if room.startswith("tests") == which]
        lines.append(_line(name, sum(parts, start=Counter())))
    return lines


_SUMS = ("num_statements", "missing_lines", "num_branches", "missing_branches")


def _line(name: str, sums: Mapping[str, int]) -> str:
    lines, missed, branches, not_taken = (sums.get(key, 0) for key in _SUMS)
    all_ = lines + branches
    share = f"{(all_ - missed - not_taken) / all_:.1%}" if all_ else "—"
    return f"{name:<24} {lines:>7} {missed:>7} {branches:>9} {not_taken:>7} {share:>8}"


def lacking(files: Mapping[str, Mapping[str, Any]], under: str) -> Iterable[str]:
    """The lines and branches of files under a path that no test reached."""
    for file, measured in files.items():
        if under in file:
            source = (ROOT / file).read_text("utf-8").splitlines()
            for number in measured["missing_lines"]:
                yield f"{file}:{number}: {source[number - 1].strip()}"
            for begin, end in measured["missing_branches"]:
                if begin not in measured["missing_lines"] and end not in measured["missing_lines"]:
                    yield f"{file}:{begin} → {end if end > 0 else 'end'}: {source[begin - 1].strip()}"


def main() -> None:
    """Read what was measured, print."""
    parser = argparse.ArgumentParser(prog="python -m tools.covered", description=__doc__)
    parser.add_argument("--lines", metavar="PATH", help="show the lines of files under this path that no test reached")
    options = parser.parse_args()
    measured = coverage.Coverage(config_file=str(ROOT / "pyproject.toml"))
    measured.load()
    with TemporaryDirectory() as folder:
        report = Path(folder) / "coverage.json"
        measured.json_report(outfile=str(report))
        files: dict[str, dict[str, Any]] = json.loads(report.read_text("utf-8"))["files"]
    print("\n".join(lacking(files, options.lines) if options.lines else table(files)))


if __name__ == "__main__":
    main()
