"""Wire format: bytes to frames and back. No sockets, no threads, no clock.

A frame is a fixed 64-byte little-endian head, then `records` shard records of 48 bytes, then
`nbytes` of payload: raw float32 for parameters and gradients, JSON for control. Whatever is not
a whole, intact head of this version is refused with a reason, before anything after it is read,
so junk cannot make a reader allocate or wait.

    offset  0  magic "BRME"      4  version u8      5  kind u8      6  flags u16
            8  job u64          16  view u64       24  round u64   32  nbytes u64
           40  incarnation u32  44  shard lo u32   48  shard hi u32
           52  records u32       56  extra u32      60  crc32 of bytes 0 … 59
"""

from __future__ import annotations

import enum
import struct
import zlib
from typing import NamedTuple

from bireme.core.errors import FrameError

MAGIC = b"BRME"
VERSION = 1
HEAD_NBYTES = 64
MAX_RECORDS = 1 << 16
MAX_CONTROL_NBYTES = 64 << 20
MAX_ARRAY_NBYTES = 1 << 40

_HEAD = struct.Struct("<4sBBHQQQQIIIII")
_CRC = struct.Struct("<I")
_RECORD = struct.Struct("<IIQdddd")
RECORD_NBYTES = _RECORD.size


class Kind(enum.IntEnum):
    """What a frame is for."""

    PUSH = 1  # trainer to lane: a subtree's gradient slice, with one record per shard in it
    PULL = 2  # trainer to lane: send me the slice of a round, or of the start of a pass
    SLICE = 3
    """Lane to trainer: parameters after `round` rounds, which is batch `lo` of pass `extra`; `hi` names a cut."""
    SET = 4  # trainer to lane: start from these values
    REFUSE = 5  # either side: a frame is refused, and the payload has the reason
    CONTROL = 6  # a control message, JSON
    ATTACH = 7
    """Trainer to lane and back, first on a Unix socket: segments to share, as descriptors beside the frame."""


class Flag(enum.IntEnum):
    """Bits of a head. Plain numbers: those of a real flag type take long to combine, and every round does."""

    NONE = 0
    AT_PASS = 1  # PULL: `round` is a pass number; answer when that pass begins
    NOW = 2  # PULL: answer with whatever round is current
    IN_PLACE = 4  # PUSH, SLICE: the payload does not follow, it lies in shared memory
    ALL = 8  # PULL from a sparse lane, and its SLICE: every row that exists, with its id


_KINDS = {kind.value: kind for kind in Kind}
_ALL_FLAGS = sum(Flag)


class Head(NamedTuple):
    """The first 64 bytes of a frame, decoded."""

    kind: Kind
    flags: int = Flag.NONE
    job: int = 0
    view: int = 0
    round: int = 0
    nbytes: int = 0
    incarnation: int = 0
    lo: int = 0
    hi: int = 0
    records: int = 0
    extra: int = 0

    def pack(self) -> bytes:
        body = _HEAD.pack(
            MAGIC, VERSION, self.kind, self.flags, self.job, self.view, self.round, self.nbytes,
            self.incarnation, self.lo, self.hi, self.records, self.extra,
        )  # fmt: skip
        return body + _CRC.pack(zlib.crc32(body))

    @property
    def records_nbytes(self) -> int:
        return self.records * RECORD_NBYTES


def unpack_head(data: bytes | bytearray | memoryview) -> Head:
    if len(data) != HEAD_NBYTES:
        raise FrameError(f"a frame head has {HEAD_NBYTES} bytes, got {len(data)}: the connection was cut mid-frame")
    body = bytes(data[:60])
    magic, version, kind, flags, *rest = _HEAD.unpack(body)
    if magic != MAGIC:
        raise FrameError(
            f"not a bireme frame: it starts with {magic!r}",
            fix="check that the port belongs to a bireme pserver",
        )
    if _CRC.unpack(data[60:])[0] != zlib.crc32(body):
        raise FrameError("a frame head with a flipped bit: its checksum does not match")
    if version != VERSION:
        raise FrameError(
            f"frame version {version}, this is bireme with version {VERSION}",
            fix="run the same bireme on every node",
        )
    if kind not in _KINDS or flags & ~_ALL_FLAGS:
        raise FrameError(f"unknown frame kind {kind} or flags {flags:#x}")
    head = Head(_KINDS[kind], flags, *rest)
    limit = MAX_CONTROL_NBYTES if head.kind in (Kind.CONTROL, Kind.REFUSE, Kind.ATTACH) else MAX_ARRAY_NBYTES
    if head.nbytes > limit or head.records > MAX_RECORDS:
        raise FrameError(f"a {head.kind.name} frame of {head.nbytes} bytes and {head.records} records is too long")
    return head


class Record(NamedTuple):
    """What one shard adds in one round besides its gradient: sums, never means."""

    shard: int
    is_last: bool  # the shard has no further batch in this pass
    samples: int
    cost: float = 0.0
    evals: tuple[float, float, float] = (0.0, 0.0, 0.0)


def pack_records(records: list[Record]) -> bytes:
    return b"".join(_RECORD.pack(r.shard, int(r.is_last), r.samples, r.cost, *r.evals) for r in records)


def unpack_records(data: bytes | bytearray | memoryview, count: int) -> list[Record]:
    """Decode the records of a PUSH; flags other than "last" are refused."""
    if len(data) != count * RECORD_NBYTES:
        raise FrameError(f"{count} shard records need {count * RECORD_NBYTES} bytes, got {len(data)}")
    records = []
    for shard, flags, samples, cost, *evals in _RECORD.iter_unpack(data):
        if flags > 1:
            raise FrameError(f"unknown flags {flags:#x} in the record of shard {shard}")
        records.append(Record(shard, bool(flags), samples, cost, (evals[0], evals[1], evals[2])))
    return records
