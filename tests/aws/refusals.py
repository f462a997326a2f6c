"""Every refusal that the double can answer, read from its source: code, text, and where it stands.

Texts are put together as far as the source says; what it fills in at run time is an `x`.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

DOUBLE = Path(__file__).parent / "double"
_BY_POSITION = {"ApiError": (0, 1), "_issue": (0, 1)}
_FIXED_CODE = {"invalid": "ValidationError", "violation": "DependencyViolation"}
_MISSING = {"need": (3, "The x 'x' does not exist"), "_find": (3, "The ID 'x' does not exist")}
_MISSING |= {"_describe": (4, "The ID 'x' does not exist")}
"""Functions that are given a code, and the text that they answer with."""
Function = ast.FunctionDef | ast.Module


class Refusal(NamedTuple):
    """One answer that is an error."""

    code: str
    text: str
    place: str


def refusals() -> list[Refusal]:
    """All of them."""
    found = [each for path in sorted(DOUBLE.glob("*.py")) for each in _of_file(path)]
    return sorted({(each.code, each.text): each for each in found}.values())


def _of_file(path: Path) -> Iterator[Refusal]:
    tree = ast.parse(path.read_text(encoding="utf-8"))
    functions: list[Function] = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)]
    for function in [tree, *functions]:
        for node in _own_nodes(function):
            place = f"{path.name}:{getattr(node, 'lineno', 0)}"
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
                yield from _of_call(node, node.func.id, function, place)
            if isinstance(node, ast.keyword) and node.arg == "exists" and isinstance(node.value, ast.Tuple):
                code, text = (_text(part, function) for part in node.value.elts)
                yield Refusal(code, text, f"{path.name}:{node.value.lineno}")


def _own_nodes(function: Function) -> Iterator[ast.AST]:
    """What is in a function, but not in another within it."""
    left: list[ast.AST] = list(ast.iter_child_nodes(function))
    while left:
        node = left.pop()
        yield node
        if not isinstance(node, ast.FunctionDef):
            left += ast.iter_child_nodes(node)


def _of_call(call: ast.Call, name: str, function: Function, place: str) -> Iterator[Refusal]:
    if name in _BY_POSITION and len(call.args) > 1:
        code, text = (_text(call.args[i], function) for i in _BY_POSITION[name])
        if code != "x":
            yield Refusal(code, text, place)
    elif name in _FIXED_CODE:
        yield Refusal(_FIXED_CODE[name], _text(call.args[0], function), place)
    elif name in _MISSING and len(call.args) > _MISSING[name][0]:
        at, text = _MISSING[name]
        yield Refusal(_text(call.args[at], function), text, place)


def _text(node: ast.AST, function: Function) -> str:
    """The text of an expression; a variable is what the function puts into it."""
    match node:
        case ast.Constant(value=str(value)):
            return value
        case ast.JoinedStr(values=values):
            return "".join(_text(part, function) for part in values)
        case ast.BinOp(left=left, right=right):
            return _text(left, function) + _text(right, function)
        case ast.Name(id=name):
            return _variable(name, function)
        case ast.FormattedValue(value=ast.Name(id=name)):
            return _variable(name, function) if name == "text" else "x"
    return "x"


def _variable(name: str, function: Function) -> str:
    parts = []
    for node in sorted(_own_nodes(function), key=lambda each: getattr(each, "lineno", 0)):
        targets = (
            node.targets if isinstance(node, ast.Assign) else [node.target] if isinstance(node, ast.AugAssign) else []
        )
        if any(isinstance(target, ast.Name) and target.id == name for target in targets):
            parts.append(_text(node.value, function))  # type: ignore[attr-defined]
    return "".join(parts) or "x"


def _is_added(node: ast.AST) -> bool:
    return isinstance(node, ast.AugAssign)
