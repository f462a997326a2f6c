"""What a config has declared so far: one `Draft` per load holds all of the language's state.

Parameters take their defaults (momentum, decay, clipping) from the `settings()` call before they
were created, as in the original; a config that calls `settings()` after its layers is warned.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import get_args

from bireme.programs.config.graph import Graph, Layer
from bireme.programs.config.scripts import Complaint
from bireme.programs.config.values import ParamAttr, Regularization, Rule, refuse, whole_number
from bireme.spec.model import MAX_BOUNDED_ROWS, Init, Optimizer, Parameter, Schedule

_log = logging.getLogger(__name__)

ZERO = ParamAttr(initial_std=0.0, initial_mean=0.0)
"""How a bias starts unless the config gives another value."""


@dataclass(frozen=True)
class Settings:
    """The arguments of `settings()`, in the original's order."""

    batch_size: int
    learning_rate: float = 1e-3
    learning_rate_decay_a: float = 0.0
    learning_rate_decay_b: float = 0.0
    learning_rate_schedule: Schedule = "poly"
    learning_rate_args: str = ""
    learning_method: Rule | None = None
    regularization: Regularization | list[Regularization] | tuple[Regularization, ...] | None = None
    is_async: bool = False
    model_average: object = None
    gradient_clipping_threshold: float | None = None

    def __post_init__(self) -> None:
        if self.model_average is not None:
            refuse("settings(model_average=...)")
        if whole_number(self.batch_size) is None:
            raise Complaint(f"settings(): batch_size must be a whole number from 1, not {self.batch_size!r}")
        if self.learning_method is not None and not isinstance(self.learning_method, Rule):
            raise Complaint("settings(): learning_method must be an optimizer such as AdamOptimizer()")
        if self.learning_rate_schedule not in get_args(Schedule):
            known = ", ".join(get_args(Schedule))
            raise Complaint(f"settings(): there is no schedule {self.learning_rate_schedule!r}", fix=f"use {known}")

    @property
    def rule(self) -> Rule:
        return self.learning_method or Rule("momentum")

    @property
    def l2(self) -> float:
        """The default L2 rate; of several, the last one counts."""
        value = self.regularization
        rates = list(value) if isinstance(value, list | tuple) else [value] if value else []
        if not all(isinstance(rate, Regularization) for rate in rates):
            raise Complaint("settings(): regularization must be L2Regularization(rate)")
        return rates[-1].rate if rates else 0.0

    def optimizer(self) -> Optimizer:
        rule = self.rule
        return Optimizer(
            method=rule.method,
            learning_rate=float(self.learning_rate),
            schedule=self.learning_rate_schedule,
            decay_a=float(self.learning_rate_decay_a),
            decay_b=float(self.learning_rate_decay_b),
            schedule_args=self.learning_rate_args,
            rho=float(rule.rho),
            epsilon=float(rule.epsilon),
            beta1=float(rule.beta1),
            beta2=float(rule.beta2),
        )


@dataclass
class Draft:
    """Layers, parameters and choices in the order in which the config makes them."""

    args: Mapping[str, str]
    layers: dict[str, Layer] = field(default_factory=dict)
    parameters: dict[str, Parameter] = field(default_factory=dict)
    settings: Settings | None = None
    outputs: tuple[str, ...] = ()
    inputs: tuple[str, ...] = ()
    _counts: dict[str, int] = field(default_factory=dict)

    def name(self, prefix: str, name: str | None) -> str:
        """Name a layer as the original does: by the user's name, or `__prefix_0__`, `__prefix_1__` …"""
        if name is not None:
            return name
        number = self._counts.get(prefix, 0)
        self._counts[prefix] = number + 1
        return f"__{prefix}_{number}__"

    def add(self, layer: Layer) -> Layer:
        if layer.name in self.layers:
            raise Complaint(f"there are two layers named {layer.name!r}", fix="give one of them another name")
        self.layers[layer.name] = layer
        return layer

    def parameter(self, default_name: str, shape: tuple[int, ...], attr: ParamAttr) -> str:
        """Create a parameter, or share the one that already has its name; returns the name."""
        name = attr.name or default_name
        known = self.parameters.get(name)
        if known is None:
            self.parameters[name] = self._new_parameter(name, shape, attr)
        elif known.shape != shape:
            raise Complaint(f"parameter {name!r} is shared, but once as {known.shape} and once as {shape}")
        elif known.rows != attr.rows:
            what = f"parameter {name!r} is shared, but with different sparse_update, admit_after or evict_after"
            raise Complaint(what, fix="give these in every ParamAttr(...) with that name, and alike")
        return name

    def use(self, settings: Settings) -> None:
        """Take over `settings()`; parameters created before keep the earlier values."""
        if self.parameters:
            text = "settings() comes after layers: its momentum, decay and clipping do not reach parameters=%s"
            _log.warning(text, ",".join(self.parameters))
        self.settings = settings
        settings.l2  # noqa: B018 - refuses here, at the user's line

    def graph(self) -> Graph:
        """Close the draft; refuses an incomplete config."""
        if not self.outputs:
            raise Complaint("the config never calls outputs()", fix="end it with outputs(cost)")
        below = Graph(self.layers, self.outputs, ()).below(self.outputs)
        needed = tuple(layer.name for layer in below if layer.kind == "data")
        if self.inputs and set(self.inputs) != set(needed):
            raise Complaint(f"inputs() names {', '.join(self.inputs)}, but the outputs need {', '.join(needed)}")
        sparse = frozenset(name for name, parameter in self.parameters.items() if parameter.is_sparse)
        return Graph(dict(self.layers), self.outputs, self.inputs or needed, sparse)

    def _new_parameter(self, name: str, shape: tuple[int, ...], attr: ParamAttr) -> Parameter:
        # The latest settings() count where the attribute has no value of its own.
        settings = self.settings
        clip = settings.gradient_clipping_threshold if settings else None
        return Parameter(
            name=name,
            shape=shape,
            init=_init(shape, attr),
            learning_rate=_or(attr.learning_rate, 1.0),
            momentum=_or(attr.momentum, settings.rule.momentum if settings else 0.0),
            l1=_or(attr.l1_rate, 0.0),
            l2=_or(attr.l2_rate, settings.l2 if settings else 0.0),
            clip=_or(attr.gradient_clipping_threshold, clip or 0.0),
            is_static=bool(attr.is_static),
            rows=attr.rows,
        )


def _or(value: float | None, default: float) -> float:
    return float(default if value is None else value)


def _init(shape: tuple[int, ...], attr: ParamAttr) -> Init:
    """The original's rules: a range, or the given values, or a spread that fits the fan-in."""
    if attr.initial_max is not None and attr.initial_min is not None:
        mean = (attr.initial_max + attr.initial_min) / 2
        return Init(kind="uniform", mean=mean, spread=mean - attr.initial_min)
    if attr.initial_std is None and attr.initial_mean is None:
        if attr.sparse_update and shape[0] > MAX_BOUNDED_ROWS:
            # So many possible rows say nothing about how many there will be: the rule below would give nearly 0.
            return Init(spread=0.01)
        # A bias counts as one row there, so an attribute without a start gives it spread 1.
        rows = shape[0] if len(shape) > 1 else 1
        return Init(spread=1.0 / math.sqrt(rows))
    return Init(mean=_or(attr.initial_mean, 0.0), spread=_or(attr.initial_std, 0.01))
