"""Two machines that have nothing but a cable in common: network namespaces. Needs root and `ip`."""

from __future__ import annotations

import ctypes
import os
import shutil
import socket
import subprocess
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

ADDRESSES = ("10.77.0.1", "10.77.0.2")
CLONE_NEWNET = 0x40000000


def ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True, capture_output=True)


@dataclass(frozen=True)
class Cable:
    """Two namespaces, by name, and what is between them."""

    ends: tuple[str, str]

    def pull(self) -> None:
        """Pull it. Connections are half-open from now on, on both sides, without a reset."""
        ip("-n", self.ends[0], "link", "set", "cable", "down")

    def plug_in(self) -> None:
        ip("-n", self.ends[0], "link", "set", "cable", "up")

    def connect(self) -> tuple[socket.socket, socket.socket]:
        """A connection over the cable, both ends of which are in this process."""
        with _socket_in(self.ends[0], lambda: socket.create_server((ADDRESSES[0], 0))) as listener:
            here = _socket_in(self.ends[1], lambda: socket.create_connection(listener.getsockname(), 5.0))
            here.settimeout(None)
            return here, listener.accept()[0]


@contextmanager
def cable() -> Iterator[Cable]:
    """Lay a cable, and take it away again; where that cannot be done, the test is skipped."""
    if os.geteuid() or not shutil.which("ip"):
        pytest.skip("needs root and the `ip` command to make network namespaces")
    ends = (f"bireme-{os.getpid()}-a", f"bireme-{os.getpid()}-b")
    try:
        try:
            _lay(ends)
        except subprocess.CalledProcessError as e:
            pytest.skip(f"network namespaces cannot be made here: {e.stderr!r}")
        yield Cable(ends)
    finally:
        for end in ends:
            subprocess.run(["ip", "netns", "delete", end], check=False, capture_output=True)


def _lay(ends: tuple[str, str]) -> None:
    for end in ends:
        ip("netns", "add", end)
    ip("-n", ends[0], "link", "add", "cable", "type", "veth", "peer", "name", "cable", "netns", ends[1])
    for address, end in zip(ADDRESSES, ends, strict=True):
        ip("-n", end, "addr", "add", f"{address}/24", "dev", "cable")
        ip("-n", end, "link", "set", "cable", "up")
        ip("-n", end, "link", "set", "lo", "up")


def _socket_in(end: str, make: Callable[[], socket.socket]) -> socket.socket:
    """Make a socket that belongs to a namespace: by a thread that goes there, and ends there."""
    libc = ctypes.CDLL(None, use_errno=True)

    def go_and_make() -> socket.socket:
        with Path("/run/netns", end).open("rb") as namespace:
            if libc.setns(namespace.fileno(), CLONE_NEWNET):
                raise OSError(ctypes.get_errno(), f"setns to {end}")
        return make()

    with ThreadPoolExecutor(1) as thread:
        return thread.submit(go_and_make).result()
