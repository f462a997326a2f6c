"""Bars as SVG, written by hand: one group for each work, one bar for each engine, lengths true within a group."""

from __future__ import annotations

from collections.abc import Mapping
from html import escape
from typing import Any

from engines.tables import short

WIDTH = 860
LEFT = 190
RIGHT = 150
BAR = 15
GAP = 5
GROUP_GAP = 34
TOP = 44
FONT = "font-family='system-ui, sans-serif'"
OURS_COLOUR = "#0b6e99"
PEER_COLOUR = "#b8c4cc"
INK = "#24313a"
PAPER = "#ffffff"


def draw(entries: Mapping[str, Any], caption: str, notes: Mapping[str, str]) -> str:
    """The whole picture; works without a figure of ours are drawn all the same, and notes go beside their names."""
    parts: list[str] = []
    y = TOP
    for name, entry in entries.items():
        group, height = _group(name, entry, y, notes.get(name, ""))
        parts += group
        y += height + GROUP_GAP
    total = y + 14
    size = f"viewBox='0 0 {WIDTH} {total}' width='{WIDTH}' height='{total}'"
    head = f"<svg xmlns='http://www.w3.org/2000/svg' {size} {FONT}>"
    title = "bireme beside other engines: 2 trainers, 2 servers, one machine (longer is faster)"
    return "\n".join(
        [
            head,
            f"<title>{escape(title)}</title>",
            f"<rect width='{WIDTH}' height='{total}' fill='{PAPER}'/>",
            _text(16, 22, title, size=15, weight="600"),
            *parts,
            _text(16, total - 10, caption, size=11),
            "</svg>\n",
        ]
    )


def _group(name: str, entry: Mapping[str, Any], top: int, note: str) -> tuple[list[str], int]:
    carrier = f", ours over {entry['carrier']}" if entry["carrier"] else ""
    title = f"{name}, {entry['unit']}{carrier}" + (f" ({note})" if note else "")
    parts = [_text(16, top + 11, title, size=12, weight="600")]
    figures = {"bireme": entry["ours"], **entry["peers"]}
    longest = max((f for f in figures.values() if f), default=1.0)
    y = top + 20
    for who, figure in figures.items():
        parts += _bar(who, figure, entry["ratios"].get(who), y, (figure or 0.0) / longest)
        y += BAR + GAP
    return parts, y - top


def _bar(who: str, figure: float | None, ratio: float | None, y: int, share: float) -> list[str]:
    length = max(1.0, share * (WIDTH - LEFT - RIGHT))
    is_ours = who == "bireme"
    colour = OURS_COLOUR if is_ours else PEER_COLOUR
    beside = short(figure) if figure else "no figure"
    if ratio:
        beside += f"  (bireme {ratio:.1f}×)"
    weight = "600" if is_ours else "400"
    return [
        _text(LEFT - 8, y + BAR - 3, who, size=12, weight=weight, anchor="end"),
        f"<rect x='{LEFT}' y='{y}' width='{length:.1f}' height='{BAR}' rx='2' fill='{colour}'/>",
        _text(LEFT + length + 6, y + BAR - 3, beside, size=12, weight=weight),
    ]


def _text(x: float, y: float, text: str, *, size: int, weight: str = "400", anchor: str = "start") -> str:
    style = f"font-size='{size}' font-weight='{weight}' text-anchor='{anchor}' fill='{INK}'"
    return f"<text x='{x:.0f}' y='{y:.0f}' {style}>{escape(text)}</text>"
