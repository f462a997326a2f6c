"""The table of situations: the rows of situations.toml, and the functions that they name.

A row's *look* is a function with `@look` or `@look_in`: it searches the evidence, with the row's pattern, and returns a
match for each case. The row's sentences may use the named groups of the pattern, what the look computes, and the names
of `words.py:vocabulary`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from importlib import resources
from typing import Literal

import msgspec

from bireme.diagnose.evidence import Evidence, Json, image_of
from bireme.diagnose.words import sentence

Values = Mapping[str, str]


class DiagnosisRule(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One way to recognise a situation, and the answer of `why` then."""

    look: str
    pattern: str = ""
    but: str = r"(?!)"
    """A pattern that must not be there as well."""
    errors: tuple[str, ...] = ()
    where: Literal["", "local", "kubernetes"] = ""
    cause: str
    advice: str


class Situation(DiagnosisRule, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A row of the table."""

    id: str
    title: str
    signs: str
    """How it is recognised, for the page."""
    priority: int
    """The lower, the earlier it should be solved."""
    kind: Literal["alone", "cause", "consequence", "calm"] = "cause"
    """A consequence is reported only for pods that no cause explains; calm only if there is nothing else."""
    also: tuple[DiagnosisRule, ...] = ()


class Chapter(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Situations that belong together, under a heading of the page."""

    title: str
    situation: tuple[Situation, ...]


@cache
def chapters() -> tuple[Chapter, ...]:
    text = (resources.files("bireme.diagnose") / "situations.toml").read_bytes()
    return msgspec.toml.decode(text, type=dict[str, tuple[Chapter, ...]])["chapter"]


@cache
def situations() -> tuple[Situation, ...]:
    """All rows, in the order in which they should be solved."""
    return tuple(sorted((row for each in chapters() for row in each.situation), key=lambda row: row.priority))


@dataclass(frozen=True, slots=True)
class Match:
    """One case of a situation: the pods that it explains, and values for the sentences."""

    values: Values = field(default_factory=dict)
    pods: tuple[Json, ...] = ()
    about: tuple[str, ...] | None = None
    """What it explains, if that is not just the pods."""


Look = Callable[[Evidence, DiagnosisRule], Iterable[Match]]
PodText = Callable[[Evidence, Json], str]
LOOKS: dict[str, Look] = {}


def look(function: Look) -> Look:
    """Let rows of the table name this function."""
    LOOKS[function.__name__] = function
    return function


def look_in(text_of: PodText) -> PodText:
    """Let rows look for their pattern in a text about each pod; equal cases, of one image, are one match."""

    def find(evidence: Evidence, rule: DiagnosisRule) -> Iterator[Match]:
        def key(pod: Json) -> Values | None:
            text = text_of(evidence, pod)
            match = re.search(rule.pattern, text, re.IGNORECASE)
            is_so = match and not re.search(rule.but, text, re.IGNORECASE)
            return {"image": image_of(pod), **groups(match)} if match and is_so else None

        return pods_by(evidence, key)

    LOOKS[text_of.__name__] = find
    return text_of


def pods_by(evidence: Evidence, key: Callable[[Json], Values | None]) -> Iterator[Match]:
    """A match for the pods with the same values; pods without values are left out."""
    cases: dict[tuple[tuple[str, str], ...], list[Json]] = {}
    for pod in evidence.troubled:
        values = key(pod)
        if values is not None:
            cases.setdefault(tuple(values.items()), []).append(pod)
    for items, pods in cases.items():
        yield Match(dict(items), tuple(pods))


def groups(match: re.Match[str], limit: int = 300) -> dict[str, str]:
    """The named groups of a match, each made fit for a sentence."""
    return {name: sentence(text or "", limit) for name, text in match.groupdict().items()}
