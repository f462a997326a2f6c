"""How processes of a job find the pservers.

`Discovery` is the seam that each place to run fills: a directory that all can see (here, and on
a shared volume), or a list of hosts given by hand. A pserver announces itself; whoever needs the
pservers asks until all of them are there.
"""

from __future__ import annotations

import socket
import time
from collections.abc import Callable
from pathlib import Path
from typing import Protocol

import msgspec

from bireme.core.errors import NetworkError, UsageError
from bireme.core.files import write_atomic
from bireme.job.messages import Address
from bireme.ps.client import connect

LOOK_AGAIN_S = 0.5


class Discovery(Protocol):
    """Where the pservers of a job are."""

    def announce(self, pserver: int, address: Address, incarnation: int = 1) -> None:
        """Tell the others where this pserver listens; a later incarnation's word counts."""

    def find(self) -> list[Address | None]:
        """The pservers known right now, by rank; None for one that has not announced itself."""


class SharedDirectory:
    """Pservers meet in a directory: one small file each, written atomically."""

    def __init__(self, directory: Path, pservers: int) -> None:
        self._directory = directory
        self._pservers = pservers

    def announce(self, pserver: int, address: Address, incarnation: int = 1) -> None:
        """Write this pserver's file, beside those of its earlier lives."""
        self._directory.mkdir(parents=True, exist_ok=True)
        write_atomic(self._directory / f"pserver-{pserver}.{incarnation:08d}.json", msgspec.json.encode(address))

    def find(self) -> list[Address | None]:
        """Read what is there."""
        return [self._read(rank) for rank in range(self._pservers)]

    def _read(self, rank: int) -> Address | None:
        lives = sorted(self._directory.glob(f"pserver-{rank}.*.json"))
        return msgspec.json.decode(lives[-1].read_bytes(), type=Address) if lives else None


class HostList:
    """Pservers given by hand, as the original's `--pservers=10.0.0.1,10.0.0.2` with one `--port` for all."""

    def __init__(self, hosts: str, port: int, ports_num: int) -> None:
        self._addresses = [self._parse(host.strip(), port, ports_num) for host in hosts.split(",") if host.strip()]
        if not self._addresses:
            raise UsageError(
                "--pservers names no host", fix="give the pservers' hosts, e.g. --pservers=10.0.0.1,10.0.0.2"
            )

    @staticmethod
    def _parse(host: str, port: int, ports_num: int) -> Address:
        name, colon, own = host.partition(":")
        if colon and not (own.isdecimal() and 0 < int(own) < 65536):
            raise UsageError(f"--pservers: {host!r} has no valid port after the colon", fix="write HOST or HOST:PORT")
        first = int(own) if colon else port
        return Address(host=name, ports=tuple(range(first, first + ports_num)))

    def announce(self, pserver: int, address: Address, incarnation: int = 1) -> None:
        """Nothing to do: everybody was told."""

    def find(self) -> list[Address | None]:
        """All of them, always."""
        return list(self._addresses)


def reach_coordinator(
    discovery: Discovery, timeout_s: float, is_over: Callable[[], bool] = lambda: False
) -> socket.socket:
    """Connect to pserver 0, wherever it says it is by now; gives up early when the job is over."""
    deadline = time.monotonic() + timeout_s
    while True:
        if is_over():
            raise NetworkError("pserver 0 has left: the job is over")
        address = discovery.find()[0]
        left = deadline - time.monotonic()
        if address is not None:
            patience_s = max(min(LOOK_AGAIN_S, left), 0.0)
            try:
                return connect(address.host, address.ports[0], timeout_s=patience_s, what="pserver 0")
            except NetworkError:
                if time.monotonic() >= deadline:
                    raise
        elif left <= 0:
            raise NetworkError(
                f"pserver 0 did not announce itself within {timeout_s:g} s", fix="look into its server.log"
            )
        time.sleep(0.02)
