"""Mistakes of a parsed file, field by field: the line, the key, the expected value and a suggestion.

A struct defines what is valid; all mistakes are collected and reported together.
"""

from __future__ import annotations

import ast
import difflib
import functools
import inspect
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from io import StringIO
from itertools import pairwise
from pathlib import Path
from typing import Any, get_args, get_origin, get_type_hints

import msgspec

from bireme.core.errors import SpecError


@dataclass(frozen=True, slots=True)
class Mistake:
    """One mistake and its line; line 0 if it is not from the file."""

    line: int
    text: str
    why: str = ""
    fix: str = ""


def read_yaml(text: str, name: str) -> Any:
    from ruamel.yaml import YAML
    from ruamel.yaml.error import YAMLError

    try:
        return YAML(typ="rt", pure=True).load(StringIO(text))
    except ValueError as e:
        raise SpecError(f"{name}: not valid YAML: a value that is not what it looks like: {e}") from e
    except YAMLError as e:
        mark = getattr(e, "problem_mark", None)
        line = mark.line + 1 if mark else 1
        problem = str(getattr(e, "problem", None) or str(e).splitlines()[0]).rstrip()
        fix = "check the indentation and quotes around that line"
        raise SpecError(f"{name}:{line}: not valid YAML: {problem}", fix=fix) from e


def plain(value: Any) -> Any:
    """Strip the YAML reader's styles and anchors: only dicts, lists, strings and numbers remain."""
    if isinstance(value, Mapping):
        return {plain(k): plain(v) for k, v in value.items()}
    if isinstance(value, list):
        return [plain(v) for v in value]
    for kind in (bool, int, float, str):
        if isinstance(value, kind):
            return kind(value)
    return value


@functools.cache
def meanings(struct: type[msgspec.Struct]) -> dict[str, str]:
    """What each key is for: the text below its declaration, or the first line about what it holds.

    Python drops such texts, so they are read from the source; where it is not installed, there are none.
    """
    found = {}
    for name, hint in get_type_hints(struct, include_extras=True).items():
        is_section = isinstance(hint, type) and issubclass(hint, msgspec.Struct)
        found[name] = (inspect.getdoc(hint) or "") if is_section else _described(hint)
    for base in reversed(struct.__mro__):
        try:
            declared: Any = ast.parse(inspect.getsource(base)).body[0]
        except (OSError, TypeError):
            continue
        for field, text in pairwise(declared.body):
            match field, text:
                case ast.AnnAssign(target=ast.Name(id=name)), ast.Expr(value=ast.Constant(value=str(written))):
                    found[name] = " ".join(written.split())
    return found


def _described(hint: Any) -> str:
    return next((meta.description for meta in getattr(hint, "__metadata__", ()) if meta.description), "")


def find_mistakes(
    struct: type[msgspec.Struct], value: Any, path: str = "", line: int = 1, *, meant: Mapping[str, str] | None = None
) -> list[Mistake]:
    """Compare a parsed mapping with a struct, field by field; `meant` has hints for unknown keys, by full name."""
    if not isinstance(value, Mapping):
        where = f"`{path}`" if path else "the file"
        fix = _for_empty(struct, path) if path and value is None else ""
        given = "nothing" if value is None else "a list" if isinstance(value, list) else repr(value)
        return [Mistake(line, f"{where} must hold keys and values, not {given}", fix=fix)]
    hints = get_type_hints(struct, include_extras=True)
    lines = lines_of(value, line)
    found = [Mistake(lines[key], unknown_key(path, key, hints, meant or {})) for key in value if key not in hints]
    for info in msgspec.structs.fields(struct):
        full = f"{path}.{info.name}" if path else info.name
        if info.name not in value:
            if info.required:
                about = _expected(hints[info.name], struct, info.name)
                found.append(Mistake(line, f"`{full}` is missing: {about}" if about else f"`{full}` is missing"))
            continue
        found += _check_field(hints[info.name], value[info.name], full, lines[info.name], struct, meant)
    return found


def _for_empty(struct: type[msgspec.Struct], path: str) -> str:
    """The fix for a section whose keys are all commented out."""
    if needed := [f"`{path}.{info.name}`" for info in msgspec.structs.fields(struct) if info.required]:
        return f"set {' and '.join(needed)}"
    return f"remove the line `{path.rpartition('.')[2]}:`, or set one of its keys"


def _check_field(
    hint: Any,
    value: Any,
    path: str,
    line: int,
    struct: Any = msgspec.Struct,
    meant: Mapping[str, str] | None = None,
) -> list[Mistake]:
    inner = get_args(hint)[0] if get_origin(hint) is not None and hasattr(hint, "__metadata__") else hint
    if isinstance(inner, type) and issubclass(inner, msgspec.Struct):
        return find_mistakes(inner, value, path, line, meant=meant)
    parts = _parts_of(inner, value, path, line)
    if wrong := [mistake for part in parts for mistake in _check_field(*part)]:
        return wrong
    value = plain(value)  # valid items may still be too few or too many
    try:
        msgspec.convert(value, hint)
    except msgspec.ValidationError as e:
        problem = str(e).split(" - at `")[0].split(", got `")[0].replace(" | null`", "`")
        if "regex" in problem:
            problem = _expected(hint, struct, path.rpartition(".")[2])
        if "enum value" in problem:
            problem = "expected one of the known values"
        problem = problem.replace("Expected", "expected", 1)
        text = f"{problem}, got {value!r}{_did_you_mean(value, inner)}"
        return [Mistake(line, f"`{path}`: {text}")]
    return []


_KINDS = {
    "int": "a whole number",
    "float": "a number",
    "str": "text",
    "bool": "true or false",
    "object": "keys and values",
}
_SIZES = {"array": "item", "object": "key", "str": "character"}
_BOUNDS = {">=": "at least", "<=": "at most", ">": "more than", "<": "less than"}
_EXPECTED = re.compile(r"(`[^`]+`: )expected `(\w+)`( of length)?(?: (>=|<=|>|<) (\S+?))?(, got .*)", re.DOTALL)


def in_plain_terms(text: str) -> str:
    """The same without the names of types."""
    found = _EXPECTED.fullmatch(text)
    if found is None:
        return text
    key, kind, is_length, sign, number, got = found.groups()
    wanted = "a list" if kind == "array" else _KINDS.get(kind, kind)
    if is_length and kind in _SIZES:
        wanted = f"{_BOUNDS[sign]} {number} {_SIZES[kind]}{'' if number == '1' else 's'}"
    elif sign:
        wanted += f", {_BOUNDS[sign]} {number}"
    names = {", got None": ", got nothing", ", got True": ", got true", ", got False": ", got false"}
    names |= {", got []": ", got an empty list", ", got {}": ", got nothing"}
    hint = " (put it in quotes)" if kind == "str" and re.match(r", got [\d.-]+$", got) else ""
    return f"{key}expected {wanted}{names.get(got, got)}{hint}"


def _parts_of(hint: Any, value: Any, path: str, line: int) -> list[tuple[Any, Any, str, int]]:
    """The items of a list, and the keys and values of a mapping with a described type, each with its own line."""
    of = get_args(hint)
    if get_origin(hint) is tuple and isinstance(value, list):
        lines = item_lines(value, line)
        return [(of[0], item, f"{path}[{i}]", lines[i]) for i, item in enumerate(value)]
    if get_origin(hint) is dict and isinstance(value, Mapping) and hasattr(of[1], "__metadata__"):
        at = lines_of(value, line)
        keys = [(of[0], key, path, at[key]) for key in value]
        return keys + [(of[1], held, f"{path}.{key}", at[key]) for key, held in value.items()]
    return []


def _did_you_mean(value: Any, hint: Any) -> str:
    # The options of a Literal, or of an optional Literal.
    options = [option for choice in get_args(hint) for option in (choice, *get_args(choice))]
    choices = [option for option in options if isinstance(option, str)]
    close = difflib.get_close_matches(str(value), choices, n=1)
    return f" (did you mean `{close[0]}`?)" if close else f" (one of: {', '.join(choices)})" if choices else ""


def unknown_key(path: str, key: Any, known: Iterable[str], meant: Mapping[str, str]) -> str:
    full = f"{path}.{key}" if path else str(key)
    if full in meant:
        return f"`{full}` is not a known key; {meant[full]}"
    close = difflib.get_close_matches(str(key), list(known), n=1)
    hint = f"did you mean `{close[0]}`?" if close else f"known keys: {', '.join(known)}"
    return f"`{full}` is not a known key; {hint}"


def _expected(hint: Any, struct: type[msgspec.Struct], key: str) -> str:
    text = (_described(hint) or meanings(struct).get(key, "")).split(" Left out:")[0].rstrip(".")
    return text if text[1:2].isupper() else text[:1].lower() + text[1:]  # "ARN of …" stays as it is


def lines_of(value: Any, default: int) -> dict[Any, int]:
    marks = getattr(value, "lc", None)
    if marks is None:
        return dict.fromkeys(value, default)
    # A key from a merge (`<<: *other`) is defined elsewhere: use the mapping's own line.
    return {key: marks.key(key)[0] + 1 if key in (marks.data or {}) else default for key in value}


def item_lines(value: list[Any], default: int) -> list[int]:
    marks = getattr(value, "lc", None)
    # A list that is not from a file, or was assembled from a file's values, has no lines of its own.
    return [marks.item(i)[0] + 1 if marks and marks.data else default for i in range(len(value))]


def differs(section: Any, default: msgspec.Struct, *keys: str) -> bool:
    return isinstance(section, Mapping) and any(
        section.get(k, getattr(default, k)) != getattr(default, k) for k in keys
    )


def refusal(path: Path, mistakes: list[Mistake], reference: str = "docs/reference/job.md") -> SpecError:
    """One error for all mistakes; a single mistake keeps its own why and fix."""
    is_single = len(mistakes) == 1 and bool(mistakes[0].fix)
    lines = [
        (f"{path}:{m.line}: " if m.line else "") + m.text + (f"; {m.fix}" if m.fix and not is_single else "")
        for m in sorted(mistakes, key=lambda m: m.line)
    ]
    why, fix = (mistakes[0].why, mistakes[0].fix) if is_single else ("", f"{reference} lists every key")
    return SpecError("\n".join(lines), why=why, fix=fix)
