"""One request to a job's coordinator: connect, send a message, return the status that comes back."""

from __future__ import annotations

from bireme.job.coordination import messages as m
from bireme.job.status import JobStatus
from bireme.ps.client.carriers import connect

ASK_TIMEOUT_S = 2.0


def ask(address: m.Address, message: m.Message) -> JobStatus:
    """Send the coordinator one message and return the status it answers with."""
    sock = connect(address.host, address.ports[0], timeout_s=0.0, what="the coordinator")
    with sock:
        sock.settimeout(ASK_TIMEOUT_S)
        m.send(sock, message)
        reply = m.expect(sock)
    if not isinstance(reply, m.Status):
        raise AssertionError(f"expected Status, got {type(reply).__name__}: this is a bug")
    return reply.status
