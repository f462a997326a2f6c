"""Rooms: every package says what it is for, and its `__all__` lists exactly the modules that others use."""

from __future__ import annotations

import ast
import functools
from collections import defaultdict
from pathlib import Path

import pytest

import bireme

PACKAGES = {"bireme": Path(bireme.__file__).parent, "tools.sim": Path(__file__).parents[2] / "tools" / "sim"}
"""The product, and the simulator, which runs the product's machines and has rooms too."""
MODULES = {
    ".".join((package, *path.relative_to(root).with_suffix("").parts)).removesuffix(".__init__"): path
    for package, root in PACKAGES.items()
    for path in root.rglob("*.py")
    if not {"quick_start", "scripts"} & set(path.parts)
}
ROOMS = sorted(name for name, path in MODULES.items() if path.name == "__init__.py" and name not in PACKAGES)
MOST = 13
CROWDED: dict[str, int] = {}
"""Rooms that are still too large; they may shrink."""


def imported(path: Path) -> set[str]:
    """The modules of both packages that a file imports, at any place in it."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and node.module:
            full = {f"{node.module}.{name.name}" for name in node.names} & set(MODULES)
            found |= full or {node.module}
        elif isinstance(node, ast.Import):
            found |= {name.name for name in node.names}
    return found & set(MODULES)


@functools.cache  # not at import: each worker that collects tests would read the whole package
def used_from_outside() -> dict[str, set[str]]:
    used: dict[str, set[str]] = defaultdict(set)
    for user, path in MODULES.items():
        for module in imported(path) - set(ROOMS):
            room, _, name = module.rpartition(".")
            if not f"{user}.".startswith(f"{room}."):
                used[room].add(name)
    return used


@pytest.mark.parametrize("room", ROOMS)
def test_a_room_lists_the_modules_that_others_use(room: str) -> None:
    tree = ast.parse(MODULES[room].read_text(encoding="utf-8"))
    own = {name.name for node in tree.body if isinstance(node, ast.ImportFrom) for name in node.names}
    own |= {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}
    listed: list[str] = next((ast.literal_eval(node.value) for node in tree.body if isinstance(node, ast.Assign)), [])
    assert [name for name in listed if name not in own] == sorted(used_from_outside()[room])


@pytest.mark.parametrize("room", ROOMS)
def test_a_room_says_what_it_is_for(room: str) -> None:
    assert ast.get_docstring(ast.parse(MODULES[room].read_text(encoding="utf-8")))


@pytest.mark.parametrize("room", ROOMS)
def test_a_room_holds_about_a_dozen_files(room: str) -> None:
    files = [path for path in MODULES[room].parent.glob("*.py") if path.name != "__init__.py"]
    assert len(files) <= CROWDED.get(room, MOST)
