"""Merge the user's `patch:` into finished objects, by the rules of kubectl's strategic merge. No I/O.

Maps are merged key by key, and a null removes a key. Of the lists that Kubernetes merges, items that agree in their key
(a container's name, a mount's path) are merged, others are added, and `$patch: delete` removes one. Any other list is
replaced. Arguments are never changed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from bireme.core.errors import SpecError

LIST_KEYS = {
    "containers": "name",
    "env": "name",
    "hostAliases": "ip",
    "imagePullSecrets": "name",
    "initContainers": "name",
    "ports": "name",
    "topologySpreadConstraints": "topologyKey",
    "volumeMounts": "mountPath",
    "volumes": "name",
}
DIRECTIVE = "$patch"


def merge(base: Any, patch: Any, at: str = "") -> Any:
    """Merge a patch into a value; `at` is the key that holds both."""
    if isinstance(base, Mapping) and isinstance(patch, Mapping):
        merged = {key: value for key, value in base.items() if patch.get(key, value) is not None}
        for key, value in patch.items():
            if value is not None:
                merged[key] = merge(merged.get(key), value, key)
        return merged
    if isinstance(base, list) and isinstance(patch, list) and at in LIST_KEYS:
        return _merge_items(base, patch, LIST_KEYS[at], at)
    return without_nulls(patch)


def without_nulls(value: Any) -> Any:
    """A patch without a value to merge it into: drop its nulls."""
    if isinstance(value, Mapping):
        return {k: without_nulls(v) for k, v in value.items() if v is not None}
    return [without_nulls(v) for v in value] if isinstance(value, list) else value


def _merge_items(base: Sequence[Any], patch: Sequence[Any], key: str, at: str) -> list[Any]:
    merged = {item.get(key): item for item in base}
    for item in patch:
        if not isinstance(item, Mapping) or key not in item:
            raise SpecError(
                f"kubernetes.patch: every item of `{at}` needs a `{key}`",
                why="items are merged by it",
                fix=f"add `{key}`",
            )
        if item.get(DIRECTIVE) == "delete":
            merged.pop(item[key], None)
        else:
            merged[item[key]] = merge(merged.get(item[key]), item)
    return list(merged.values())
