"""A processor's costs for the parts of a round, read from the file that `./dev bench costs` measures.

All costs are in seconds, per float, byte, frame or round. A file may come from another machine, which
it names; printed results name it too.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import get_args

import msgspec

from bireme.core.errors import UsageError
from bireme.ps.optim.methods import METHODS
from bireme.spec.model import Coding

HERE = Path(__file__).resolve()
PLACES = (HERE.parent / "costs.json", HERE.parents[3] / "bench" / "results" / "costs.json")
"""The measured file: beside this one when installed, with the other benches' results in a clone."""
MEASURE = "measure them with `./dev bench costs`, or name a file with --costs"


@dataclass(frozen=True, slots=True)
class Costs:
    """Seconds of one core; `spread` is a share of the computing time. The default is no cost."""

    kernel: Mapping[str, float] = field(default_factory=dict)
    """The update of one float, by method, with two rows to sum."""
    kernel_row: float = 0.0
    """One float of each further row."""
    kernel_start: float = 0.0
    """Closing a round, however small the slice is."""
    encode: Mapping[Coding, float] = field(default_factory=dict)
    decode: Mapping[Coding, float] = field(default_factory=dict)
    """One float of a gradient, from and to float32."""
    send: float = 0.0
    receive: float = 0.0
    """One byte through a socket."""
    frame: float = 0.0
    """One end's work for a frame besides its payload."""
    wake: float = 0.0
    """The wake-up of a waiting thread."""
    spread: float = 0.0
    """Standard deviation of a batch's computing time, as a share of it."""
    source: str = "nothing measured"

    def kernel_of(self, method: str) -> float:
        if self.kernel and method not in self.kernel:
            raise UsageError(f"costs: {method} was not measured on {self.source}", fix=MEASURE)
        return self.kernel.get(method, 0.0)


class _Figure(msgspec.Struct, frozen=True):
    value: float


class _Machine(msgspec.Struct, frozen=True):
    cpu: str
    date: str


class _File(msgspec.Struct, frozen=True):
    bench: str
    machine: _Machine
    figures: dict[str, _Figure]


def load_costs(path: Path | None = None) -> Costs:
    """Read a file of measured costs; without a path, the one that comes with bireme."""
    file = path or next((place for place in PLACES if place.is_file()), None)
    if file is None:
        raise UsageError("there is no file of measured costs", fix=MEASURE)
    try:
        result = msgspec.json.decode(file.read_bytes(), type=_File)
    except OSError as e:
        raise UsageError(f"costs: {file} cannot be read: {e.strerror or e}", fix=MEASURE) from e
    except msgspec.MsgspecError as e:
        raise UsageError(f"costs: {file} is not a file of measured costs: {e}", fix=MEASURE) from e
    if result.bench != "costs":
        raise UsageError(f"costs: {file} is the result of another bench, {result.bench}", fix=MEASURE)
    return _costs_of(result, file)


def _costs_of(result: _File, path: Path) -> Costs:
    def figure(name: str) -> float:
        if name not in result.figures:
            raise UsageError(f"costs: {path} lacks {name!r}", fix=MEASURE)
        value = result.figures[name].value
        if not 0 <= value < float("inf"):
            raise UsageError(f"costs: {name!r} in {path} is {value:g}, and time does not run backwards", fix=MEASURE)
        return value

    # An optimizer that is newer than the file was not measured; a job with it is refused.
    measured = [method for method in METHODS if f"kernel {method}, ns per float" in result.figures] or [*METHODS]
    kernel = {method: figure(f"kernel {method}, ns per float") * 1e-9 for method in measured}
    codings = [coding for coding in get_args(Coding) if coding != "float32"]
    return Costs(
        kernel=kernel,
        kernel_row=figure("kernel, ns per float and further row") * 1e-9,
        kernel_start=figure("kernel start, µs") * 1e-6,
        encode={coding: figure(f"encode {coding}, ns per float") * 1e-9 for coding in codings},
        decode={coding: figure(f"decode {coding}, ns per float") * 1e-9 for coding in codings},
        send=figure("send, ns per byte") * 1e-9,
        receive=figure("receive, ns per byte") * 1e-9,
        frame=figure("frame, µs") * 1e-6,
        wake=figure("wake-up, µs") * 1e-6,
        spread=figure("spread of computing"),
        source=f"{result.machine.cpu}, {result.machine.date}",
    )
