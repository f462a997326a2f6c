"""The one door into the test cluster: TCP from ports of the host's loopback to addresses inside.

A socket stays in the network namespace in which it was made. So the listening sockets are made on the host and
handed down to this process, which runs inside and connects to where each of them leads.
Run as `forward.py FD=ADDRESS:PORT …`; standard library only.
"""

from __future__ import annotations

import contextlib
import select
import socket
import sys
import threading

CHUNK = 1 << 18


def pump(source: socket.socket, target: socket.socket) -> None:
    """Copy bytes one way until the source ends, then say so to the target."""
    buffer = memoryview(bytearray(CHUNK))
    with contextlib.suppress(OSError):
        while count := source.recv_into(buffer):
            target.sendall(buffer[:count])
    with contextlib.suppress(OSError):
        target.shutdown(socket.SHUT_WR)


def carry(caller: socket.socket, address: tuple[str, int]) -> None:
    """Join one caller to the address; a refused connection closes the caller's as well."""
    with caller:
        try:
            inner = socket.create_connection(address, timeout=5)
        except OSError:
            return
        with inner:
            inner.settimeout(None)
            for end in (caller, inner):
                end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            back = threading.Thread(target=pump, args=(inner, caller), daemon=True)
            back.start()
            pump(caller, inner)
            back.join()


def main() -> None:
    """Accept for ever."""
    routes: dict[socket.socket, tuple[str, int]] = {}
    for argument in sys.argv[1:]:
        number, _, target = argument.partition("=")
        host, _, port = target.rpartition(":")
        routes[socket.socket(fileno=int(number))] = (host, int(port))
    while True:
        ready, _, _ = select.select(list(routes), [], [])
        for listener in ready:
            caller, _ = listener.accept()
            caller.setblocking(True)
            threading.Thread(target=carry, args=(caller, routes[listener]), daemon=True).start()


if __name__ == "__main__":
    main()
