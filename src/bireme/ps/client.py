"""A trainer's side of the exchange: push gradients to every lane, pull fresh parameters back.

`Exchange` holds one connection per dense lane and the two flat vectors; slices are sent from
the gradient's memory and received into the model's, so a round copies nothing here.
"""

from __future__ import annotations

import socket
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from bireme.core.errors import FrameError, NetworkError
from bireme.ps import wire
from bireme.ps.frames import Flag, Head, Kind, Record, pack_records
from bireme.ps.plan import Slice
from bireme.ps.tree import Span


class Position(NamedTuple):
    """Where in the job a set of parameters stands."""

    round: int
    pass_id: int
    batch: int


@dataclass(frozen=True, slots=True)
class Identity:
    """What every frame of a trainer carries."""

    job: int
    view: int
    incarnation: int


def connect(host: str, port: int, *, timeout_s: float, what: str) -> socket.socket:
    """Open a connection, trying again while nobody listens yet."""
    deadline = time.monotonic() + timeout_s
    while True:
        try:
            sock = socket.create_connection((host, port), timeout=max(0.1, deadline - time.monotonic()))
        except OSError as e:
            if time.monotonic() + 0.05 >= deadline:
                raise NetworkError(
                    f"{what} at {host}:{port} does not answer: {e.strerror or e}",
                    why=f"nobody accepted a connection there for {timeout_s:g} s",
                    fix="look into its server.log; check that it runs and that the port is open between the machines",
                ) from e
            time.sleep(0.05)
        else:
            sock.settimeout(None)
            return wire.tune(sock)


class Exchange:
    """Connections to all dense lanes, in the order of the plan."""

    def __init__(self, sockets: Sequence[socket.socket], slices: Sequence[Slice], me: Identity) -> None:
        self._lanes = [(s, part) for s, part in zip(sockets, slices, strict=True)]
        self._me = me

    def _head(self, kind: Kind, **fields: int) -> Head:
        flags = Flag(fields.pop("flags", 0))
        me = self._me
        return Head(kind, flags, job=me.job, view=me.view, incarnation=me.incarnation, **fields)

    def push(self, round_: int, span: Span, records: list[Record], grads: NDArray[np.float32] | None) -> None:
        """Send a subtree's gradient to every lane; None when none of its shards had a sample."""
        packed = pack_records(records)
        for sock, part in self._lanes:
            rows = grads[part.begin : part.end] if grads is not None else np.empty(0, dtype=np.float32)
            at = {"round": round_, "lo": span.lo, "hi": span.hi, "records": len(records), "nbytes": rows.nbytes}
            wire.send(sock, self._head(Kind.PUSH, **at), packed, rows)

    def set(self, values: NDArray[np.float32]) -> None:
        """Give every lane its first values."""
        for sock, part in self._lanes:
            rows = values[part.begin : part.end]
            wire.send(sock, self._head(Kind.SET, nbytes=rows.nbytes), rows)

    def pull_round(self, round_: int, into: NDArray[np.float32]) -> Position:
        """Wait for the parameters after this many rounds."""
        return self._pull(self._head(Kind.PULL, round=round_), into)

    def pull_pass(self, pass_id: int, into: NDArray[np.float32]) -> Position:
        """Wait for the parameters at the start of a pass, that is, until everybody has ended the one before."""
        return self._pull(self._head(Kind.PULL, round=pass_id, flags=Flag.AT_PASS), into)

    def pull_now(self, into: NDArray[np.float32]) -> Position:
        """Take whatever is current; lanes that are one round apart are brought to the older one."""
        at = self._pull(self._head(Kind.PULL, flags=Flag.NOW), into, may_differ=True)
        return self.pull_round(at.round, into)

    def _pull(self, head: Head, into: NDArray[np.float32], *, may_differ: bool = False) -> Position:
        packed = head.pack()
        for sock, _ in self._lanes:
            wire.send_all(sock, [packed])
        found = set()
        for sock, part in self._lanes:
            reply = wire.expect(sock, Kind.SLICE)
            if reply.nbytes != 4 * len(part):
                raise FrameError(f"a slice of {reply.nbytes} bytes came, {4 * len(part)} were due")
            wire.receive_into(sock, into[part.begin : part.end])
            found.add(Position(reply.round, reply.extra, reply.lo))
        if len(found) > 1 and not may_differ:
            raise AssertionError(f"lanes answered from different rounds {sorted(found)}: this is a bug")
        return min(found)

    def close(self) -> None:
        """Hang up; a thread that waits for a slice gets a NetworkError."""
        for sock, _ in self._lanes:
            try:
                sock.shutdown(socket.SHUT_RDWR)
            except OSError:
                continue  # it is down already
            finally:
                sock.close()
