"""A table as a dict of rows, one numpy expression at a time: slow, plain, and bit for bit what `Table` must do."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from bireme.core import draws
from bireme.ps.optim.optimizers import FOLD_PERIOD
from bireme.ps.sparse.table import IDS, State, Table
from bireme.spec.model import Optimizer, Parameter, Rows

Floats = NDArray[np.float32]
ZERO, ONE = np.float32(0), np.float32(1)


def first_values(parameter: Parameter, seed: int, id_: int) -> Floats:
    """What `core.draws` gives for a row, from the stream that element `id` of the table's stream names."""
    init, width = parameter.init, parameter.shape[1]
    if init.spread == 0:
        return np.full(width, init.mean, np.float32)
    key = int(draws.draw_bits(draws.stream_key(seed, "row", parameter.name), id_, 1)[0])
    is_normal = init.kind == "normal"
    drawn = draws.draw_normal(key, 0, width) if is_normal else 2.0 * draws.draw_uniform(key, 0, width) - 1.0
    return (init.mean + init.spread * drawn).astype(np.float32)


@dataclass
class Row:
    w: Floats
    touched: int
    pushes: int = 0
    caught_up: int = 0
    state: list[Floats] = field(default_factory=list)


class TableModel:
    """Every round must be applied, also empty ones."""

    def __init__(self, parameter: Parameter, optimizer: Optimizer, seed: int) -> None:
        self.p, self.o, self.seed = parameter, optimizer, seed
        self.lives = parameter.rows or Rows()
        self.rows: dict[int, Row] = {}
        self.clock = [1.0, 1.0, -1.0]
        self.is_lazy = optimizer.method == "sparse_momentum" and parameter.momentum != 0

    def read(self, id_: int) -> Floats:
        return self.rows[id_].w if id_ in self.rows else first_values(self.p, self.seed, id_)

    def admitted(self) -> dict[int, Floats]:
        return {i: row.w for i, row in sorted(self.rows.items()) if row.pushes >= self.lives.admit_after}

    def apply(self, gradients: Mapping[int, Floats], learning_rate: float, round_: int) -> None:
        if self.p.is_static:
            return
        rate = learning_rate * self.p.learning_rate
        beta_before = self.clock[1]
        if self.is_lazy:
            alpha, beta, tau = self.clock
            self.clock = [alpha / self.p.momentum, beta * (1.0 + rate * self.p.l2), tau + beta / alpha]
        for id_, g in gradients.items():
            if id_ not in self.rows:
                zeros = [np.zeros_like(g) for _ in range(3)]
                self.rows[id_] = Row(self.read(id_), round_ - 1, 0, round_ - 1, zeros)
            row = self.rows[id_]
            if row.pushes >= self.lives.admit_after:
                self.update(row, g, rate, round_, beta_before)
            row.touched = row.caught_up = round_
            row.pushes += 1
        if self.clock[0] > 1e6:
            self.restart()
        n = self.lives.evict_after
        if n and round_ % max(1, n // 4) == 0:
            self.rows = {i: row for i, row in self.rows.items() if round_ - row.touched < n}

    def weighted(self, row: Row) -> Floats:
        alpha, beta, tau = self.clock
        u, v = (part.astype(np.float64) for part in row.state[:2])
        return ((tau / beta + 1.0 / alpha) * u + (1.0 / beta) * v).astype(np.float32)

    def restart(self) -> None:
        for row in self.rows.values():
            v = self.weighted(row)
            row.state[:2] = [(row.state[0].astype(np.float64) / self.clock[0]).astype(np.float32), v]
        self.clock = [1.0, 1.0, -1.0]

    def update(self, row: Row, g: Floats, rate: float, round_: int, beta_before: float) -> None:
        if self.p.clip > 0:
            g = np.clip(g, -np.float32(self.p.clip), np.float32(self.p.clip))
        is_first = row.pushes == self.lives.admit_after
        if self.is_lazy:
            alpha, _, tau = self.clock
            if is_first:
                row.state[1] = np.float32(beta_before) * row.w
            g64, push = g.astype(np.float64), alpha * rate
            row.state[0] = (row.state[0].astype(np.float64) - push * g64).astype(np.float32)
            row.state[1] = (row.state[1].astype(np.float64) + tau * push * g64).astype(np.float32)
            row.w = self.weighted(row)
            return
        adaptive = self.adapt(row, g, round_ - row.touched, round_, is_first)
        step = np.float32(rate) * (g + ZERO * row.w)
        if adaptive is not None:
            step = np.float32(rate) * adaptive * (g + ZERO * row.w)
        if self.p.momentum == 0:
            row.w = row.w - step
        else:
            row.state[2] = np.float32(self.p.momentum) * row.state[2] - step
            row.w = row.w + row.state[2]
        row.w = self.regularised(row.w, adaptive, rate, round_ - row.caught_up)

    def adapt(self, row: Row, g: Floats, age: int, round_: int, is_first: bool) -> Floats | None:
        """Change the state and return the adaptive rate, None where the method has none."""
        eps, rho, s = np.float32(self.o.epsilon), self.o.rho, row.state
        keep, add1 = np.float32(power(rho, age)), np.float32(1.0 - rho)
        add2 = ONE if is_first else add1
        if self.o.method == "adagrad":
            if row.touched // FOLD_PERIOD < round_ // FOLD_PERIOD:
                s[0], s[1] = s[0] + s[1], np.zeros_like(s[1])
            s[1] = s[1] + g * g
        elif self.o.method == "rmsprop":
            s[0], s[1] = keep * s[0] + add2 * (g * g), keep * s[1] + add1 * g
        elif self.o.method == "decayed_adagrad":
            s[0] = keep * s[0] + add2 * (g * g)
        return self.adaptive_rate(row, eps)

    def adaptive_rate(self, row: Row, eps: np.float32) -> Floats | None:
        s = row.state
        spread: dict[str, Floats] = {
            "adagrad": s[0] + s[1],
            "rmsprop": np.maximum(s[0] - s[1] * s[1], ZERO),
            "decayed_adagrad": s[0],
        }
        if self.o.method not in spread:
            return None
        rate: Floats = ONE / np.sqrt(spread[self.o.method] + eps)
        return rate

    def regularised(self, w: Floats, adaptive: Floats | None, rate: float, rounds: int) -> Floats:
        threshold, shrink = np.float32(rate * self.p.l1 * rounds), np.float32(1.0 + rate * self.p.l2 * rounds)
        if threshold > 0:
            bound = threshold * (ONE if adaptive is None else adaptive)
            w = np.where(w > bound, w - bound, np.where(w < -bound, w + bound, ZERO))
        return w / shrink if threshold > 0 or shrink != 1 else w

    def end_pass(self, learning_rate: float, round_: int) -> None:
        if self.p.is_static or not (self.p.l1 or self.p.l2):
            return
        rate = learning_rate * self.p.learning_rate
        for row in self.rows.values():
            rounds = round_ - row.caught_up
            if rounds == 0 or row.pushes < self.lives.admit_after + self.is_lazy:
                continue
            if self.is_lazy:
                row.w = self.weighted(row)
            else:
                row.w = self.regularised(row.w, self.adaptive_rate(row, np.float32(self.o.epsilon)), rate, rounds)
            row.caught_up = round_


def power(base: float, exponent: int) -> float:
    """By squaring: each product is rounded, so the order of the products matters."""
    total, square = 1.0, base
    while exponent:
        if exponent % 2:
            total *= square
        square, exponent = square * square, exponent // 2
    return total


def state_of(table: Table) -> State:
    """All that the table's next round depends on, by ascending id."""
    arrays, copies = table.state_of(table.changed_rows(None), 1 << 10)
    for copy in copies:
        copy()
    order = np.argsort(arrays[IDS])
    return {name: array.copy() if name in ("rounds", "clock") else array[order] for name, array in arrays.items()}
