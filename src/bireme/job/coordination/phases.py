"""The phases of a job and every way from one to another: a table that the coordinator follows and the docs draw."""

from __future__ import annotations

from typing import Literal

from bireme.job.status import ENDED, Ending

Phase = Literal["gathering", "setting-up", "training"] | Ending
Reason = Literal[
    "all members joined",
    "all pservers are ready",
    "a member was lost",
    "the last model is saved",
    "it cannot go on",
    "a stop was requested",
]
LIVE: tuple[Phase, ...] = ("gathering", "setting-up", "training")
ENDINGS: dict[Ending, Reason] = {
    "finished": "the last model is saved",
    "failed": "it cannot go on",
    "cancelled": "a stop was requested",
}
TRANSITIONS: dict[tuple[Phase, Reason], Phase] = {
    ("gathering", "all members joined"): "setting-up",
    ("setting-up", "all pservers are ready"): "training",
    ("setting-up", "a member was lost"): "gathering",
    ("training", "a member was lost"): "gathering",
    **{(phase, why): ending for phase in LIVE for ending, why in ENDINGS.items()},
}


def diagram() -> str:
    """The table as a Mermaid state diagram."""
    lines = ["stateDiagram-v2", "    [*] --> gathering"]
    lines += [f"    {_name(phase)} --> {_name(after)}: {why}" for (phase, why), after in TRANSITIONS.items()]
    return "\n".join([*lines, *(f"    {ending} --> [*]" for ending in ENDED)])


def _name(phase: Phase) -> str:
    return phase.replace("-", "_")
