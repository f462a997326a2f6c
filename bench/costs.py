"""What the parts of a round cost one core, for `bireme simulate`: `./dev bench costs [--reps N] [--json]`.

Short loops over the very code that a job runs: kernels, codings, frames, payloads through loopback TCP. All but the
wake-up are counted in processor time of the thread that does the work, so that neighbours on a busy machine
cost little. Repetitions go over all costs in turn; a cost is the lower quartile of its repetitions.
On loopback the sender's system call also does what a network card and the receiving kernel would do.
"""

from __future__ import annotations

import argparse
import socket
import statistics
import sys
import threading
import time
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from functools import lru_cache, partial
from typing import Any, get_args

import numpy as np
from limits import _pair, wake_up_us
from machine import machine_facts, report, summarise
from numpy.typing import NDArray

from bireme.core.errors import BiremeError, UsageError
from bireme.ps.optim.methods import METHODS
from bireme.ps.optim.optimizers import Segment, SliceOptimizer
from bireme.ps.tree import Span, reduction
from bireme.ps.wire import codec, frame_io
from bireme.ps.wire.frames import RECORD_NBYTES, Head, Kind, Record, pack_records, unpack_records
from bireme.spec.model import Coding, Optimizer, Parameter

FLOATS = 1_000_000
"""In a slice: much more than caches hold, once there are a few rows of it."""
FEW, MANY = 2, 34
"""Rows in the inbox; the difference gives what one row costs."""
PAYLOAD = 32 << 20
FRAMES = 200
TINY = 1024
PIECES, PIECE_ROUNDS, PIECE_FLOATS = 10, 150, 1 << 16
"""Equal pieces of computing, long enough that what disturbs for a millisecond does not show."""
TOP_K = 0.01
Floats = NDArray[np.float32]


def _seconds(work: Callable[[], object]) -> float:
    """Processor time of this thread."""
    begun = time.thread_time()
    work()
    return time.thread_time() - begun


def _close(part: Slice, times: int) -> None:
    for _ in range(times):
        part.close()


class Slice:
    """A lane's slice with its inbox, ready to close rounds."""

    def __init__(self, method: str, floats: int, rows: int) -> None:
        parameter = Parameter(name="w", shape=(floats,), momentum=0.9)
        self._optimizer = SliceOptimizer(Optimizer(method=method), [Segment(parameter, 0, floats)])
        self._rows = _inbox(floats)[:rows]
        self._root, steps = reduction(tuple(Span(b, b + 1) for b in range(rows)), rows)
        self._steps = np.array(steps, np.int32).reshape(-1, 2)
        self._w, self._next = np.ones(floats, np.float32), np.ones(floats, np.float32)
        self.close()  # maps the pages, and compiles

    def close(self) -> None:
        """One round."""
        self._optimizer.apply(self._rows, self._root, self._steps, self._w, self._next, 1e-3)


@lru_cache(maxsize=4)
def _inbox(floats: int) -> Floats:
    return np.full((MANY, floats), 1e-3, np.float32)


@lru_cache(maxsize=32)
def _slice(method: str, floats: int, rows: int) -> Slice:
    return Slice(method, floats, rows)


def kernel_row_ns() -> float:
    """One float of each further row in the sum."""
    few, many = (_seconds(_slice("momentum", FLOATS, rows).close) for rows in (FEW, MANY))
    return max(many - few, 0.0) / (MANY - FEW) / FLOATS * 1e9


def kernel_ns(method: str) -> float:
    """One float's update together with the sum of two rows."""
    return _seconds(_slice(method, FLOATS, FEW).close) / FLOATS * 1e9


def kernel_start_us() -> float:
    """Closing a round of next to nothing."""
    tiny = _slice("momentum", TINY, FEW)
    return _seconds(lambda: _close(tiny, FRAMES)) / FRAMES * 1e6


@lru_cache(maxsize=1)
def _gradient() -> Floats:
    return np.random.default_rng(0).standard_normal(FLOATS).astype(np.float32)


@lru_cache(maxsize=1)
def _residual() -> codec.Residual:
    return codec.Residual(FLOATS)


def encode_ns(coding: Coding) -> float:
    """One float of a gradient onto the wire."""
    if coding == "top_k":
        work: Callable[[], object] = partial(_residual().pick, _gradient(), int(TOP_K * FLOATS))
    else:
        assert coding != "float32"
        work = partial(codec.encode, coding, _gradient(), np.zeros(FLOATS, np.uint16))
    return _seconds(work) / FLOATS * 1e9


def decode_ns(coding: Coding) -> float:
    """One float of a slice from the wire."""
    target = np.zeros(FLOATS, np.float32)
    if coding == "top_k":
        positions = np.arange(0, FLOATS, round(1 / TOP_K), dtype=np.int64)
        picks = codec.Picks(positions, np.ones(len(positions), np.float32))
        work: Callable[[], object] = partial(codec.decode_picks, codec.encode_picks(picks, 0, FLOATS), target)
    else:
        assert coding != "float32"
        work = partial(codec.decode, coding, np.zeros(FLOATS, np.uint16), target)
    return _seconds(work) / FLOATS * 1e9


def payload_ns() -> tuple[float, float]:
    """One byte of a payload through TCP: what the sending and the receiving thread work for it."""
    ours, theirs = map(frame_io.tune, _pair(socket.AF_INET))
    given, taken = np.ones(PAYLOAD // 4, np.float32), np.zeros(PAYLOAD // 4, np.float32)
    sent: list[float] = []
    with ours, theirs:
        sender = threading.Thread(target=lambda: sent.append(_seconds(lambda: frame_io.send_all(theirs, [given]))))
        sender.start()
        received = _seconds(lambda: frame_io.receive_into(ours, taken))
        sender.join()
    return sent[0] / PAYLOAD * 1e9, received / PAYLOAD * 1e9


def frame_us() -> float:
    """One frame without a payload, made, sent, received and read; half of it is one end's."""
    ours, theirs = map(frame_io.tune, _pair(socket.AF_INET))

    def both_ends() -> None:
        for _ in range(FRAMES):
            packed = pack_records([Record(shard=0, is_last=False, samples=128)])
            frame_io.send(theirs, Head(Kind.PUSH, records=1), packed)
            head = frame_io.receive_head(ours)
            assert head is not None
            unpack_records(frame_io.receive_bytes(ours, RECORD_NBYTES), head.records)

    with ours, theirs:
        return _seconds(both_ends) / FRAMES / 2 * 1e6


def spread() -> float:
    """Standard deviation of the time of equal pieces of computing, as a share of their mean."""
    piece = _slice("adam", PIECE_FLOATS, FEW)
    times = [_seconds(lambda: _close(piece, PIECE_ROUNDS)) for _ in range(PIECES)]
    return statistics.stdev(times) / statistics.mean(times)


def costs() -> dict[str, Callable[[], float]]:
    """Every cost that one call measures, by the name that `bireme simulate` reads."""
    codings: list[Coding] = [coding for coding in get_args(Coding) if coding != "float32"]
    return {
        **{f"kernel {method}, ns per float": partial(kernel_ns, method) for method in METHODS},
        "kernel, ns per float and further row": kernel_row_ns,
        "kernel start, µs": kernel_start_us,
        **{f"encode {coding}, ns per float": partial(encode_ns, coding) for coding in codings},
        **{f"decode {coding}, ns per float": partial(decode_ns, coding) for coding in codings},
        "frame, µs": frame_us,
        "wake-up, µs": wake_up_us,
        "spread of computing": spread,
    }


def measure(reps: int) -> dict[str, list[float]]:
    """Everything in turn, again and again, so that a busy moment does not fall on one cost alone."""
    taken: dict[str, list[float]] = {}
    for rep in range(reps + 1):
        found = {name: cost() for name, cost in costs().items()}
        found["send, ns per byte"], found["receive, ns per byte"] = payload_ns()
        for name, value in found.items() if rep else ():  # the first one compiles and maps memory
            taken.setdefault(name, []).append(value)
    return taken


def figures_of(taken: dict[str, list[float]]) -> dict[str, dict[str, Any]]:
    """Each cost, with the samples that it comes from."""
    return {name: {"value": round(quartile(samples), 4), **summarise(samples)} for name, samples in taken.items()}


def quartile(samples: Sequence[float]) -> float:
    """The lower quartile: the cost without disturbance."""
    return sorted(samples)[(len(samples) - 1) // 4]


def parse(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """What the command line asks for."""
    parser = argparse.ArgumentParser(prog="./dev bench costs", description="What the parts of a round cost.")
    parser.add_argument("--reps", type=int, default=8, help="repetitions of each measurement (default 8)")
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")
    given = parser.parse_args(arguments)
    if given.reps < 1:
        raise UsageError(f"--reps {given.reps}: at least one repetition is needed")
    return given


def main() -> None:
    """Parse, measure, print."""
    try:
        given = parse()
        facts = {**machine_facts(), "date": datetime.now(UTC).date().isoformat(), "reps": given.reps}
        report("costs", facts, figures_of(measure(given.reps)), as_json=given.json)
    except BiremeError as e:
        print("\n".join(e.lines()), file=sys.stderr)
        sys.exit(e.exit_code)
    except KeyboardInterrupt:
        sys.exit(130)


if __name__ == "__main__":
    main()
