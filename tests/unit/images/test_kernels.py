from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

import bireme
from bireme.images import kernels
from bireme.ps.optim.kernels import kernel_of
from bireme.ps.optim.methods import LAZY_MOMENTUM, METHODS

PACKAGE = Path(bireme.__file__).parent


def test_addresses_become_zeros_of_the_same_length() -> None:
    data = b"x CPUDispatcher(<function mix64 at 0x7f01a2b3c4d0>) y at 0xabc"
    blanked = kernels.blank(data)
    assert blanked == b"x CPUDispatcher(<function mix64 at 0x000000000000>) y at 0xabc"
    assert len(blanked) == len(data)


def test_all_files_with_kernels_are_known() -> None:
    names = {path.relative_to(PACKAGE).as_posix() for path in kernels.kernel_sources(PACKAGE)}
    assert {
        "ps/optim/kernels.py",
        "ps/optim/methods.py",
        "ps/sparse/table_kernels.py",
        "ps/sparse/row_sums.py",
        "programs/bow.py",
        "images/kernels.py",
    } <= names


def all_kernels() -> list[Any]:
    found = []
    for path in kernels.kernel_sources(PACKAGE):
        name = path.relative_to(PACKAGE).with_suffix("").as_posix().replace("/", ".")
        module = importlib.import_module(f"bireme.{name}")
        found += [v for v in vars(module).values() if hasattr(v, "py_func") and v.__module__ == module.__name__]
    formulas = [*METHODS.values(), LAZY_MOMENTUM]
    return found + [kernel_of(method) for method in formulas]


def called_by(kernel: Any) -> list[Any]:
    names = kernel.py_func.__code__.co_names
    return [v for n in names if hasattr(v := kernel.py_func.__globals__.get(n), "py_func")]


def test_warming_compiles_every_kernel_there_is() -> None:
    kernels.warm_all()
    # What a kernel calls is part of its machine code.
    warm, todo = set(), [kernel for kernel in all_kernels() if kernel.signatures]
    while todo:
        kernel = todo.pop()
        if kernel not in warm:
            warm.add(kernel)
            todo += called_by(kernel)
    assert [kernel.__name__ for kernel in all_kernels() if kernel not in warm] == []
    assert len(warm) > 50


def test_this_processor_has_a_name_of_what_it_can_do() -> None:
    assert kernels.processor("x86-64-v3") == "x86-64-v3"
    assert len(kernels.processor("host")) > 100
    assert kernels.cpu_environment("host") == {}
    assert kernels.cpu_environment("generic") == {"NUMBA_CPU_NAME": "generic", "NUMBA_CPU_FEATURES": ""}
