"""Durations, lists and long values in messages: read from flags, written for people."""

from __future__ import annotations

import re
from collections.abc import Sequence

_UNITS = {"ns": 1e-9, "us": 1e-6, "µs": 1e-6, "ms": 1e-3, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
LISTED_CHANGES = 6  # changes that a refusal lists; more would hide the first


def parse_duration(text: str, units: str) -> float:
    """Seconds of `90s` or `0.5 ms`; `units` are those accepted, such as "ms s m", a leading space accepts none too.

    A ValueError has no message: what to write instead depends on the flag.
    """
    match = re.fullmatch(r"(\d+(?:\.\d+)?) ?([a-zµ]*)", text.strip().lower())
    if match is None or match[2] not in units.split(" "):
        raise ValueError
    return float(match[1]) * _UNITS.get(match[2], 1.0)


def duration(seconds: float, *, is_exact: bool = False) -> str:
    """`45 s`, `12 min`, `3 h`, `5 days`; exact ones are `12 min 05 s` and `3 h 20 min`."""
    whole = round(seconds)
    if is_exact and 100 <= whole < 48 * 3600:
        in_hours = whole >= 3600
        large, small = divmod(whole // 60 if in_hours else whole, 60)
        return f"{large} {'h' if in_hours else 'min'} {small:02d} {'min' if in_hours else 's'}"
    for limit, factor, unit in ((120, 1, "s"), (7200, 60, "min"), (172800, 3600, "h")):
        if seconds < limit:
            return f"{seconds / factor:.0f} {unit}"
    return f"{seconds / 86400:.0f} days"


def first_of(items: Sequence[object], most: int, separator: str = ", ") -> str:
    """`a, b and 4 more`, or with another separator `a; b; and 4 more`: a message lists no more than `most`."""
    shown = separator.join(str(item) for item in items[:most])
    if len(items) <= most:
        return shown
    return f"{shown}{' ' if separator == ', ' else separator}and {len(items) - most} more"


def shortened(text: str, limit: int) -> str:
    """A text of at most `limit` characters, with an ellipsis where it was cut."""
    return text if len(text) <= limit else text[: limit - 1] + "…"
