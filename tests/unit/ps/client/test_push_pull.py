from __future__ import annotations

import socket

import pytest

from bireme.core.errors import FrameError
from bireme.ps.client.memory import TrainerMemory
from bireme.ps.client.push_pull import Exchange, Identity, Link
from bireme.ps.plan import Layout
from bireme.ps.tree import Span
from bireme.ps.wire.frames import Head, Kind
from bireme.spec.model import Parameter


@pytest.mark.parametrize("nbytes", [0, 4 * 1023, 4 * 1025])
def test_an_answer_of_another_length_is_refused_unread(nbytes: int) -> None:
    layout = Layout([Parameter(name="w", shape=(10,))])
    (part,) = layout.slices(1)
    with socket.create_server(("127.0.0.1", 0)) as server:  # a Unix socket would offer shared memory
        near = socket.create_connection(server.getsockname(), timeout=10.0)
        far, _ = server.accept()
    with near, far:
        memory = TrainerMemory(layout, [Span(0, 1)], is_shared=False)
        exchange = Exchange([Link(near, part)], memory, Identity(1, 1, 1))
        far.sendall(Head(Kind.SLICE, job=1, view=1, nbytes=nbytes).pack())
        with pytest.raises(FrameError, match=f"a slice of {nbytes} bytes came, 4096 were due"):
            exchange.pull_round(0)
        exchange.close()
