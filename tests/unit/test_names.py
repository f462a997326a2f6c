"""Names of tests are short enough to be read and searched for."""

from __future__ import annotations

import ast
from pathlib import Path

TESTS = Path(__file__).parents[1]
MOST = 60
"""Characters in the name of a test, with `test_`."""


def test_names_of_tests_have_at_most_60_characters() -> None:
    long = [
        f"{path.relative_to(TESTS)}: {node.name}"
        for path in sorted(TESTS.rglob("*.py"))
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.FunctionDef) and node.name.startswith("test_") and len(node.name) > MOST
    ]
    assert not long, "\n".join(long)
