"""What a program sends to the parameter servers: its parameters and their update rules.

These structs travel in control messages, so a pserver can keep and update parameters without
ever seeing the user's script or a deep-learning framework.
"""

from __future__ import annotations

import math
from typing import Literal

import msgspec

UpdateMode = Literal["sync", "bounded", "async", "local"]
Coding = Literal["float32", "float16", "bfloat16", "top_k"]
Schedule = Literal["constant", "poly", "caffe_poly", "exp", "discexp", "linear", "manual", "pass_manual"]


class Init(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A parameter's initial values: normal(mean, spread = std) or uniform(mean ± spread)."""

    kind: Literal["normal", "uniform"] = "normal"
    mean: float = 0.0
    spread: float = 0.0


MAX_BOUNDED_ROWS = 2**31 - 1
"""A sparse parameter with more rows than this is unbounded: its saved model lists the rows that exist."""


class Rows(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The lifetime of a sparse parameter's rows; each is created by the first push to it."""

    admit_after: int = 0
    """Pushes to a row that are only counted: it keeps its initial values until then."""
    evict_after: int = 0
    """Rounds without a push after which a row is evicted; 0 keeps all."""


class Parameter(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One parameter and its deviations from the optimizer's rules."""

    name: str
    shape: tuple[int, ...]
    init: Init = Init()
    learning_rate: float = 1.0
    """Multiplies the scheduled learning rate."""
    momentum: float = 0.0
    l1: float = 0.0
    l2: float = 0.0
    clip: float = 0.0
    """Elementwise bound on the summed gradient; 0 means none."""
    is_static: bool = False
    """Never updated: its gradient is ignored."""
    rows: Rows | None = None
    """The lifetime of rows on sparse lanes; None for a dense parameter."""

    @property
    def is_sparse(self) -> bool:
        """Whether this is a table of rows on sparse lanes, of which a batch touches only some."""
        return self.rows is not None

    @property
    def is_unbounded(self) -> bool:
        """Whether there are too many possible rows to save them all."""
        return self.is_sparse and self.shape[0] > MAX_BOUNDED_ROWS

    @property
    def size(self) -> int:
        """Number of elements."""
        return math.prod(self.shape)


class Optimizer(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The update rule that all parameters share."""

    method: str = "momentum"
    """A name in `ps/optim/methods.py:METHODS`."""
    learning_rate: float = 1e-3
    schedule: Schedule = "poly"
    decay_a: float = 0.0
    decay_b: float = 0.0
    schedule_args: str = ""
    """For manual and pass_manual: "n1:r1,n2:r2,…"."""
    rho: float = 0.95
    epsilon: float = 1e-6
    beta1: float = 0.9
    beta2: float = 0.999


class Updates(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How gradients become updates of the parameters."""

    mode: UpdateMode = "sync"
    staleness: int = 0
    """bounded: how many batches a shard may be ahead of the slowest one."""
    every: int = 8
    """local: batches between two exchanges."""
    is_elastic: bool = False
    """local: shards keep their own parameters and are pulled towards the common ones."""
    rate: float = 1.0
    """local: the share of the shards' mean difference, or for elastic of each difference, that is applied."""

    @property
    def is_streamed(self) -> bool:
        """Whether each shard's gradient is applied by itself, when it arrives."""
        return self.mode in ("bounded", "async")


class Snapshots(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """When snapshots are taken for resuming, and how many are kept."""

    path: str = ""
    """A directory that all processes share; '' for no snapshots."""
    every_s: float = 10.0
    """0: not by the clock."""
    every_rounds: int = 0
    """At rounds that are multiples of this; 0: not by rounds. The end of a pass is always a snapshot."""
    keep: int = 2


class Restarts(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How often a process may die before the job fails."""

    limit: int = 10
    within_s: float = 60.0


class Logs(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The disk space of a process's log."""

    max_mb: float = 64.0
    keep: int = 2
    """Rotated files beside the current one."""


class Wire(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How dense gradients are encoded on the wire."""

    gradients: Coding = "float32"
    top_k: float = 0.01
    """top_k: the share of a gradient's elements that is sent; the rest waits for the next round."""

    @property
    def is_exact(self) -> bool:
        """Whether gradients arrive unchanged."""
        return self.gradients == "float32"
