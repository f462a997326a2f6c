"""A dense lane's memory, and what of it trainers of the same machine share: the lane's end of the carrier `shm`."""

from __future__ import annotations

import socket
import weakref
from typing import TYPE_CHECKING

import msgspec

from bireme.core.errors import FrameError, StorageError
from bireme.ps.plan import Slice
from bireme.ps.wire.shared_memory import Offer, Region, check_segment, close_quietly, make_segment

if TYPE_CHECKING:
    from bireme.ps.lanes.lane import Machine


class LaneMemory:
    """A lane's two parameter buffers and its inbox: one row per contribution, its own or a trainer's memory."""

    def __init__(self, part: Slice, rows: int) -> None:
        self._nbytes = 4 * len(part)
        params = Region(2 * self._nbytes)
        try:
            self.fd = make_segment("parameters", 2 * self._nbytes)
            params.map(0, 2 * self._nbytes, self.fd, 0, is_writable=True)
        except StorageError:
            self.fd = -1  # nothing can be shared; trainers of this machine get slices through their sockets
        weakref.finalize(self, close_quietly, self.fd)
        # w[r] and w[r - 1]: a trainer that died between two lanes' closing is replaced by one that needs the older.
        self.buffers = [params.floats(len(part)), params.floats(len(part), self._nbytes)]
        self._inbox = Region(rows * self._nbytes)
        self.inbox = self._inbox.floats(rows * len(part)).reshape(rows, len(part))

    def adopt(self, row: int, fd: int, fd_offset: int) -> None:
        """Let a row be a piece of a trainer's segment, which is only read here."""
        self._inbox.map(row * self._nbytes, self._nbytes, fd, fd_offset, is_writable=False)

    def reclaim(self, row: int) -> None:
        """Take a row back from a trainer that has gone, with what it had written."""
        # The row may have landed, and its round still be open: the replacement's push is compared with it.
        kept = self.inbox[row].copy()
        self._inbox.unmap(row * self._nbytes, self._nbytes)
        self.inbox[row] = kept


class Sharing:
    """What connections share with a lane: here, nothing. All calls are made under the lane's lock."""

    def attach(self, sock: socket.socket, offer: bytearray, fds: list[int], machine: Machine) -> list[int]:
        """Take what a connection of this machine offers; return descriptors of memory to share with it."""
        return []

    def detach(self, sock: socket.socket) -> None:
        """Stop sharing with a connection that has closed."""

    def check(self, sock: socket.socket, row: int | None, *, in_place: bool) -> None:
        """Refuse a push into a row that another connection shares, or that none does."""
        if in_place:
            raise FrameError("a sparse lane shares no memory")

    def holds(self, sock: socket.socket) -> bool:
        """Whether this connection reads the lane's memory in place, so that an answer has no payload."""
        return False


class SharedRows(Sharing):
    """Rows of the inbox that are trainers' own memory, and buffers that these trainers read."""

    def __init__(self, memory: LaneMemory, part: Slice, row_nbytes: int, *, is_allowed: bool) -> None:
        self._memory = memory
        self._part = part
        self._row_nbytes = row_nbytes
        self._is_allowed = is_allowed
        # By id: the key lives no longer than its connection, as `detach` runs before the socket is freed.
        self._attached: dict[int, list[int]] = {}  # rows by connection

    def attach(self, sock: socket.socket, offer: bytearray, fds: list[int], machine: Machine) -> list[int]:
        try:
            offered = msgspec.json.decode(offer, type=Offer)
        except msgspec.MsgspecError as e:
            raise FrameError(f"malformed ATTACH: {e}") from e
        rows = [machine.row_of(span) for span in offered.spans]
        is_fit = offered.row_nbytes == self._row_nbytes and None not in rows
        if not is_fit or self._shared() & set(rows):
            raise FrameError(f"the rows {offered.spans} are not free in this view")
        # A row that has landed must stay what it was: a replacement's memory is still to be computed.
        is_in = any(machine.has_landed(span) for span in offered.spans)
        if not fds or self._memory.fd < 0 or is_in or not self._is_allowed:
            return []
        check_segment(fds[0], offered.row_nbytes * len(rows))
        own = [row for row in rows if row is not None]
        self._attached[id(sock)] = own
        for number, row in enumerate(own):
            self._memory.adopt(row, fds[0], number * offered.row_nbytes + 4 * self._part.begin)
        return [self._memory.fd]

    def _shared(self) -> set[int | None]:
        return {row for held in self._attached.values() for row in held}

    def detach(self, sock: socket.socket) -> None:
        for row in self._attached.pop(id(sock), ()):
            self._memory.reclaim(row)

    def check(self, sock: socket.socket, row: int | None, *, in_place: bool) -> None:
        """A shared row is written by its trainer alone; a payload for it would be written to that trainer's memory."""
        holders = self._attached.get(id(sock), ()) if in_place else self._shared()
        if in_place != (row in holders):
            raise FrameError("these shards' gradient is not shared by this connection, but by another or none")

    def holds(self, sock: socket.socket) -> bool:
        return id(sock) in self._attached
