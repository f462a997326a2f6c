"""A head and its records survive the wire; whatever is not an intact head is refused."""

from __future__ import annotations

import struct
import zlib

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from bireme.core.errors import FrameError
from bireme.ps.wire import frames
from bireme.ps.wire.frames import HEAD_NBYTES, Head, Kind, Record, pack_records, unpack_head, unpack_records

_U32, _U64 = st.integers(0, 2**32 - 1), st.integers(0, 2**64 - 1)
_FLOATS = st.floats(allow_nan=False)
_HEADS = st.builds(
    Head,
    kind=st.sampled_from(Kind),
    flags=st.integers(0, 15),
    job=_U64,
    view=_U64,
    round=_U64,
    nbytes=st.integers(0, frames.MAX_CONTROL_NBYTES),
    incarnation=_U32,
    lo=_U32,
    hi=_U32,
    records=st.integers(0, frames.MAX_RECORDS),
    extra=_U32,
)
_RECORDS = st.lists(
    st.builds(
        Record,
        shard=_U32,
        is_last=st.booleans(),
        samples=_U64,
        cost=_FLOATS,
        evals=st.tuples(_FLOATS, _FLOATS, _FLOATS),
    ),
    max_size=20,
)


def sealed(body: bytes) -> bytes:
    return body + struct.pack("<I", zlib.crc32(body))


@given(head=_HEADS)
def test_a_head_comes_back_as_it_was_sent(head: Head) -> None:
    packed = head.pack()
    assert len(packed) == HEAD_NBYTES
    assert unpack_head(packed) == unpack_head(bytearray(packed)) == unpack_head(memoryview(packed)) == head


@given(head=_HEADS, bit=st.integers(0, HEAD_NBYTES * 8 - 1))
def test_a_single_flipped_bit_in_a_head_is_refused(head: Head, bit: int) -> None:
    data = bytearray(head.pack())
    data[bit // 8] ^= 1 << bit % 8
    with pytest.raises(FrameError):
        unpack_head(data)


@given(head=_HEADS, length=st.integers(0, HEAD_NBYTES - 1))
def test_a_truncated_head_is_refused(head: Head, length: int) -> None:
    with pytest.raises(FrameError, match=f"got {length}"):
        unpack_head(head.pack()[:length])


@given(junk=st.binary(max_size=200) | st.binary(min_size=HEAD_NBYTES, max_size=HEAD_NBYTES))
@example(junk=b"GET / HTTP/1.1\r\nHost: example.org\r\n".ljust(HEAD_NBYTES, b" "))
@example(junk=bytes(HEAD_NBYTES))
@example(junk=b"\xff" * HEAD_NBYTES)
def test_junk_is_refused(junk: bytes) -> None:
    with pytest.raises(FrameError):
        unpack_head(junk)


@given(body=st.binary(min_size=HEAD_NBYTES - 9, max_size=HEAD_NBYTES - 9), version=st.sampled_from([0, 1, 2, 255]))
def test_junk_with_a_right_head_is_a_bounded_frame_or_refused(body: bytes, version: int) -> None:
    data = sealed(frames.MAGIC + bytes([version]) + body)
    try:
        head = unpack_head(data)
    except FrameError:
        return
    assert version == frames.VERSION
    assert head.records <= frames.MAX_RECORDS
    assert head.nbytes <= frames.MAX_ARRAY_NBYTES
    assert head.pack() == data


@given(records=_RECORDS)
def test_records_come_back_as_they_were_sent(records: list[Record]) -> None:
    packed = pack_records(records)
    assert unpack_records(packed, len(records)) == records


@given(records=_RECORDS, data=st.data())
def test_truncated_records_are_refused(records: list[Record], data: st.DataObject) -> None:
    packed = pack_records([*records, Record(1, True, 2)])
    length = data.draw(st.integers(0, len(packed) - 1))
    with pytest.raises(FrameError, match="shard records need"):
        unpack_records(packed[:length], len(records) + 1)


@given(junk=st.binary(max_size=frames.RECORD_NBYTES * 4), count=st.integers(0, 4))
def test_junk_records_are_refused_or_plain_records(junk: bytes, count: int) -> None:
    try:
        found = unpack_records(junk, count)
    except FrameError:
        return
    assert len(found) == count
