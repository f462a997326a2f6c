from __future__ import annotations

import struct
import tracemalloc
import zlib

import pytest

from bireme.core.errors import FrameError
from bireme.ps.wire import frames
from bireme.ps.wire.frames import Flag, Head, Kind, Record, pack_records, unpack_head, unpack_records


def sealed(body: bytes) -> bytes:
    return body + struct.pack("<I", zlib.crc32(body))


def raw_head(*, version: int = 1, kind: int = 1, flags: int = 0, nbytes: int = 0, records: int = 0) -> bytes:
    return sealed(struct.pack("<4sBBHQQQQIIIII", b"BRME", version, kind, flags, 0, 0, 0, nbytes, 0, 0, 0, records, 0))


def test_a_head_has_the_documented_bytes() -> None:
    head = Head(Kind.PUSH, Flag.NOW, 0x11, 0x22, 0x33, 0x44, 0x55, 0x66, 0x77, 0x88, 0x99)
    body = struct.pack("<4sBBHQQQQIIIII", b"BRME", 1, 1, 2, 0x11, 0x22, 0x33, 0x44, 0x55, 0x66, 0x77, 0x88, 0x99)
    assert head.pack() == body + struct.pack("<I", zlib.crc32(body))


@pytest.mark.parametrize(("kind", "number"), [(Kind.SLICE, 3), (Kind.CONTROL, 6), (Kind.ATTACH, 7)])
def test_a_kind_keeps_its_number_on_the_wire(kind: Kind, number: int) -> None:
    assert Head(kind, Flag.IN_PLACE).pack()[5:8] == bytes([number, 4, 0])
    assert unpack_head(raw_head(kind=number, flags=4)) == Head(kind, Flag.IN_PLACE)


def test_a_record_has_48_documented_bytes() -> None:
    packed = pack_records([Record(7, True, 20, 1.5, (1.0, 2.0, 3.0))])
    assert packed == struct.pack("<IIQdddd", 7, 1, 20, 1.5, 1.0, 2.0, 3.0)
    assert len(packed) == frames.RECORD_NBYTES == 48


def test_another_version_is_named_with_what_to_do() -> None:
    with pytest.raises(FrameError, match="frame version 2, this is bireme with version 1") as caught:
        unpack_head(raw_head(version=2))
    assert caught.value.fix == "run the same bireme on every node"


@pytest.mark.parametrize("kind", [0, 8, 255])
def test_an_unknown_kind_is_refused(kind: int) -> None:
    with pytest.raises(FrameError, match=f"unknown frame kind {kind}"):
        unpack_head(raw_head(kind=kind))


@pytest.mark.parametrize("flags", [16, 0x8000, 0xFFFF])
def test_unknown_flags_are_refused(flags: int) -> None:
    with pytest.raises(FrameError, match="unknown frame kind 1 or flags"):
        unpack_head(raw_head(flags=flags))


def test_a_foreign_protocol_gets_the_name_of_the_port() -> None:
    with pytest.raises(FrameError, match="not a bireme frame: it starts with b'GET '") as caught:
        unpack_head(b"GET / HTTP/1.1".ljust(64))
    assert "port" in caught.value.fix


@pytest.mark.parametrize(
    ("kind", "nbytes", "records"),
    [
        (Kind.CONTROL, frames.MAX_CONTROL_NBYTES + 1, 0),
        (Kind.REFUSE, frames.MAX_CONTROL_NBYTES + 1, 0),
        (Kind.ATTACH, frames.MAX_CONTROL_NBYTES + 1, 0),
        (Kind.PUSH, frames.MAX_ARRAY_NBYTES + 1, 0),
        (Kind.SLICE, 2**64 - 1, 0),
        (Kind.PUSH, 0, frames.MAX_RECORDS + 1),
        (Kind.PUSH, 0, 2**32 - 1),
    ],
)
def test_a_huge_claimed_payload_is_refused_unallocated(kind: Kind, nbytes: int, records: int) -> None:
    data = raw_head(kind=kind, nbytes=nbytes, records=records)
    tracemalloc.start()
    try:
        with pytest.raises(FrameError, match="is too long"):
            unpack_head(data)
        assert tracemalloc.get_traced_memory()[1] < 1 << 20
    finally:
        tracemalloc.stop()


def test_unknown_record_flags_are_refused_by_shard() -> None:
    with pytest.raises(FrameError, match="unknown flags 0x2 in the record of shard 5"):
        unpack_records(struct.pack("<IIQdddd", 5, 2, 0, 0, 0, 0, 0), 1)
