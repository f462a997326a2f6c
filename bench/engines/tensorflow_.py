"""TensorFlow's ParameterServerStrategy: a coordinator hands one step to each worker and joins them.

The strategy has no synchronous mode of its own: joining after every step is what makes it one, and each
worker's gradient is applied when it comes (for SGD that is the same as the sum). Variables are made one for
each server. Update ops are used directly, without Keras, which is faster. Gradients wait in each worker's
memory as a repeated dataset element, which costs nothing to hand out.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from typing import Any

import numpy as np

from engines import workloads as w
from engines.process import Task, answer, begin, time_steps


def serve(task: Task, tf: Any) -> None:
    """Be a worker or a parameter server until the end."""
    tf.distribute.Server(_cluster(task), job_name=task.role, task_index=task.rank, protocol="grpc", start=True)
    threading.Event().wait()


def _cluster(task: Task) -> Any:
    import tensorflow as tf  # only in the peer's environment

    at = [f"127.0.0.1:{port}" for port in task.ports]
    return tf.train.ClusterSpec({"ps": at[0:2], "worker": at[2:4]})


def dense(task: Task, tf: Any, strategy: Any, coordinator: Any) -> dict[str, Any]:
    """Two variables, one for each server; a worker reads both and pushes its gradient to both."""
    half = w.DENSE_SIZES[task.work] // w.SERVERS
    with strategy.scope():
        parts = [tf.Variable(tf.zeros([half])) for _ in range(w.SERVERS)]
    one, two = (w.dense_gradient(rank) for rank in range(w.TRAINERS))

    def gradients() -> Any:
        return tf.data.Dataset.from_tensors((tf.fill([half], one), tf.fill([half], two))).repeat()

    held = _held(strategy, coordinator, gradients)

    @tf.function  # tensorflow is unknown to the checker
    def step(iterator: Any, rank: Any) -> Any:
        fresh = [part.read_value() for part in parts]
        first, second = next(iterator)
        mine = tf.switch_case(rank, [lambda: first, lambda: second])
        # Reading and pushing side by side was faster than one after the other.
        for part in parts:
            _descend(tf, part, mine)
        return tf.add_n([values[-1] for values in fresh])

    timing = time_steps(task, _joined(tf, coordinator, step, held))
    for part in parts:
        w.check_dense(part.numpy(), task.total)
    return timing


def _held(strategy: Any, coordinator: Any, make: Callable[[], Any]) -> Any:
    """A dataset in the memory of each worker."""
    return iter(
        coordinator.create_per_worker_dataset(lambda: strategy.distribute_datasets_from_function(lambda _: make()))
    )


def _descend(tf: Any, part: Any, gradient: Any) -> None:
    # With a lock: without, two workers' updates of one variable may lose each other.
    tf.raw_ops.ResourceApplyGradientDescent(
        var=part.handle, alpha=tf.constant(w.DENSE_RATE), delta=gradient, use_locking=True
    )


def _joined(tf: Any, coordinator: Any, step: Any, held: Any, pool: int = 0) -> Callable[[int], list[Any]]:
    """One step on each worker, waited for; with a pool of batches, a step gets the number of its batch."""
    ranks = [tf.constant(rank) for rank in range(w.TRAINERS)]
    places: list[tuple[Any, ...]] = [(tf.constant(at),) for at in range(pool)] or [()]

    def both(index: int) -> list[Any]:
        at = places[index % len(places)]
        given = [coordinator.schedule(step, args=(held, rank, *at)) for rank in ranks]
        coordinator.join()
        return given

    return both


def sparse(task: Task, tf: Any, strategy: Any, coordinator: Any) -> dict[str, Any]:
    """Rows by the parity of their id on two servers; rows are gathered and updated there."""
    batches = [w.sparse_batches(rank) for rank in range(w.TRAINERS)]
    half = w.ROWS // w.SERVERS
    with strategy.scope():
        tables = [tf.Variable(tf.zeros([half, w.WIDTH])) for _ in range(w.SERVERS)]
        # Made in this order, slots land beside their tables.
        squares = [tf.Variable(tf.zeros([half, w.WIDTH])) for _ in range(w.SERVERS)]

    def ids() -> Any:
        return tf.data.Dataset.from_tensors(tuple(tf.constant(np.stack(mine)) for mine in batches)).repeat()

    held = _held(strategy, coordinator, ids)

    @tf.function
    def step(iterator: Any, rank: Any, at: Any) -> Any:
        pools = next(iterator)
        mine = tf.switch_case(rank, [lambda pool=pool: pool[at] for pool in pools])
        rows, _, counts = tf.unique_with_counts(mine)
        grads = tf.repeat(w.SPARSE_GRADIENT * tf.cast(counts, tf.float32)[:, None], w.WIDTH, axis=1)
        server = tf.cast(rows % w.SERVERS, tf.int32)
        split = zip(
            tf.dynamic_partition(rows // w.SERVERS, server, w.SERVERS),
            tf.dynamic_partition(grads, server, w.SERVERS),
            tables,
            squares,
            strict=True,
        )
        return tf.add_n([_fetch_and_update(tf, *part)[-1, 0] for part in split])

    timing = time_steps(task, _joined(tf, coordinator, step, held, w.SPARSE_POOL))
    truth = w.sparse_truth(batches, task.total, is_joint=False)
    whole = [table.numpy() for table in tables]
    truth.check([whole[row % w.SERVERS][row // w.SERVERS] for row in truth.rows])
    return timing


def _fetch_and_update(tf: Any, rows: Any, grads: Any, table: Any, squares: Any) -> Any:
    fresh = table.sparse_read(rows)
    with tf.control_dependencies([fresh]):
        tf.raw_ops.ResourceSparseApplyAdagradV2(
            var=table.handle,
            accum=squares.handle,
            lr=tf.constant(w.SPARSE_RATE),
            epsilon=tf.constant(1e-7),
            grad=grads,
            indices=rows,
            use_locking=True,
        )
    return fresh


def bow(task: Task, tf: Any, strategy: Any, coordinator: Any) -> dict[str, Any]:
    """Real forward and backward on the workers, Adam on the servers; weight and bias, a server each."""
    with strategy.scope():
        weight = tf.Variable(tf.zeros([w.WORDS, w.CLASSES]))
        bias = tf.Variable(tf.zeros([w.CLASSES]))
        slots = [[tf.Variable(tf.zeros(v.shape)) for v in (weight, bias)] for _ in range(2)]
        beta = [tf.Variable(0.9), tf.Variable(0.999)]
    pools = [w.bow_batches(rank) for rank in range(w.TRAINERS)]

    def texts() -> Any:
        parts = [(np.stack([b.ids for b in pool]), np.stack([b.labels for b in pool])) for pool in pools]
        return tf.data.Dataset.from_tensors(tuple(parts)).repeat()

    held = _held(strategy, coordinator, texts)

    @tf.function
    def step(iterator: Any, rank: Any, at: Any) -> Any:
        both = next(iterator)
        ids, labels = tf.switch_case(rank, [lambda p=p: (p[0][at], p[1][at]) for p in both])
        local = [weight.read_value(), bias.read_value()]
        with tf.GradientTape() as tape:
            tape.watch(local)
            logits = tf.reduce_sum(tf.gather(local[0], ids), axis=1) + local[1]
            cost = tf.reduce_sum(tf.nn.sparse_softmax_cross_entropy_with_logits(labels=labels, logits=logits))
        grads = tape.gradient(cost, local)
        powers = [b.read_value() for b in beta]
        for i, value in enumerate((weight, bias)):
            _adam(tf, value, (slots[0][i], slots[1][i]), powers, tf.convert_to_tensor(grads[i]))
        if rank == w.TRAINERS - 1:
            beta[0].assign(powers[0] * 0.9)
            beta[1].assign(powers[1] * 0.999)
        return cost

    joined = _joined(tf, coordinator, step, held, w.BOW_POOL)

    def cost_of(index: int) -> Any:
        given = joined(index)
        return given[0].fetch() if index == w.BOW_STEP else 0.0

    watch = w.CostWatch(cost_of)
    timing = time_steps(task, watch)
    watch.check(0, is_joint=False)
    return timing


def _adam(tf: Any, value: Any, slots: tuple[Any, Any], powers: list[Any], gradient: Any) -> None:
    tf.raw_ops.ResourceApplyAdam(
        var=value.handle,
        m=slots[0].handle,
        v=slots[1].handle,
        beta1_power=powers[0],
        beta2_power=powers[1],
        lr=tf.constant(w.BOW_RATE),
        beta1=tf.constant(0.9),
        beta2=tf.constant(0.999),
        epsilon=tf.constant(1e-8),
        grad=gradient,
        use_locking=True,
    )


def coordinate(task: Task, tf: Any) -> dict[str, Any]:
    """Be the coordinator: this is the process that times the steps of both workers."""
    resolver = tf.distribute.cluster_resolver.SimpleClusterResolver(_cluster(task), rpc_layer="grpc")
    strategy: Any = tf.distribute.ParameterServerStrategy(resolver)
    coordinator: Any = tf.distribute.coordinator.ClusterCoordinator(strategy)
    ways: dict[str, Callable[..., dict[str, Any]]] = {"sparse": sparse, "bow": bow}
    way: Callable[..., dict[str, Any]] = ways.get(task.work, dense)
    return way(task, tf, strategy, coordinator)


def main() -> None:
    """Do the task."""
    task = begin()
    os.environ["TF_CPP_MIN_LOG_LEVEL"] = "2"
    import tensorflow as tf

    if task.role != "chief":
        serve(task, tf)
        return
    answer(task, coordinate(task, tf))


if __name__ == "__main__":
    main()
