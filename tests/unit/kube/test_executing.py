"""The WebSocket frames of exec, without a socket."""

from __future__ import annotations

import json
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bireme.core.errors import ClusterError
from bireme.kube.executing import Frames, exit_code, frame


def unmasked(data: bytes) -> tuple[int, bytes]:
    """A server's view of a client's frame."""
    length, at = data[1] & 0x7F, 2
    if length == 126:
        (length,), at = struct.unpack(">H", data[2:4]), 4
    elif length == 127:
        (length,), at = struct.unpack(">Q", data[2:10]), 10
    mask, body = data[at : at + 4], data[at + 4 :]
    assert data[1] & 0x80 and len(body) == length
    return data[0] & 0x0F, bytes(byte ^ mask[i % 4] for i, byte in enumerate(body))


@pytest.mark.parametrize("nbytes", [0, 1, 3, 125, 126, 127, 65535, 65536])
def test_a_frame_is_what_a_server_reads(nbytes: int) -> None:
    payload = bytes(i % 251 for i in range(nbytes))
    assert unmasked(frame(payload)) == (2, payload)


def sent(payload: bytes, kind: int = 2, *, is_last: bool = True) -> bytes:
    """A server's frame."""
    head = bytes((kind | (0x80 if is_last else 0),))
    if len(payload) < 126:
        return head + bytes((len(payload),)) + payload
    return head + b"\x7e" + struct.pack(">H", len(payload)) + payload


@given(st.lists(st.binary(max_size=300), max_size=6), st.data())
def test_messages_come_whole_however_the_bytes_are_cut(messages: list[bytes], data: st.DataObject) -> None:
    stream, frames, found = b"".join(sent(m) for m in messages), Frames(), []
    while stream:
        cut = data.draw(st.integers(1, len(stream)))
        found += list(frames.feed(stream[:cut]))
        stream = stream[cut:]
    assert found == [(2, m) for m in messages]


def test_a_message_in_parts_is_put_together_around_a_ping() -> None:
    stream = sent(b"one ", is_last=False) + sent(b"?", 9) + sent(b"two", 0)
    assert list(Frames().feed(stream)) == [(9, b"?"), (2, b"one two")]


def test_an_outcome_is_an_exit_code_or_an_error() -> None:
    causes = {"causes": [{"reason": "ExitCode", "message": "5"}]}
    assert exit_code(b'{"status": "Success"}') == 0
    assert exit_code(json.dumps({"status": "Failure", "details": causes}).encode()) == 5
    with pytest.raises(ClusterError, match="no such file"):
        exit_code(b'{"status": "Failure", "message": "no such file"}')
