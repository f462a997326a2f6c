"""Rows on the wire: the payload of frames between trainers and sparse lanes.

For a job with T sparse parameters a payload holds T counts (uint64), then the ids of all tables end to end
(uint64), then, where there are values, their rows (float32) in the same order:

    PUSH to a sparse lane   counts, ids, gradient rows      ids ascending within each table
    PULL from one           counts, ids                     answered by SLICE: rows alone, in that order
    SLICE of everything     counts, ids, rows               the answer to PULL with flag ALL; SET is the same
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from bireme.core.errors import FrameError

Ids = NDArray[np.uint64]
Floats = NDArray[np.float32]
Payload = bytearray | NDArray[np.uint8]


class Block(NamedTuple):
    """Rows of one table: ids, and one row for each (none at all in a request)."""

    ids: Ids
    rows: Floats


def no_rows(width: int) -> Block:
    return Block(np.empty(0, np.uint64), np.empty((0, width), np.float32))


def pack_ids(tables: Sequence[Ids]) -> list[NDArray[np.uint64]]:
    return [np.array([len(ids) for ids in tables], np.uint64), *(ids for ids in tables if len(ids))]


def pack_blocks(blocks: Sequence[Block]) -> list[NDArray[np.uint64] | Floats]:
    return [*pack_ids([b.ids for b in blocks]), *(b.rows.reshape(-1) for b in blocks if len(b.ids))]


def unpack_ids(payload: Payload, tables: int) -> tuple[list[Ids], int]:
    """The ids of each table, and where they end; a payload that is too short is refused."""
    if len(payload) < 8 * tables:
        raise FrameError(f"rows of {tables} tables begin with {8 * tables} bytes of counts, {len(payload)} came")
    counts = np.frombuffer(payload, np.uint64, tables).tolist()
    end = 8 * (tables + sum(counts))
    if end > len(payload):
        raise FrameError(f"{sum(counts)} ids need {end} bytes, {len(payload)} came")
    ids = np.frombuffer(payload, np.uint64, sum(counts), 8 * tables)
    return [*np.split(ids, np.cumsum(counts[:-1], dtype=np.int64))] if tables else [], end


def unpack_request(payload: Payload, tables: int) -> list[Ids]:
    ids, end = unpack_ids(payload, tables)
    if end != len(payload):
        raise FrameError(f"{len(payload) - end} bytes too many after the ids")
    return ids


def unpack_blocks(payload: Payload, widths: Sequence[int]) -> list[Block]:
    ids, at = unpack_ids(payload, len(widths))
    wanted = at + sum(4 * width * len(i) for width, i in zip(widths, ids, strict=True))
    if wanted != len(payload):
        raise FrameError(f"rows of widths {list(widths)} need {wanted} bytes, {len(payload)} came")
    blocks = []
    for own, width in zip(ids, widths, strict=True):
        rows = np.frombuffer(payload, np.float32, len(own) * width, at).reshape(len(own), width)
        at += rows.nbytes
        blocks.append(Block(own, rows))
    return blocks
