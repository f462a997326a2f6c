"""Checks of single lines: samples (`label<TAB>text`), dictionaries and label lists."""

from __future__ import annotations

import re

from bireme.core.text import shortened
from bireme.data.scan import Finding, LineCheck

_INTEGER = re.compile(r"[+-]?[0-9]{1,18}")


def looks_labelled(line: str) -> bool:
    """Whether a line is in `label<TAB>text` form."""
    label, tab, _ = line.partition("\t")
    return bool(tab) and _INTEGER.fullmatch(label) is not None


def check_samples(labels: frozenset[int] | None) -> LineCheck:
    """Check lines of samples; `labels` are the legal ones, or None where any integer is."""

    def check(number: int, line: str) -> Finding | None:
        if not line.strip():
            return ("error", "the line is empty", "remove it")
        label, tab, text = line.partition("\t")
        if not tab:
            return ("error", "no tab between label and text", "write the label, a tab, then the text")
        if _INTEGER.fullmatch(label) is None:
            return ("error", f"label {shortened(label, 40)!r} is not an integer", "write an integer before the tab")
        if labels is not None and int(label) not in labels:
            known = ", ".join(map(str, sorted(labels)[:10]))
            return (
                "error",
                f"label {label} is not in labels.list ({known})",
                "correct the label or add it there",
            )
        if not text.strip():
            return ("warning", "no text after the label", "remove the line if that is not meant")
        return None

    return check


def check_dictionary() -> LineCheck:
    """Check lines of dict.txt; a word's id is its line, so a word must not come twice."""
    seen: dict[str, int] = {}

    def check(number: int, line: str) -> Finding | None:
        word, tab, count = line.partition("\t")
        if not word or (tab and _INTEGER.fullmatch(count) is None):
            return ("error", f"{shortened(line, 40)!r} is not a word, a tab and a count", "write word<TAB>count")
        if word in seen:
            what = f"word {shortened(word, 40)!r} was already on line {seen[word]}"
            return ("error", what, "remove one of the two; all later ids then change")
        seen[word] = number
        if number == 1 and word != "unk":
            what = f"the first word is {shortened(word, 40)!r}, not unk"
            return ("warning", what, "put unk first: words that are not in the dictionary get id 0")
        return None

    return check


def check_label_list(labels: set[int]) -> LineCheck:
    """Check lines of labels.list (`name<TAB>id`) and collect the ids into `labels`."""

    def check(number: int, line: str) -> Finding | None:
        if not line.strip():
            return None
        fields = line.split()
        if len(fields) != 2 or _INTEGER.fullmatch(fields[1]) is None:
            return ("error", f"{shortened(line, 40)!r} is not a name, a tab and an id", "write name<TAB>id")
        label = int(fields[1])
        if label in labels:
            return ("error", f"id {label} is given to two labels", "give each label an id of its own")
        labels.add(label)
        return None

    return check
