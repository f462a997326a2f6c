"""What a program sends to the parameter servers: its parameters and their update rules.

These structs travel in control messages, so a pserver can keep and update parameters without
ever seeing the user's script or a deep-learning framework. Some are sections of job.yaml as well.
"""

from __future__ import annotations

import math
from typing import Annotated, Literal

import msgspec
from msgspec import Meta

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


class SnapshotsFile(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """When the job's state is saved for `bireme resume`."""

    every_s: Annotated[float, Meta(ge=0, le=86400)] = 10.0
    """Seconds after a snapshot until the next one; one is always taken at the end of a pass. 0: none by the clock."""
    every_rounds: Annotated[int, Meta(ge=0, le=1_000_000_000)] = 0
    """A snapshot also at every round that is a multiple of this, whichever comes first. 0: none by rounds. One that
    comes while the one before is still being written is left out. In modes other than `sync`, and with `top_k`, there
    are snapshots at the end of passes only, regardless of this key."""
    keep: Annotated[int, Meta(ge=1, le=100)] = 2
    """How many are kept; older ones are deleted."""


class Snapshots(SnapshotsFile, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """When snapshots are taken, and where to."""

    path: str = ""
    """A directory that all processes share; '' for no snapshots."""


class Restarts(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How often a process that dies is restarted."""

    limit: Annotated[int, Meta(ge=0, le=1_000_000)] = 10
    """Deaths of one process after which the next one ends the job, if they came within `within_s`, or if the job got no
    further meanwhile, however long that took. 0: the first death."""
    within_s: Annotated[float, Meta(gt=0, le=86400)] = 60.0
    """Seconds over which deaths are counted."""


class Logs(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How much of the processes' logs is kept."""

    max_mb: Annotated[float, Meta(gt=0, le=1_000_000)] = 64.0
    """Megabytes after which a process's log is moved aside, to `train.log.1` and so on."""
    keep: Annotated[int, Meta(ge=0, le=1000)] = 2
    """Moved logs that are kept; older ones are deleted."""


class Wire(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How dense gradients are written on the wire; for slow networks."""

    gradients: Coding = "float32"
    """`float32` sends them as they are; `float16` and `bfloat16` round them to half the bytes; `top_k` sends the
    largest elements only and keeps the rest for the next round."""
    top_k: Annotated[float, Meta(gt=0, le=0.5)] = 0.01
    """Share of a gradient's elements that `top_k` sends."""

    @property
    def is_exact(self) -> bool:
        """Whether gradients arrive unchanged."""
        return self.gradients == "float32"
