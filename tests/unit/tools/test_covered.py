from __future__ import annotations

from typing import Any

import pytest
from tools.covered import lacking, room_of, table


@pytest.mark.parametrize(
    ("file", "room"),
    [
        ("src/bireme/ps/wire/codec.py", "ps/wire"),
        ("src/bireme/ps/tree.py", "ps"),
        ("src/bireme/scale/model.py", "scale"),
        ("src/bireme/__main__.py", "bireme"),
        ("tests/unit/ps/wire/test_codec.py", "tests/unit/ps/wire"),
        ("tests/property/test_tree.py", "tests/property"),
        ("tests/conftest.py", "tests"),
    ],
)
def test_a_file_belongs_to_its_room(file: str, room: str) -> None:
    assert room_of(file) == room


def measured(lines: int, missed: list[int]) -> dict[str, Any]:
    sums = {"num_statements": lines, "missing_lines": len(missed), "num_branches": 0, "missing_branches": 0}
    return {"summary": sums, "missing_lines": missed, "missing_branches": [[1, 2]]}


def test_rooms_add_up_and_the_package_is_apart_from_its_tests() -> None:
    files = {
        "src/bireme/ps/wire/a.py": measured(6, [1]),
        "src/bireme/ps/wire/b.py": measured(4, []),
        "tests/unit/x.py": measured(5, []),
    }
    assert [line.split() for line in table(files)[1:]] == [
        ["ps/wire", "10", "1", "0", "0", "90.0%"],
        ["tests/unit", "5", "0", "0", "0", "100.0%"],
        ["the", "package", "10", "1", "0", "0", "90.0%"],
        ["the", "tests", "5", "0", "0", "0", "100.0%"],
    ]


def test_what_is_not_reached_is_named_with_its_line() -> None:
    files = {"tools/covered.py": measured(5, [3]), "tools/kube/cli.py": measured(5, [3])}
    shown = list(lacking(files, "tools/covered"))
    assert shown[0] == "tools/covered.py:3: from __future__ import annotations"
    assert [line.split(":")[1] for line in shown[1:]] == ["1 → 2"]
