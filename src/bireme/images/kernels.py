"""Machine code for an image: every kernel compiled once, for the processor that pods will have.

Numba looks its cache up by path, source and processor, so it is filled by running bireme in the image's own root.
Its files are the same every time but for addresses of Python objects in listings for people; these are blanked.
On another processor Numba finds no entry and compiles the kernels at the first start, as anywhere else.
"""

from __future__ import annotations

import re
from pathlib import Path

from bireme.images.contents import HOME, KERNELS
from bireme.images.inside import run_inside

_ADDRESS = re.compile(rb" at 0x[0-9a-f]+>")


def kernel_sources(package: Path) -> list[Path]:
    """The sources of compiled code: files with kernels, the optimizers' formulas, and the one that compiles them."""
    sources = [path for path in sorted(package.rglob("*.py")) if "@jit" in path.read_text("utf-8")]
    return [*sources, package / "ps" / "optim" / "methods.py", package / "images" / "warming.py"]


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


def compile_kernels(trees: list[Path], tree: Path, cpu: str) -> None:
    """Fill the image's kernel cache, in a tree on top of its other layers."""
    environment = {
        "PATH": "/usr/bin:/bin",
        "HOME": "/tmp",
        "NUMBA_CACHE_DIR": KERNELS,
        "PYTHONHASHSEED": "0",
        "PYTHONDONTWRITEBYTECODE": "1",
        **cpu_environment(cpu),
    }
    run_inside(trees, tree, [f"/{HOME}/bin/python3", "-m", "bireme.images.warming"], environment)
    for path in sorted((tree / KERNELS.lstrip("/")).rglob("*.nb[ci]")):
        path.write_bytes(blank(path.read_bytes()))


def blank(data: bytes) -> bytes:
    """Replace addresses by zeros of the same length, as lengths are part of the format."""
    return _ADDRESS.sub(lambda match: b" at 0x" + b"0" * (len(match[0]) - 7) + b">", data)
