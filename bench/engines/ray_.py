"""Ray actors as parameter servers: two keep half of the parameters each, two are trainers.

Arrays travel through Ray's object store, which is shared memory. Tried: waiting in the driver after each
half-step, and handing the next call the references of the one before, so that a step is one chain of calls
and the driver waits once. The chain is faster and is timed.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import ray  # only in the peer's environment

from engines import workloads as w
from engines.process import Task, answer, begin, time_steps


class DenseServer:
    """Keeps a half of the parameters."""

    def __init__(self, size: int) -> None:
        self._values = np.zeros(size, dtype=np.float32)
        self._total = np.empty(size, dtype=np.float32)

    def apply(self, first: Any, second: Any) -> Any:
        """Sum, descend, and give the fresh values; the store copies them."""
        np.add(first, second, out=self._total)
        self._total *= np.float32(w.DENSE_RATE)
        self._values -= self._total
        return self._values


class DenseTrainer:
    """Holds a constant gradient, cut in two."""

    def __init__(self, rank: int, size: int) -> None:
        self._grads = [np.full(size, w.dense_gradient(rank), dtype=np.float32) for _ in range(w.SERVERS)]
        self._values: tuple[Any, ...] = ()

    def gradient(self) -> Any:
        """One array for each server."""
        return self._grads[0], self._grads[1]

    def take(self, *values: Any) -> None:
        """Hold the fresh parameters."""
        self._values = values

    def check(self, steps: int) -> None:
        """Judge what is held."""
        for part in self._values:
            w.check_dense(part, steps)


def dense(task: Task) -> dict[str, Any]:
    """Gradients, sums, fresh values: one chain of calls for a step."""
    half = w.DENSE_SIZES[task.work] // w.SERVERS
    servers = [_actor(DenseServer, half) for _ in range(w.SERVERS)]
    trainers = [_actor(DenseTrainer, rank, half) for rank in range(w.TRAINERS)]

    def step(_: int) -> None:
        grads = [t.gradient.options(num_returns=w.SERVERS).remote() for t in trainers]
        fresh = [server.apply.remote(*(g[i] for g in grads)) for i, server in enumerate(servers)]
        ray.get([t.take.remote(*fresh) for t in trainers])

    timing = time_steps(task, step)
    ray.get([t.check.remote(task.total) for t in trainers])
    return timing


class SparseServer:
    """Keeps the rows whose id has its parity."""

    def __init__(self) -> None:
        self._table = np.zeros((w.ROWS // w.SERVERS, w.WIDTH), dtype=np.float32)
        self._squares = np.zeros_like(self._table)

    def apply(self, *parts: Any) -> Any:
        """Sum both trainers' rows, apply Adagrad, and give each trainer its rows."""
        ids, at = np.unique(np.concatenate([rows for rows, _ in parts]), return_inverse=True)
        grads = np.zeros((len(ids), w.WIDTH), dtype=np.float32)
        begun = 0
        for rows, mine in parts:
            # A trainer's rows are unique, so plain indexing adds each once.
            grads[at[begun : begun + len(rows)]] += mine
            begun += len(rows)
        squares = self._squares[ids] + grads * grads
        self._squares[ids] = squares
        self._table[ids] -= np.float32(w.SPARSE_RATE) * grads / np.sqrt(squares)
        return tuple(self._table[rows] for rows, _ in parts)

    def read(self, rows: Any) -> Any:
        """Some rows."""
        return self._table[rows]


class SparseTrainer:
    """Finds a batch's rows and their gradients."""

    def __init__(self, rank: int) -> None:
        self._batches = w.sparse_batches(rank)
        self._values: tuple[Any, ...] = ()

    def gradient(self, index: int) -> Any:
        """(rows, gradients) for each server."""
        rows, grads = w.unique_rows(self._batches[index % w.SPARSE_POOL])
        found = []
        for server in range(w.SERVERS):
            mine = rows % w.SERVERS == server
            found.append((rows[mine] // w.SERVERS, grads[mine]))
        return tuple(found)

    def take(self, *values: Any) -> None:
        """Hold the fresh rows."""
        self._values = values


def sparse(task: Task) -> dict[str, Any]:
    """Rows and gradients to the servers, fresh rows back."""
    servers = [_actor(SparseServer) for _ in range(w.SERVERS)]
    trainers = [_actor(SparseTrainer, rank) for rank in range(w.TRAINERS)]

    def step(index: int) -> None:
        grads = [t.gradient.options(num_returns=w.SERVERS).remote(index) for t in trainers]
        fresh = [
            server.apply.options(num_returns=w.TRAINERS).remote(*(g[i] for g in grads))
            for i, server in enumerate(servers)
        ]
        ray.get([t.take.remote(*(part[rank] for part in fresh)) for rank, t in enumerate(trainers)])

    timing = time_steps(task, step)
    truth = w.sparse_truth([w.sparse_batches(rank) for rank in range(w.TRAINERS)], task.total)
    truth.check([ray.get(servers[row % w.SERVERS].read.remote(row // w.SERVERS)) for row in truth.rows])
    return timing


class AdamServer:
    """Keeps a half of the words, or more exactly of the flat parameters."""

    def __init__(self, size: int) -> None:
        self._values = np.zeros(size, dtype=np.float32)
        self._mean = np.zeros_like(self._values)
        self._square = np.zeros_like(self._values)
        self._steps = 0

    def apply(self, first: Any, second: Any) -> Any:
        """Sum and apply Adam."""
        grad = first + second
        self._steps += 1
        self._mean += np.float32(0.1) * (grad - self._mean)
        self._square += np.float32(0.001) * (grad * grad - self._square)
        rate = np.float32(w.BOW_RATE * np.sqrt(1 - 0.999**self._steps) / (1 - 0.9**self._steps))
        self._values -= rate * self._mean / (np.sqrt(self._square) + np.float32(1e-8))
        return self._values


class BowTrainer:
    """Computes real gradients of softmax regression with numpy."""

    def __init__(self, rank: int) -> None:
        self._batches = w.bow_batches(rank)
        self._flat = np.zeros((w.WORDS + 1) * w.CLASSES, dtype=np.float32)
        self._cost = 0.0

    def gradient(self, index: int) -> Any:
        """Gradient of a batch, cut in two."""
        batch = self._batches[index % w.BOW_POOL]
        table = self._flat.reshape(-1, w.CLASSES)
        logits = table[batch.ids].sum(axis=1) + table[-1]
        logits -= logits.max(axis=1, keepdims=True)
        chances = np.exp(logits)
        chances /= chances.sum(axis=1, keepdims=True)
        at = np.arange(w.TEXTS)
        self._cost = float(-np.log(chances[at, batch.labels]).sum())
        chances[at, batch.labels] -= 1.0
        grad = np.empty_like(table)
        for k in range(w.CLASSES):
            # bincount sums duplicates many times faster than add.at.
            weights = np.repeat(chances[:, k], w.IDS_PER_TEXT)
            grad[:, k] = np.bincount(batch.ids.reshape(-1), weights=weights, minlength=w.WORDS + 1)
        grad[-1] = chances.sum(axis=0)
        return tuple(np.split(grad.reshape(-1), w.SERVERS))

    def take(self, *values: Any) -> None:
        """Hold the fresh parameters."""
        np.concatenate(values, out=self._flat)

    def cost(self) -> float:
        """Summed cost of the last batch."""
        return self._cost


def bow(task: Task) -> dict[str, Any]:
    """Real gradients, Adam on the servers."""
    size = (w.WORDS + 1) * w.CLASSES // w.SERVERS
    servers = [_actor(AdamServer, size) for _ in range(w.SERVERS)]
    trainers = [_actor(BowTrainer, rank) for rank in range(w.TRAINERS)]

    def step(index: int) -> Any:
        grads = [t.gradient.options(num_returns=w.SERVERS).remote(index) for t in trainers]
        fresh = [server.apply.remote(*(g[i] for g in grads)) for i, server in enumerate(servers)]
        ray.get([t.take.remote(*fresh) for t in trainers])
        return ray.get(trainers[0].cost.remote()) if index == w.BOW_STEP else 0.0

    watch = w.CostWatch(step)
    timing = time_steps(task, watch)
    watch.check(0)
    return timing


def _actor(kind: Any, *arguments: Any) -> Any:
    # No cores are reserved, so that two of them hold four actors; each may use what is free.
    return ray.remote(num_cpus=0)(kind).remote(*arguments)


def main() -> None:
    """Be the driver: it starts Ray, its actors, and times the steps of both trainers."""
    task = begin()
    ray.init(
        include_dashboard=False,
        configure_logging=False,
        log_to_driver=False,
        object_store_memory=3 << 30,
        _temp_dir=f"{task.folder}/ray",
    )
    ways: dict[str, Callable[[Task], dict[str, Any]]] = {"sparse": sparse, "bow": bow}
    timing = ways.get(task.work, dense)(task)
    ray.shutdown()
    answer(task, timing)


if __name__ == "__main__":
    main()
