"""The reference of a job's status, from its structs and their fields' docstrings: python docs/generate.py calls it."""

from __future__ import annotations

import ast
import inspect
import types
from typing import Any, Union, get_args, get_origin, get_type_hints

import msgspec

from bireme.job import status

STRUCTS: tuple[type[msgspec.Struct], ...] = (
    status.JobStatus,
    status.TrainerStatus,
    status.PserverStatus,
    status.PassSummary,
)
_WORDS = {
    str: "text", int: "whole number", float: "number", bool: "true or false", type(None): "null",
    msgspec.UnsetType: "absent",
}  # fmt: skip
_INTRO = """# The status of a job

`bireme status JOB --json` prints one object. It has the name, state, output directory and passes of the job and, under
`status`, the object on this page: what the coordinator reports. The same object is in `status.json` in the output
directory when the job has ended, and on a cluster in the annotation `bireme.dev/status` of the job's first Job.
From Python it is [`run.status().job`](../tutorial/python.md); a key that is a keyword of Python has another name there.

Readers ignore keys that they do not know, and take defaults for missing ones, so that versions may differ.
"""


def page(notice: str) -> str:
    """The whole page."""
    return "\n".join([notice, _INTRO, *(_section(struct) for struct in STRUCTS)])


def _section(struct: type[msgspec.Struct]) -> str:
    hints, meanings = get_type_hints(struct), meanings_of(struct)
    rows = ["| key | value | meaning |", "|---|---|---|"]
    for field in msgspec.structs.fields(struct):
        key = f"`{field.encode_name}`" + (f" (`{field.name}`)" if field.encode_name != field.name else "")
        rows.append(f"| {key} | {_value(hints[field.name])} | {meanings.get(field.name, '')} |")
    return f"## {struct.__name__}\n\n{inspect.getdoc(struct)}\n\n" + "\n".join(rows) + "\n"


def _value(hint: Any) -> str:
    kind, inner = get_origin(hint), get_args(hint)
    if kind in (Union, types.UnionType):
        return " or ".join(_value(choice) for choice in sorted(inner, key=lambda each: each in list(_WORDS)[-2:]))
    if kind is tuple:
        return f"list of {_value(inner[0])}{'s' if inner[0] in _WORDS else ''}"
    if kind is dict:
        return f"names, each with a {_value(inner[1])}"
    return _WORDS.get(hint) or f"[{hint.__name__}](#{hint.__name__.lower()})"


def meanings_of(struct: type[msgspec.Struct]) -> dict[str, str]:
    """The docstrings of a struct's fields: the texts that follow them in the source."""
    (tree,) = ast.parse(inspect.getsource(struct)).body
    assert isinstance(tree, ast.ClassDef)
    return {
        field.target.id: inspect.cleandoc(text.value.value)
        for field, text in zip(tree.body, tree.body[1:], strict=False)
        if isinstance(field, ast.AnnAssign)
        and isinstance(field.target, ast.Name)
        and isinstance(text, ast.Expr)
        and isinstance(text.value, ast.Constant)
        and isinstance(text.value.value, str)
    }
