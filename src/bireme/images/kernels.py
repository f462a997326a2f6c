"""Machine code for an image: every kernel compiled once, for the processor that pods will have.

Numba looks its cache up by path, source and processor, so it is filled by running bireme in the image's own root.
What it stores is the same every time but for addresses of Python objects in listings for people; these are
blanked. On another processor nothing is found and kernels are compiled at the first start, as anywhere else.
"""

from __future__ import annotations

import re
from pathlib import Path

from bireme.images.contents import HOME, KERNELS
from bireme.images.inside import run_inside

_ADDRESS = re.compile(rb" at 0x[0-9a-f]+>")


def kernel_sources(package: Path) -> list[Path]:
    """The files that compiled code comes from: those with kernels, and the one that compiles them."""
    found = [path for path in sorted(package.rglob("*.py")) if "@jit" in path.read_text("utf-8")]
    return [*found, package / "images" / "warming.py"]


def processor(cpu: str) -> str:
    """A name for what machine code made here runs on; the one given, or this machine's with all it can do."""
    if cpu != "host":
        return cpu
    lines = Path("/proc/cpuinfo").read_text("utf-8").splitlines()
    told = {line.partition(":")[0].strip(): line.partition(":")[2].strip() for line in lines}
    return "; ".join(told.get(name, "") for name in ("vendor_id", "cpu family", "model", "flags", "Features"))


def cpu_environment(cpu: str) -> dict[str, str]:
    """What makes Numba compile for a processor, and look for code that was compiled for it."""
    # Without the second one it would add whatever this machine can do besides.
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
    return _ADDRESS.sub(lambda found: b" at 0x" + b"0" * (len(found[0]) - 7) + b">", data)
