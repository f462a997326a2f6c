"""Numbers that processes take when they start, each larger than any before it in the same output directory.

Taking one is creating a file that must not exist yet, which a shared volume decides for all machines alike. The
files stay: a number that could be taken twice would be worth nothing.
"""

from __future__ import annotations

from pathlib import Path

from bireme.core.files import storage_errors, sync_directory, volume, write_atomic

DIRECTORY = "incarnations"
HOLDER = "holder"


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


def newest(output: Path) -> int:
    """The highest number that anybody has taken here; 0 for none."""
    return max((int(p.name) for p in (output / DIRECTORY).glob("[0-9]*")), default=0)


class Lease:
    """A place that one node at a time may hold: the newest comer, whoever else still thinks that it does.

    A machine that is cut off from its cluster runs on beside its replacement, as nobody can tell it to stop. The
    replacement takes a larger number, and the old one looks. So do its processes, once, after they have taken their
    own numbers: one whose number is larger than its successor's took it after the successor's node had sat down.
    """

    def __init__(self, directory: Path, number: int) -> None:
        self.directory = directory
        self.number = number

    @classmethod
    def take(cls, directory: Path, who: str) -> Lease:
        """Sit down."""
        seat = cls(directory, take(directory, who))
        seat._say()
        return seat

    def _say(self) -> None:
        write_atomic(self.directory / HOLDER, f"{self.number}\n".encode())

    def is_lost(self) -> bool:
        """Whether a later life has taken this place.

        Both the numbers and the holder's word count: a volume on a network may show a new name in a directory late,
        but opens the file of a known name afresh.
        """
        said = self._read()
        if said < self.number:
            self._say()  # one that came before has spoken after us
        return max(said, newest(self.directory)) > self.number

    def _read(self) -> int:
        try:
            return int((self.directory / HOLDER).read_text())
        except (OSError, ValueError):
            return 0
