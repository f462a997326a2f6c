"""Numbers that processes take when they start, each larger than any before it in the same output directory.

Taking one is creating a file that must not exist yet, which a shared volume decides for all machines alike. The
files stay: a number that could be taken twice would be worth nothing.
"""

from __future__ import annotations

from pathlib import Path

from bireme.core.files import storage_errors, sync_directory, volume

DIRECTORY = "incarnations"


def take(output: Path, who: str) -> int:
    """Take the next number, for `who`."""
    directory = output / DIRECTORY
    with storage_errors(str(directory)):
        directory.mkdir(parents=True, exist_ok=True)
        number = max((int(p.name) for p in directory.iterdir() if p.name.isdecimal()), default=0)
        while True:
            number += 1
            try:
                volume().create(directory / f"{number:08d}", f"{who}, process {volume().writer()}\n".encode())
            except FileExistsError:
                continue  # somebody else was faster
            sync_directory(directory)
            return number


def newest_of(output: Path, who: str) -> int:
    """The highest number that `who` has taken; 0 for none."""
    found = [p for p in (output / DIRECTORY).glob("[0-9]*") if p.read_text().startswith(f"{who},")]
    return max((int(p.name) for p in found), default=0)
