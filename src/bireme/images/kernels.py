"""Machine code for an image: every kernel compiled once, for the processor that pods will have.

Numba looks its cache up by path, source and processor, so it is filled by running this module in the image's own root:
`python -m bireme.images.kernels`. Its files are the same every time but for addresses of Python objects in listings for
people; these are blanked. On another processor Numba finds no entry and compiles at the first start, as anywhere else.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import get_args

_ADDRESS = re.compile(rb" at 0x[0-9a-f]+>")


def kernel_sources(package: Path) -> list[Path]:
    """The sources of compiled code: files with kernels, the optimizers' formulas, and the one that compiles them."""
    sources = {path for path in package.rglob("*.py") if "@jit" in path.read_text("utf-8")}
    return sorted(sources | {package / "ps" / "optim" / "methods.py", package / "images" / "kernels.py"})


def processor(cpu: str) -> str:
    """A key for the processor of the machine code: `cpu`, or this machine's model and features."""
    if cpu != "host":
        return cpu
    lines = Path("/proc/cpuinfo").read_text("utf-8").splitlines()
    fields = {line.partition(":")[0].strip(): line.partition(":")[2].strip() for line in lines}
    return "; ".join(fields.get(name, "") for name in ("vendor_id", "cpu family", "model", "flags", "Features"))


def cpu_environment(cpu: str) -> dict[str, str]:
    """Variables that make Numba compile for a processor, and look up code that was compiled for it."""
    # Without the second one Numba would add this machine's own features.
    return {} if cpu == "host" else {"NUMBA_CPU_NAME": cpu, "NUMBA_CPU_FEATURES": ""}


def blank_addresses(cache: Path) -> None:
    for path in sorted(cache.rglob("*.nb[ci]")):
        path.write_bytes(blank(path.read_bytes()))


def blank(data: bytes) -> bytes:
    """Replace addresses by zeros of the same length, as lengths are part of the format."""
    return _ADDRESS.sub(lambda match: b" at 0x" + b"0" * (len(match[0]) - 7) + b">", data)


def warm_all() -> None:
    """Compile the kernels of every optimizer, dense and sparse, of every coding, and of the bag of words."""
    import numpy as np

    from bireme.programs import bow
    from bireme.ps.optim import methods, optimizers
    from bireme.ps.sparse import row_sums, table
    from bireme.ps.wire import codec
    from bireme.spec.model import Coding, Optimizer, Parameter, Rows

    row_sums.warm()
    for coding in get_args(Coding):
        codec.warm(coding)
    for method in methods.METHODS:
        optimizers.warm(Optimizer(method=method))
    for method in optimizers.ROW_METHODS:
        # So little momentum that the clock of lazy momentum starts anew at once; rows that are soon forgotten.
        momentum = 1e-7 if methods.METHODS[method].rows == "catch up" else 0.0
        rows = Parameter(name="warm", shape=(1000, 2), momentum=momentum, l2=0.1, rows=Rows(evict_after=1))
        table.warm(rows, Optimizer(method=method))
        one = table.Table(rows, Optimizer(method=method), 0)
        for round_ in range(4):
            one.apply(np.array([round_], np.uint64), np.zeros((1, 2), np.float32), 0.0, round_)
    bow.warm()


if __name__ == "__main__":
    warm_all()
