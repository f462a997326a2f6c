"""Payloads of sparse lanes: they round-trip, and one that lies about itself is refused before anything is read."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from bireme.core.errors import FrameError
from bireme.ps.wire.row_frames import (
    Block,
    no_rows,
    pack_blocks,
    pack_ids,
    unpack_blocks,
    unpack_ids,
    unpack_request,
)

WIDTHS = (3, 1, 2)
TOP = 2**64 - 1


def block(ids: Sequence[int], width: int) -> Block:
    rows = np.arange(len(ids) * width, dtype=np.float32).reshape(-1, width) - np.float32(1.5)
    return Block(np.array(ids, np.uint64), rows)


def joined(parts: Sequence[np.ndarray]) -> bytearray:
    return bytearray(b"".join(part.tobytes() for part in parts))


def payload_of(*lists: Sequence[int]) -> bytearray:
    return joined(pack_blocks([block(ids, width) for ids, width in zip(lists, WIDTHS, strict=True)]))


def counts(*numbers: int) -> bytearray:
    return bytearray(np.array(numbers, np.uint64).tobytes())


LISTS = {
    "some in each": ([1, 5, TOP], [0], [2, 3]),
    "none at all": ([], [], []),
    "only the first": ([4], [], []),
    "only the last": ([], [], [TOP]),
}


@pytest.mark.parametrize("lists", LISTS.values(), ids=LISTS.keys())
@pytest.mark.parametrize("is_array", [False, True], ids=["bytes", "array"])
def test_blocks_come_out_as_they_went_in(lists: tuple[list[int], ...], is_array: bool) -> None:
    payload = payload_of(*lists)
    found = unpack_blocks(np.frombuffer(payload, np.uint8) if is_array else payload, WIDTHS)
    for given, own, width in zip(lists, found, WIDTHS, strict=True):
        wanted = block(given, width)
        assert (own.ids.tolist(), own.rows.shape) == (given, (len(given), width))
        assert own.rows.tobytes() == wanted.rows.tobytes()


@pytest.mark.parametrize("lists", LISTS.values(), ids=LISTS.keys())
def test_a_request_comes_out_as_it_went_in(lists: tuple[list[int], ...]) -> None:
    payload = joined(pack_ids([np.array(ids, np.uint64) for ids in lists]))
    assert [ids.tolist() for ids in unpack_request(payload, 3)] == list(lists)


def test_the_bits_of_rows_survive() -> None:
    odd = np.array([[-0.0, np.nan, np.inf], [1e-45, -3e38, 0.0]], np.float32)
    odd.view(np.uint32)[0, 1] = 0x7FC12345  # a NaN with something in it
    (found,) = unpack_blocks(joined(pack_blocks([Block(np.array([1, 2], np.uint64), odd)])), [3])
    assert found.rows.tobytes() == odd.tobytes()


def test_a_job_without_tables_sends_nothing() -> None:
    assert joined(pack_blocks([])) == b""
    assert unpack_blocks(bytearray(), []) == []
    assert unpack_request(bytearray(), 0) == []
    with pytest.raises(FrameError):
        unpack_request(bytearray(8), 0)


def test_a_block_that_touches_nothing_has_the_width_of_its_table() -> None:
    empty = no_rows(7)
    assert (empty.ids.dtype.name, empty.rows.dtype.name, empty.rows.shape) == ("uint64", "float32", (0, 7))


@pytest.mark.parametrize("length", range(len(payload_of([1, 5], [0], [2]))))
def test_a_torn_payload_is_refused_wherever_it_was_cut(length: int) -> None:
    with pytest.raises(FrameError):
        unpack_blocks(payload_of([1, 5], [0], [2])[:length], WIDTHS)


@pytest.mark.parametrize("more", [1, 3, 4, 8, 1000])
def test_a_payload_that_is_too_long_is_refused(more: int) -> None:
    with pytest.raises(FrameError, match="need 92 bytes"):
        unpack_blocks(payload_of([1, 5], [0], [2]) + bytearray(more), WIDTHS)
    request = joined(pack_ids([np.array([7], np.uint64)]))
    with pytest.raises(FrameError, match=f"{more} bytes too many after the ids"):
        unpack_request(request + bytearray(more), 1)


LIES = {
    "one more": (3, 1, 1),
    "one less": (1, 1, 1),
    "one of another table": (1, 2, 1),
    "2 ** 61, whose bytes are 2 ** 64": (2**61, 0, 0),
    "2 ** 62": (2**62, 0, 0),
    "2 ** 63": (2**63, 0, 0),
    "2 ** 63 twice, which is 0 in 64 bits": (2**63, 2**63, 4),
    "a sum that wraps round to the truth": (2**64 - 1, 3, 2),
    "the largest of all": (TOP, TOP, TOP),
}


@pytest.mark.parametrize("lie", LIES.values(), ids=LIES.keys())
def test_counts_that_lie_are_refused(lie: tuple[int, ...]) -> None:
    payload = payload_of([1, 5], [0], [2])
    payload[:24] = counts(*lie)
    with pytest.raises(FrameError):
        unpack_blocks(payload, WIDTHS)
    ids_only = joined(pack_ids([np.array(ids, np.uint64) for ids in ([1, 5], [0], [2])]))
    ids_only[:24] = counts(*lie)
    if sum(lie) != 4:  # as a request, ids may be of one table or of another
        with pytest.raises(FrameError):
            unpack_request(ids_only, 3)


@pytest.mark.parametrize("lie", [2**61, 2**63, TOP])
def test_a_huge_count_alone_allocates_nothing(lie: int) -> None:
    with pytest.raises(FrameError, match=f"{lie} ids need {8 * (lie + 1)} bytes, 8 came"):
        unpack_ids(counts(lie), 1)


@pytest.mark.parametrize("length", [0, 7, 8, 23])
def test_a_payload_without_all_its_counts_is_refused(length: int) -> None:
    with pytest.raises(FrameError, match=f"begin with 24 bytes of counts, {length} came"):
        unpack_ids(bytearray(length), 3)


def test_rows_are_views_that_cost_no_copy() -> None:
    payload = payload_of([1, 5], [0], [2])
    found = unpack_blocks(payload, WIDTHS)
    payload[-4:] = np.float32(9.0).tobytes()
    assert found[2].rows[0, 1] == 9.0
