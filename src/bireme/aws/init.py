"""A new cluster.yaml: every key with its explanation, defaults commented out.

Keys, explanations and examples come from the structs, so a new key needs no change here.
"""

from __future__ import annotations

import json
import os
import re
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_type_hints

import msgspec

from bireme.core.errors import OutputExistsError
from bireme.core.files import storage_errors, sync_directory
from bireme.spec.cluster import CIDR, ClusterFile
from bireme.spec.mistakes import meanings

HEAD = """\
# A Kubernetes cluster on AWS, for `bireme cluster plan`, `up`, `status` and `down`.
# `#key: value` is a key at its default, or an example where the default is none: remove the `#` to set it.
"""
SHOWN = {
    "kubernetes",
    "workers.servers.count",
    "workers.servers.types",
    "workers.trainers.count",
    "workers.trainers.types",
    "workers.trainers.capacity",
    "storage.claim",
    "network.services",
}
"""Defaults that are written out: the keys that are changed most, and one key of each section, as none may be empty."""
_EXAMPLE_REGION = "us-west-2"
_PLAIN = re.compile(rf"[A-Za-z][A-Za-z0-9._/-]*|{CIDR}")
_NOT_TEXT = {"null", "true", "false", "yes", "no", "on", "off", "y", "n"}


def render(file: ClusterFile) -> str:
    """The text of a cluster.yaml that reads back as this file."""
    return HEAD + "\n".join(_section(file, "", file.region)) + "\n"


def _section(struct: msgspec.Struct, path: str, region: str) -> Iterator[str]:
    indent = "  " * path.count(".")
    hints = get_type_hints(type(struct), include_extras=True)
    for field in msgspec.structs.fields(type(struct)):
        if not path:
            yield ""
        for line in textwrap.wrap(meanings(type(struct))[field.name], 112 - len(indent), break_on_hyphens=False):
            yield f"{indent}# {line}"
        value, key = getattr(struct, field.name), path + field.name
        if isinstance(value, msgspec.Struct):
            yield f"{indent}{field.name}:"
            yield from _section(value, f"{key}.", region)
        elif field.required or key in SHOWN or value != _default(field):
            yield f"{indent}{field.name}: {flow(value)}"
        else:
            shown = value or next(meta.examples[0] for meta in hints[field.name].__metadata__ if meta.examples)
            yield f"{indent}#{field.name}: {flow(shown).replace(_EXAMPLE_REGION, region)}"


def _default(field: msgspec.structs.FieldInfo) -> Any:
    # msgspec keeps an empty mapping as the function that makes one.
    return field.default if field.default is not msgspec.NODEFAULT else {}


def flow(value: Any) -> str:
    """A value as YAML in one line."""
    if isinstance(value, dict):
        return "{" + ", ".join(f"{flow(key)}: {flow(held)}" for key, held in value.items()) + "}"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(map(flow, value)) + "]"
    if isinstance(value, str) and _PLAIN.fullmatch(value) and value.lower() not in _NOT_TEXT:
        return value
    return json.dumps(value, ensure_ascii=False)


def write_new(path: Path, text: str) -> None:
    """Create a file with mode 0600 and fsync it; refuse an existing one."""
    with storage_errors(str(path)):
        try:
            fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        except FileExistsError as e:
            raise OutputExistsError(f"{path} exists", fix="name another file with `-f`") from e
        try:
            with os.fdopen(fd, "wb") as f:
                f.write(text.encode())
                f.flush()
                os.fsync(f.fileno())
        except BaseException:
            path.unlink(missing_ok=True)  # a partial file would make the next attempt fail with `exists`
            raise
        sync_directory(path.parent)
