"""Run in a pod that is not of a job: connects to the job's pservers, and prints how often it was accepted.

Only the standard library, as it is sent to the pod as text. The first line of its standard input has as JSON the
`hosts`, the `port`, what to `try`, how many `times`, and the bytes or certificates to do it with.
"""

from __future__ import annotations

import base64
import concurrent.futures
import contextlib
import json
import os
import socket
import ssl
import sys
import tempfile
from pathlib import Path
from typing import Any

PATIENCE_S = 20.0


def read_all(sock: socket.socket) -> bytes:
    """What comes back until the other side hangs up."""
    got = b""
    with contextlib.suppress(OSError):
        while more := sock.recv(4096):
            got += more
    return got


def throw(address: tuple[str, int], data: bytes) -> bytes:
    """Send bytes as they are; returns what was answered beyond TLS alerts and greetings."""
    with socket.create_connection(address, timeout=PATIENCE_S) as sock:
        with contextlib.suppress(OSError):
            sock.sendall(data)
            sock.shutdown(socket.SHUT_WR)
        return read_all(sock)


def greet(address: tuple[str, int], certificates: dict[str, str]) -> bytes:
    """Shake hands, with these certificates or with none; returns what a member of the job would hear."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    if certificates:
        with tempfile.TemporaryDirectory() as folder:
            for name, text in certificates.items():
                Path(folder, name).write_text(text)
            context.load_cert_chain(f"{folder}/tls.crt", f"{folder}/tls.key")
    with socket.create_connection(address, timeout=PATIENCE_S) as plain:
        try:
            with context.wrap_socket(plain) as sock:
                return read_all(sock)
        except OSError:
            return b""


def attempt(request: dict[str, Any], turn: int) -> bool:
    """One connection; whether it was taken for a member of the job, or got through at all."""
    address = (request["hosts"][turn % len(request["hosts"])], request["port"])
    if request["try"] == "greet":
        return bool(greet(address, request["certificates"]))
    data = base64.b64decode(request["data"]) if request["data"] else os.urandom(200)
    answer = throw(address, data)
    # In plain, a stranger may hear an alert (21) or the beginning of a handshake (22), which proves nothing to it.
    return bool(answer) and answer[0] not in (21, 22)


def main() -> None:
    """Connect as often as requested, sixteen at a time."""
    request = json.loads(sys.stdin.readline())
    reached = let_in = 0
    with concurrent.futures.ThreadPoolExecutor(16) as pool:
        for turn in concurrent.futures.as_completed(pool.submit(attempt, request, n) for n in range(request["times"])):
            try:
                let_in += turn.result()
                reached += 1
            except OSError:
                continue
    print(json.dumps({"reached": reached, "let_in": let_in}))


if __name__ == "__main__":
    main()
