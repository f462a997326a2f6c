"""Objects as YAML, for people and for kubectl. No I/O."""

from __future__ import annotations

from collections.abc import Iterable
from io import StringIO
from typing import Any

from bireme.kube.submit.submission import Object


def as_yaml(objects: Iterable[Object]) -> str:
    """Several documents; texts of several lines are written as blocks."""
    from ruamel.yaml import YAML

    yaml = YAML(pure=True)
    yaml.default_flow_style = False
    yaml.width = 4096
    yaml.indent(mapping=2, sequence=4, offset=2)
    out = StringIO()
    for made in objects:
        out.write("---\n")
        yaml.dump(_blocks(made), out)
    return out.getvalue()


def _blocks(value: Any) -> Any:
    from ruamel.yaml.scalarstring import LiteralScalarString

    if isinstance(value, dict):
        return {key: _blocks(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [_blocks(inner) for inner in value]
    return LiteralScalarString(value) if isinstance(value, str) and "\n" in value else value
