"""The tables of control messages, read off their structs and their docstrings: python docs/generate.py calls it.

A docstring begins with the sender, as in "Trainer: …" or "Coordinator to pserver: …". Where it does not name the
receiver, all but the coordinator send to the coordinator; who receives what the coordinator sends is listed here.
"""

from __future__ import annotations

import inspect
from typing import get_args

import msgspec

from bireme.job.coordination import messages as m
from bireme.job.status import Ending, JobStatus
from bireme.ps.lanes.slow_trainers import Slowest
from bireme.ps.setup import Setup
from bireme.ps.tree import Span
from bireme.spec.model import Optimizer, Parameter, Snapshots, Updates, Wire
from bireme.spec.terms import Facts

RECEIVERS = {
    "Begin": "every trainer",
    "PassClosed": "trainer 0",
    "Stop": "every trainer and pserver",
    "Status": "the sender of GetStatus, SaveSoon or Cancel",
}
"""Of messages that the coordinator sends, those whose docstrings do not name the receiver."""
NESTED: tuple[type[msgspec.Struct], ...] = (m.Address, Facts, Setup, m.Sum)
ELSEWHERE: dict[type, str] = {
    Parameter: "spec/model.py",
    Optimizer: "spec/model.py",
    Updates: "spec/model.py",
    Wire: "spec/model.py",
    Snapshots: "spec/model.py",
    Span: "ps/tree.py",
    Slowest: "ps/lanes/slow_trainers.py",
    JobStatus: "job/status.py",
}
"""Types of fields that are defined outside this protocol, and where."""


def direction_of(message: type[msgspec.Struct]) -> tuple[str, str, str]:
    """Sender, receiver and meaning of a message, from the first paragraph of its docstring."""
    text = " ".join((inspect.getdoc(message) or "").split("\n\n")[0].split())
    head, _, meaning = text.partition(": ")
    sender, _, receiver = head.partition(" to ")
    if sender == "Coordinator":
        receiver = receiver or RECEIVERS[message.__name__]
    return sender, receiver or "coordinator", meaning


def fields_of(struct: type[msgspec.Struct]) -> str:
    """Names of a struct's fields with their types as the code writes them; optional ones with a question mark."""
    hints = {name: hint for each in reversed(struct.__mro__) for name, hint in inspect.get_annotations(each).items()}
    found = msgspec.structs.fields(struct)
    texts = [f"`{field.encode_name}{'' if field.required else '?'}: {hints[field.name]}`" for field in found]
    return ", ".join(texts).replace("|", "\\|") or "none"


def messages_block() -> str:
    """Every control message, in the order of the code."""
    rows = ["| message | from → to | meaning | fields |", "|---|---|---|---|"]
    for message in m.MESSAGES:
        sender, receiver, meaning = direction_of(message)
        rows.append(f"| `{message.__name__}` | {sender.lower()} → {receiver} | {meaning} | {fields_of(message)} |")
    return "\n".join(rows)


def structs_block() -> str:
    """The structs that fields of messages hold."""
    rows = ["| struct | fields |", "|---|---|"]
    rows += [f"| `{struct.__name__}` | {fields_of(struct)} |" for struct in NESTED]
    endings = ", ".join(f'`"{ending}"`' for ending in get_args(Ending))
    rows.append(f"| `Ending` | one of {endings} |")
    rows += [f"| `{kind.__name__}` | see [{where}](../src/bireme/{where}) |" for kind, where in ELSEWHERE.items()]
    return "\n".join(rows)
