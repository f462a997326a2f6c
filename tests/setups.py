"""Setups of pservers for tests, which name only what matters to them."""

from __future__ import annotations

from typing import Any

import msgspec

from bireme.ps.setup import Setup
from bireme.ps.tree import Span
from bireme.spec.model import Optimizer, Snapshots
from bireme.spec.terms import Facts

FACTS = Facts(
    name="demo", program="config.py", fingerprint="f", parameters=(), optimizer=Optimizer(), batch_size=1, evals=(),
    shards=1, trainers=1, pservers=1, ports_num=1, ports_num_for_sparse=0, passes=1, seed=1, output="",
    connect_timeout_s=60.0, snapshots=Snapshots(every_s=0.0),
)  # fmt: skip
_OF_SETUP = ("job", "view", "pserver", "shares", "base")


def make_setup(**changes: Any) -> Setup:
    """A pserver's setup; the changes are fields of Setup or of Facts."""
    own: dict[str, Any] = {"job": 7, "view": 3, "pserver": 0, "shares": (Span(0, 1),)}
    own |= {name: changes.pop(name) for name in _OF_SETUP if name in changes}
    facts = msgspec.structs.replace(FACTS, **{"trainers": len(own["shares"]), **changes})
    return Setup(facts=facts, **own)
