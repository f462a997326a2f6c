"""What a program tells the parameter servers: its parameters and how they are to be updated.

These structs travel in control messages, so a pserver can keep and update parameters without
ever seeing the user's script or a deep-learning framework.
"""

from __future__ import annotations

import math
from typing import Literal

import msgspec

Method = Literal["momentum", "adagrad", "adadelta", "rmsprop", "decayed_adagrad", "adam", "adamax"]
Schedule = Literal["constant", "poly", "caffe_poly", "exp", "discexp", "linear", "manual", "pass_manual"]


class Init(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How a parameter starts: normal(mean, spread = std) or uniform(mean ± spread)."""

    kind: Literal["normal", "uniform"] = "normal"
    mean: float = 0.0
    spread: float = 0.0


class Parameter(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One dense parameter and the rules of its own that differ from the optimizer's."""

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

    @property
    def size(self) -> int:
        """Number of elements."""
        return math.prod(self.shape)


class Optimizer(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The update rule that all parameters share."""

    method: Method = "momentum"
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
