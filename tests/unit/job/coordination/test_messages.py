from __future__ import annotations

import socket

import pytest

from bireme.core.errors import FrameError
from bireme.job.coordination import messages
from bireme.ps.wire import frame_io
from bireme.ps.wire.frames import Head, Kind


@pytest.mark.parametrize("payload", [b"", b"{", b"\xff\xfe", b'{"type": "Unheard"}', b"[" * 100_000])
def test_a_malformed_control_message_is_a_frame_error(payload: bytes) -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        ours.settimeout(10.0)
        theirs.sendall(Head(Kind.CONTROL, nbytes=len(payload)).pack() + payload)
        with pytest.raises(FrameError, match="malformed control message"):
            messages.receive(ours, frame_io.expect(ours, Kind.CONTROL))
