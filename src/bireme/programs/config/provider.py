"""The names that data providers use, and a decorated provider.

A provider is a generator function that yields the samples of one file. The decorator only remembers
it together with its options; `source.py` runs it.
"""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from bireme.programs.columns import MAX_DIM, InputType, Kind
from bireme.programs.config.scripts import Complaint
from bireme.programs.config.values import checked, refuse, whole_number

_log = logging.getLogger(__name__)


class SequenceType:
    """Whether a slot holds one value, a sequence, or a sequence of sequences."""

    NO_SEQUENCE = 0
    SEQUENCE = 1
    SUB_SEQUENCE = 2


class CacheType:
    """Whether every pass yields the same samples."""

    NO_CACHE = 0
    CACHE_PASS_IN_MEM = 1


@dataclass(frozen=True)
class SlotType:
    """What a provider declares about one slot; the name comes from the network."""

    kind: Kind
    dim: int
    seq_type: int = SequenceType.NO_SEQUENCE

    def named(self, name: str) -> InputType:
        if self.seq_type == SequenceType.SUB_SEQUENCE:
            refuse(f"slot {name!r}: a sequence of sequences")
        is_sequence = self.seq_type == SequenceType.SEQUENCE
        if is_sequence and self.kind != "index":
            refuse(f"slot {name!r}: a sequence of {self.kind} vectors")
        return InputType(name=name, dim=self.dim, kind=self.kind, is_sequence=is_sequence)


@dataclass(frozen=True)
class Provider:
    """A provider function with its options."""

    process: Callable[..., Any]
    input_types: Any = None
    should_shuffle: bool | None = None
    is_cached: bool = False
    init_hook: Callable[..., Any] | None = None

    @property
    def where(self) -> str:
        code = getattr(self.process, "__code__", None)
        return f"{code.co_filename}:{code.co_firstlineno}" if code else repr(self.process)


class ProviderSettings:
    """The object that init_hook fills and that the provider is called with; it may hold anything."""

    def __init__(self, provider: Provider) -> None:
        self.input_types: Any = provider.input_types
        self.slots: Any = None
        self.logger = logging.getLogger("bireme.provider")


def input_order(settings: ProviderSettings, names: Sequence[str]) -> tuple[InputType, ...]:
    """Join the provider's types with the network's inputs: by name from a dict, by place from a list."""
    types = settings.slots if settings.input_types is None else settings.input_types
    if types is None:
        raise Complaint("the data provider does not say its input_types", fix="set them in init_hook")
    if isinstance(types, Mapping):
        if missing := [name for name in names if name not in types]:
            raise Complaint(f"input_types lacks {', '.join(missing)}")
        types = [types[name] for name in names]
    if not isinstance(types, list | tuple):
        types = [types]
    if len(types) != len(names):
        what = f"the data provider has {len(types)} input_types, but the network has {len(names)} inputs"
        raise Complaint(f"{what}: {', '.join(names)}")
    if bad := [item for item in types if not isinstance(item, SlotType)]:
        raise Complaint(f"input_types holds {bad[0]!r}, which is no type such as integer_value(2)")
    return tuple(slot.named(name) for slot, name in zip(types, names, strict=True))


def provider(input_types: Any = None, **options: Any) -> Callable[[Callable[..., Any]], Provider]:
    """Mark a function as data provider; options that only tune the original's pool are ignored."""
    if callable(input_types):
        raise Complaint("@provider needs brackets", fix="write @provider(input_types=...)")
    for name in ("calc_batch_size", "check_fail_continue"):
        if options.get(name):
            refuse(f"@provider({name}=...)")
    ignored = set(options) - {"should_shuffle", "cache", "init_hook", "calc_batch_size", "check", "pool_size"}
    if ignored:
        _log.debug("ignored provider options=%s", ",".join(sorted(ignored)))

    def decorate(process: Callable[..., Any]) -> Provider:
        return Provider(
            process=process,
            input_types=input_types,
            should_shuffle=_flag(options.get("should_shuffle")),
            is_cached=options.get("cache", CacheType.NO_CACHE) == CacheType.CACHE_PASS_IN_MEM,
            init_hook=options.get("init_hook"),
        )

    return decorate


def _flag(value: object) -> bool | None:
    if value is None or isinstance(value, bool):
        return value
    text = str(value).lower()
    if text in ("1", "t", "true", "on"):
        return True
    if text in ("0", "f", "false", "off"):
        return False
    raise Complaint(f"@provider(): should_shuffle must be True or False, not {value!r}")


def _slot(kind: Kind, default_seq: int, dim: int, seq_type: int | None = None) -> SlotType:
    result = whole_number(dim)
    if result is None or result > MAX_DIM:
        raise Complaint(f"a slot's dimension must be a whole number from 1 to {MAX_DIM}, not {dim!r}")
    return SlotType(kind, result, default_seq if seq_type is None else seq_type)


def _value_range(kind: Kind, default_seq: int, value_range: int, seq_type: int | None = None) -> SlotType:
    return _slot(kind, default_seq, value_range, seq_type)


def provider_words() -> dict[str, object]:
    """What `from paddle.trainer.PyDataProvider2 import *` brings: every input type by its names, old ones included."""
    stems: dict[str, Kind] = {
        "dense_vector": "dense",
        "sparse_binary_vector": "sparse_binary",
        "sparse_vector": "sparse_float",
        "sparse_float_vector": "sparse_float",
        "integer_value": "index",
    }
    types: dict[str, Callable[..., object]] = {}
    for stem, kind in stems.items():
        make = _value_range if kind == "index" else _slot
        for suffix, seq_type in (("", 0), ("_sequence", 1), ("_sub_sequence", 2)):
            types[stem + suffix] = functools.partial(make, kind, seq_type)
    old = {
        "integer_sequence": "integer_value_sequence",
        "dense_slot": "dense_vector",
        "dense_array": "dense_vector",
        "sparse_non_value_slot": "sparse_binary_vector",
        "sparse_value_slot": "sparse_vector",
        "index_slot": "integer_value",
    }
    types |= {name: types[new] for name, new in old.items()}
    words: dict[str, object] = {name: checked(name, make) for name, make in types.items()}
    return words | {"provider": provider, "CacheType": CacheType, "SequenceType": SequenceType}
