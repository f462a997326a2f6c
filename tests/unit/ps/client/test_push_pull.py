from __future__ import annotations

import socket

import pytest

from bireme.core.errors import FrameError, NetworkError
from bireme.ps.client.carriers import open_carrier
from bireme.ps.client.memory import TrainerMemory
from bireme.ps.client.push_pull import Exchange, Identity, Link
from bireme.ps.lanes.server import listen
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


def test_an_attach_answered_with_another_kind_is_refused() -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        ours.settimeout(10.0)
        theirs.sendall(Head(Kind.SLICE).pack())
        with pytest.raises(FrameError, match="answered ATTACH with SLICE"):
            open_carrier(ours, Head(Kind.ATTACH))


def test_a_port_beyond_the_last_one_is_named() -> None:
    with pytest.raises(NetworkError, match="port 65536 does not exist: ports end at 65535"):
        listen("127.0.0.1", 65536)
