"""How processes of a job find the pservers.

`Discovery` is the seam that each place to run fills: a shared directory (locally, and on a shared volume), or a list of
hosts, given by hand or by the cluster as names of its pods. A pserver announces itself; the others look it up until it
is found. Names are resolved anew each time: a replacement has the same name and another address.
"""

from __future__ import annotations

import socket
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Protocol

import msgspec

from bireme.core.errors import NetworkError, UsageError
from bireme.core.files import write_atomic
from bireme.job.coordination.messages import Address
from bireme.ps.client.carriers import connect
from bireme.spec.job import Job

LOOK_AGAIN_S = 0.5
FIRST_REST_S = 0.02


class Discovery(Protocol):
    """Where the pservers of a job are."""

    def announce(self, pserver: int, address: Address, incarnation: int = 1) -> None:
        """Publish where this pserver listens; the latest incarnation counts."""

    def find(self) -> list[Address | None]:
        """All pservers' addresses by rank; None for one that has not announced itself."""

    def look_up(self, pserver: int) -> Address | None:
        """One pserver's current address, to connect to at once; None if it is not known."""

    def why_missing(self, pserver: int) -> str:
        """Why a pserver's address is not known, as `it …`."""


class SharedDirectory:
    """Pservers meet in a directory: one small file each, written atomically."""

    def __init__(self, directory: Path, pservers: int) -> None:
        self._directory = directory
        self._pservers = pservers

    def announce(self, pserver: int, address: Address, incarnation: int = 1) -> None:
        self._directory.mkdir(parents=True, exist_ok=True)
        write_atomic(self._directory / f"pserver-{pserver}.{incarnation:08d}.json", msgspec.json.encode(address))

    def find(self) -> list[Address | None]:
        return [self.look_up(rank) for rank in range(self._pservers)]

    def look_up(self, pserver: int) -> Address | None:
        # A file for each incarnation: a process that was replaced, and still runs, cannot overwrite its successor's.
        files = sorted(self._directory.glob(f"pserver-{pserver}.*.json"))
        try:
            return msgspec.json.decode(files[-1].read_bytes(), type=Address) if files else None
        except FileNotFoundError:
            return None  # the run has just ended and removed its directory

    def why_missing(self, pserver: int) -> str:
        return "it has not announced itself"


class HostList:
    """Pservers at known hosts, each with the same ports unless it says otherwise (`HOST:PORT`)."""

    def __init__(self, hosts: Iterable[str], port: int, ports_num: int) -> None:
        self._addresses = [_parse(host.strip(), port, ports_num) for host in hosts if host.strip()]
        if not self._addresses:
            fix = "give the pservers' hosts, e.g. --pservers=10.0.0.1,10.0.0.2"
            raise UsageError("--pservers names no host", fix=fix)
        self._unknown: dict[int, str] = {}
        self._turns: dict[int, int] = {}

    def announce(self, pserver: int, address: Address, incarnation: int = 1) -> None:
        """Nothing to do: all processes have the list."""

    def find(self) -> list[Address | None]:
        return list(self._addresses)

    def look_up(self, pserver: int) -> Address | None:
        """Resolve its name; one that stands for several addresses, as of a pod and its replacement, takes turns."""
        named = self._addresses[pserver]
        try:
            answers = socket.getaddrinfo(named.host, None, socket.AF_INET, socket.SOCK_STREAM)
        except OSError as e:
            self._unknown[pserver] = f"its name {named.host} does not resolve: {e.strerror or e}"
            return None
        hosts = sorted({str(entry[4][0]) for entry in answers})
        turn = self._turns[pserver] = self._turns.get(pserver, -1) + 1
        return Address(host=hosts[turn % len(hosts)], ports=named.ports)

    def why_missing(self, pserver: int) -> str:
        return self._unknown.get(pserver, "it was not looked up")


def _parse(host: str, port: int, ports_num: int) -> Address:
    name, colon, own = host.partition(":")
    if colon and not (own.isdecimal() and 0 < int(own) < 65536):
        raise UsageError(f"--pservers: {host!r} has no valid port after the colon", fix="write HOST or HOST:PORT")
    first = int(own) if colon else port
    return Address(host=name, ports=tuple(range(first, first + ports_num)))


def discovery_of(job: Job, run: Path) -> Discovery:
    if not job.hosts:
        return SharedDirectory(run / "meet", job.pservers)
    return HostList(job.hosts, job.first_port, job.ports_num + job.ports_num_for_sparse)


def reach_coordinator(
    discovery: Discovery, timeout_s: float, is_over: Callable[[], bool] = lambda: False
) -> socket.socket:
    """Connect to pserver 0 at its current address; gives up early when the job is over."""
    deadline = time.monotonic() + timeout_s
    rest_s = FIRST_REST_S
    while True:
        if is_over():
            raise NetworkError("pserver 0 has left: the job is over")
        address = discovery.look_up(0)
        left = deadline - time.monotonic()
        if address is not None:
            patience_s = max(min(LOOK_AGAIN_S, left), 0.0)
            try:
                return connect(address.host, address.ports[0], timeout_s=patience_s, what="pserver 0")
            except NetworkError:
                if time.monotonic() >= deadline:
                    raise
        elif left <= 0:
            fix = "look into its server.log; if there is none, it was not started"
            raise NetworkError(f"waited {timeout_s:g} s for pserver 0: {discovery.why_missing(0)}", fix=fix)
        time.sleep(rest_s)
        rest_s = min(2 * rest_s, LOOK_AGAIN_S)
