"""Numbers that processes take when they start, each larger than any before it in the same output directory.

A process takes a number by creating a file that must not exist yet, which a shared volume decides for all machines
alike. The files stay, so that no number is taken twice.
"""

from __future__ import annotations

from pathlib import Path

from bireme.core.files import storage_errors, sync_directory, volume, write_atomic

DIRECTORY = "incarnations"
HOLDER = "holder"


def take(output: Path, who: str) -> int:
    directory = output / DIRECTORY
    with storage_errors(str(directory)):
        directory.mkdir(parents=True, exist_ok=True)
        # Only where to begin: a network volume may list names late. Creating the file decides.
        number = max((int(p.name) for p in directory.iterdir() if p.name.isdecimal()), default=0)
        while True:
            number += 1
            try:
                volume().create(directory / f"{number:08d}", f"{who}, process {volume().writer()}\n".encode())
            except FileExistsError:
                continue  # another process was faster
            sync_directory(directory)
            return number


def newest_of(output: Path, who: str) -> int:
    """The highest number that `who` has taken; 0 for none."""
    files = [p for p in (output / DIRECTORY).glob("[0-9]*") if p.read_text().startswith(f"{who},")]
    return max((int(p.name) for p in files), default=0)


def newest(output: Path) -> int:
    """The highest number that any process has taken here; 0 for none."""
    return max((int(p.name) for p in (output / DIRECTORY).glob("[0-9]*")), default=0)


class Lease:
    """A node's place in the job, held by the newest node that took it.

    A machine that is cut off from its cluster runs on beside its replacement, as no command reaches it. The
    replacement takes a larger number, and the old node polls for one. Its processes check once, after taking their
    incarnations: one with a larger number than its successor took it after the successor's node took the lease.
    """

    def __init__(self, directory: Path, number: int) -> None:
        self.directory = directory
        self.number = number

    @classmethod
    def take(cls, directory: Path, who: str) -> Lease:
        lease = cls(directory, take(directory, who))
        lease._write_holder()
        return lease

    def _write_holder(self) -> None:
        write_atomic(self.directory / HOLDER, f"{self.number}\n".encode())

    def is_lost(self) -> bool:
        # The holder file and the numbers: a network volume may list a new name late, but reads a known file afresh.
        try:
            holder = int((self.directory / HOLDER).read_text())
        except (OSError, ValueError):
            holder = 0
        if holder < self.number:
            self._write_holder()  # an earlier holder wrote its number after ours
        return max(holder, newest(self.directory)) > self.number
