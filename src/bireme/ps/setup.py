"""What a pserver receives when a job begins: enough to keep and update its part without seeing the program."""

from __future__ import annotations

import msgspec

from bireme.ps.tree import Span
from bireme.spec.model import Optimizer, Parameter, Updates, Wire
from bireme.spec.terms import Facts


class Setup(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Everything a pserver must know to keep its part of a job's parameters."""

    job: int
    view: int  # the view that begins with this; later views may continue with it
    pserver: int
    facts: Facts
    shares: tuple[Span, ...]  # which shards each trainer owns, as in `Begin`
    base: tuple[tuple[str, ...], ...] = ()
    """Files of the snapshot to continue from: its parts, after those of the snapshots that it builds on."""

    @property
    def is_set_by_trainer(self) -> bool:
        """Whether a trainer sends the first values: a snapshot has later ones than a saved model."""
        return self.facts.is_set_by_trainer and not self.base

    @property
    def is_apart(self) -> bool:
        return is_apart(self.facts.updates, self.facts.wire)

    @property
    def cuts_only_at_passes(self) -> bool:
        return cuts_only_at_passes(self.facts.updates, self.facts.wire)

    @property
    def dense(self) -> tuple[Parameter, ...]:
        return tuple(p for p in self.facts.parameters if not p.is_sparse)

    @property
    def tables(self) -> tuple[Parameter, ...]:
        """What sparse lanes keep, in the order in which rows travel."""
        return tuple(p for p in self.facts.parameters if p.is_sparse)

    @property
    def dense_rule(self) -> Optimizer:
        """The update rule of dense lanes: with local SGD trainers have the program's own, and lanes add differences."""
        if self.facts.updates.mode != "local":
            return self.facts.optimizer
        return Optimizer(learning_rate=self.facts.updates.rate / self.facts.shards, schedule="constant")


def cuts_only_at_passes(updates: Updates, wire: Wire) -> bool:
    """Whether lanes agree on a moment, and trainers keep nothing that lanes lack, only at the end of a pass."""
    return updates.mode != "sync" or wire.gradients == "top_k"


def is_apart(updates: Updates, wire: Wire) -> bool:
    """Whether trainers send each shard's gradient by itself: sums of rounded numbers cannot be rounded again."""
    return updates.is_streamed or not wire.is_exact


def has_private_state(updates: Updates, wire: Wire) -> bool:
    """Whether trainers keep what lanes lack, so that the loss of one needs a rewind."""
    return updates.mode == "local" or wire.gradients == "top_k"


def plain(parameter: Parameter) -> Parameter:
    """The same parameter without rules of its own: what lanes see of it when trainers follow the rules."""
    return Parameter(name=parameter.name, shape=parameter.shape, init=parameter.init, is_static=parameter.is_static)
