"""What this machine can do at most, beside what we do: `./dev bench limits [--reps N] [--json]`.

Bare loops with no protocol around them: copying memory, a stream through loopback TCP and through a Unix
socket, reading memory that another process wrote, waking another process, and summing rows as a lane's
kernel does. Beside them stand the dense figures of the last `./dev bench peers`, as shares of a limit. Those are of
another run, so a share is a hint: it is marked as such, and left out where the machine is another one.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing as mp
import os
import socket
import statistics
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from functools import lru_cache, partial
from multiprocessing.shared_memory import SharedMemory
from typing import Any

import numpy as np
from engines.workloads import DENSE_SIZES
from machine import RESULTS, machine_facts, report, summarise
from numpy.typing import NDArray

from bireme.core.errors import BiremeError, UsageError
from bireme.core.processes import die_with

COPY_NBYTES = 400_000_000
STREAM_NBYTES = 1_000_000_000
CHUNK = 4 << 20
PINGS = 2000
KERNEL_ARRAYS = 4
"""Two trainers' rows, the parameters, and the parameters after the round."""
Floats = NDArray[np.float32]
SPAWN = mp.get_context("spawn")


def memcpy_gb_s() -> float:
    """Bytes copied per second, counted once (a copy reads and writes each)."""
    source = np.ones(COPY_NBYTES // 4, dtype=np.float32)
    target = np.zeros_like(source)
    return COPY_NBYTES / _seconds(lambda: np.copyto(target, source)) / 1e9


def _seconds(work: Callable[[], object]) -> float:
    begun = time.perf_counter()
    work()
    return time.perf_counter() - begun


def stream_gb_s(family: socket.AddressFamily, connections: int) -> float:
    """Bytes per second that other processes send and we receive, over all connections together."""
    pairs = [_pair(family) for _ in range(connections)]
    with ExitStack() as cleanup:
        for ours, theirs in pairs:
            cleanup.enter_context(ours)
            cleanup.enter_context(_helper(_send, theirs))
            theirs.close()
            ours.recv(1)  # it is ready
        receivers = [threading.Thread(target=_receive, args=(ours,)) for ours, _ in pairs]

        def both() -> None:
            for receiver in receivers:
                receiver.start()
            for receiver in receivers:
                receiver.join()

        return connections * STREAM_NBYTES / _seconds(both) / 1e9


def _pair(family: socket.AddressFamily) -> tuple[socket.socket, socket.socket]:
    if family == socket.AF_UNIX:
        return socket.socketpair()
    with socket.create_server(("127.0.0.1", 0)) as listening:
        theirs = socket.create_connection(listening.getsockname())
        return listening.accept()[0], theirs


def _send(parent: int, sock: socket.socket) -> None:
    die_with(parent)
    payload = memoryview(bytes(CHUNK))
    sock.sendall(b"r")
    sock.recv(1)  # go
    for begin in range(0, STREAM_NBYTES, CHUNK):
        sock.sendall(payload[: STREAM_NBYTES - begin])
    sock.recv(1)


def _receive(sock: socket.socket) -> None:
    buffer = memoryview(bytearray(CHUNK))
    sock.sendall(b"g")
    left = STREAM_NBYTES
    while left:
        left -= sock.recv_into(buffer[: min(left, CHUNK)])
    sock.sendall(b"e")


@contextmanager
def _helper(target: Callable[..., None], *arguments: object) -> Iterator[None]:
    """Another process, fresh rather than forked, that is gone afterwards whatever happens."""
    process = SPAWN.Process(target=target, args=(os.getpid(), *arguments), daemon=True)
    process.start()
    try:
        yield
    finally:
        process.kill()
        process.join()


def shared_read_gb_s() -> float:
    """Bytes per second that another process reads from memory that we wrote."""
    memory = SharedMemory(create=True, size=COPY_NBYTES)
    ours, theirs = SPAWN.Pipe()
    try:
        np.ndarray(COPY_NBYTES // 4, dtype=np.float32, buffer=memory.buf)[:] = 1.0
        with _helper(_read_shared, memory.name, theirs):
            seconds = float(ours.recv())
    finally:
        memory.close()
        memory.unlink()
    return COPY_NBYTES / seconds / 1e9


def _read_shared(parent: int, name: str, answer: Any) -> None:
    die_with(parent)
    memory = SharedMemory(name=name)
    rows = np.ndarray((COPY_NBYTES // 1_000_000, 250_000), dtype=np.float32, buffer=memory.buf)
    # A megabyte that stays in the cache: what is timed is the reading.
    small = np.empty(rows.shape[1], dtype=np.float32)

    _walk(rows, small)  # maps the pages
    answer.send(_seconds(partial(_walk, rows, small)))
    # Nothing may look into the memory when it is closed.
    del rows
    memory.close()


def _walk(rows: Floats, small: Floats) -> None:
    for row in rows:
        np.copyto(small, row)


def wake_up_us() -> float:
    """Microseconds until another process that waits on a pipe has woken; half of the median round trip."""
    ours, theirs = SPAWN.Pipe()
    rounds = []
    with _helper(_echo, theirs):
        for _ in range(PINGS):
            rounds.append(_seconds(lambda: (os.write(ours.fileno(), b"p"), os.read(ours.fileno(), 1))))
    return statistics.median(rounds) / 2 * 1e6


def _echo(parent: int, pipe: Any) -> None:
    die_with(parent)
    while os.read(pipe.fileno(), 1):
        os.write(pipe.fileno(), b"p")


def kernel_gb_s(threads: int) -> float:
    """Bytes per second that a bare sum-and-descend kernel moves: two rows and w read, w' written."""
    kernel = _compiled()
    length = COPY_NBYTES // 4 // KERNEL_ARRAYS
    parts = [[np.ones(length // threads, dtype=np.float32) for _ in range(KERNEL_ARRAYS)] for _ in range(threads)]
    for part in parts:
        kernel(*part)  # maps the pages, and compiles
    workers = [threading.Thread(target=kernel, args=part) for part in parts]

    def all_parts() -> None:
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()

    return KERNEL_ARRAYS * 4 * (length // threads) * threads / _seconds(all_parts) / 1e9


@lru_cache(maxsize=1)
def _compiled() -> Callable[..., None]:
    import numba

    @numba.njit(nogil=True, fastmath=False)  # type: ignore[untyped-decorator]  # numba has no types
    def descend(first: Floats, second: Floats, w: Floats, w_next: Floats) -> None:
        for i in range(w.size):
            w_next[i] = w[i] - np.float32(1e-3) * (first[i] + second[i])

    compiled: Callable[..., None] = descend
    return compiled


TCP_TWO = "loopback TCP, two connections, GB/s"
KERNEL_TWO = "sum kernel, two threads, GB/s"
LIMITS: dict[str, Callable[[], float]] = {
    "memcpy, GB/s": memcpy_gb_s,
    "loopback TCP, one connection, GB/s": lambda: stream_gb_s(socket.AF_INET, 1),
    TCP_TWO: lambda: stream_gb_s(socket.AF_INET, 2),
    "Unix socket, GB/s": lambda: stream_gb_s(socket.AF_UNIX, 1),
    "shared memory, read by another process, GB/s": shared_read_gb_s,
    "sum kernel, one thread, GB/s": lambda: kernel_gb_s(1),
    KERNEL_TWO: lambda: kernel_gb_s(2),
    "wake-up of another process, µs": wake_up_us,
}


SAME = ("cpu", "cores", "kernel")
"""What two machines must have in common for their figures to be divided."""


def shares(
    figures: Mapping[str, Mapping[str, Any]], peers: Mapping[str, Any], facts: Mapping[str, Any]
) -> dict[str, dict[str, Any]]:
    """How near our dense figures come: what goes through sockets to TCP's limit, what is shared to the kernel's.

    Each says when it was measured; there is no share where that was on another machine.
    """
    found = {}
    for name, entry in peers.get("figures", {}).items():
        size = DENSE_SIZES.get(name.rpartition("-")[0])
        if size is None or not entry["ours"]:
            continue
        there = entry.get("machine", peers.get("machine", {}))
        is_same = all(there.get(key) == facts.get(key) for key in SAME)
        is_shared = entry["carrier"] == "shm"
        moved = KERNEL_ARRAYS * 4 * size if is_shared else entry["costs"]["ours"]["wire_bytes_per_step"]
        against = KERNEL_TWO if is_shared else TCP_TWO
        rate = moved * entry["ours"] / 1e9
        share = round(rate / figures[against]["median"], 3) if is_same else None
        measured = entry.get("measured", {}).get("date") or there.get("date", "unknown")
        figure = {"carrier": entry["carrier"], "gb_s": round(rate, 3), "limit": against, "share": share}
        found[name] = {**figure, "measured": measured}
    return found


def describe(near: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """Our figures in words, with when they are from and what a share of two runs is worth."""
    if not near:
        return ["no figures of ours yet: `./dev bench peers`"]
    lines = ["ours, from an earlier run of `./dev bench peers` (bench/results/peers.json):"]
    for name, figure in near.items():
        share = f"  ~{figure['share']:.0%} of {figure['limit']}" if figure["share"] is not None else ""
        lines.append(f"{name:<18} {figure['measured']:<10}  {figure['carrier']:<5} {figure['gb_s']:>8.2f} GB/s{share}")
    if any(figure["share"] is not None for figure in near.values()):
        lines.append(
            "~ divides figures of two runs: whatever else the machine did in either is in it, so it may pass 100 %"
        )
    else:
        lines.append("measured on another machine: no shares of these limits")
    return lines


def last_peers() -> dict[str, Any]:
    """The last result of `./dev bench peers`, if there is one."""
    file = RESULTS / "peers.json"
    return json.loads(file.read_text(encoding="utf-8")) if file.exists() else {}


def measure(reps: int) -> dict[str, dict[str, Any]]:
    """Every limit in turn, again and again, so that a busy moment does not fall on one alone."""
    taken: dict[str, list[float]] = {label: [] for label in LIMITS}
    for _ in range(reps):
        for label, limit in LIMITS.items():
            taken[label].append(limit())
    return {label: summarise(samples) for label, samples in taken.items()}


def parse(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """What the command line asks for."""
    parser = argparse.ArgumentParser(
        prog="./dev bench limits", description="What this machine can do at most. Writes bench/results/limits.json."
    )
    parser.add_argument("--reps", type=int, default=5, help="repetitions of each measurement (default 5)")
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")
    given = parser.parse_args(arguments)
    if given.reps < 1:
        raise UsageError(f"--reps {given.reps}: at least one repetition is needed")
    return given


def main() -> None:
    """Parse, measure, print."""
    try:
        given = parse()
        facts = machine_facts()
        figures = measure(given.reps)
        near = shares(figures, last_peers(), facts)
        report("limits", {**facts, "ours": near}, figures, as_json=given.json)
    except BiremeError as e:
        print("\n".join(e.lines()), file=sys.stderr)
        sys.exit(e.exit_code)
    except KeyboardInterrupt:
        sys.exit(130)
    if given.json:
        return
    print("", *describe(near), sep="\n")


if __name__ == "__main__":
    main()
