"""What the package imports is what pyproject.toml declares, and its version stands in one place."""

from __future__ import annotations

import ast
import re
import sys
import tomllib
from pathlib import Path
from typing import Any

from hatchling.metadata.core import ProjectMetadata
from hatchling.plugin.manager import PluginManager

import bireme

ROOT = Path(__file__).parents[2]
PROJECT: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
OTHER_NAMES = {"ruamel": "ruamel.yaml", "paddle": "paddlepaddle"}
"""Distributions that are not called as what is imported from them."""
FOR_USERS = ("paddle", "kube", "tls", "aws")


def imported() -> set[str]:
    """The distributions that some file of the package imports, at any place in it."""
    names: set[str] = set()
    for path in Path(bireme.__file__).parent.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Import):
                names |= {alias.name.partition(".")[0] for alias in node.names}
            elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
                names.add(node.module.partition(".")[0])
    return {OTHER_NAMES.get(name, name) for name in names - sys.stdlib_module_names - {"bireme"}}


def declared() -> set[str]:
    extras = [line for extra in FOR_USERS for line in PROJECT["optional-dependencies"][extra]]
    return {re.split(r"[<>=!~;\[ ]", line, maxsplit=1)[0] for line in [*PROJECT["dependencies"], *extras]}


def test_all_that_is_imported_is_declared_and_no_more() -> None:
    assert imported() == declared()


def test_the_version_stands_in_the_package_alone() -> None:
    assert "version" not in PROJECT
    assert ProjectMetadata(str(ROOT), PluginManager()).version == bireme.__version__
