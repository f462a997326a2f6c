"""MXNet's kvstore over ps-lite, dist_sync, with the optimizer on the servers.

Tried: push then pull, and the fused pushpull; they differ by less than the noise, and the fused one is timed.
The bound for big arrays is lowered so that both servers get their half of one million parameters, too.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from engines import workloads as w
from engines.process import Task, answer, begin, time_steps

KEY = "0"
BIAS = "1"


def dense(task: Task, mx: Any, store: Any) -> dict[str, Any]:
    """One large array, cut over the servers by the kvstore."""
    size = w.DENSE_SIZES[task.work]
    values = mx.nd.zeros((size,))
    grads = mx.nd.full((size,), w.dense_gradient(task.rank))
    store.init(KEY, values)
    _set_optimizer(store, mx.optimizer.SGD(learning_rate=w.DENSE_RATE, wd=0.0, rescale_grad=1.0))
    is_fused = task.options.get("push", "fused") == "fused"

    def step(_: int) -> None:
        if is_fused:
            store.pushpull(KEY, grads, out=values)
        else:
            store.push(KEY, grads)
            store.pull(KEY, out=values)
        values.wait_to_read()

    def prepare() -> None:
        # Pushed and pulled arrays share the store's buffer, so the pull has written over the gradient.
        grads[:] = w.dense_gradient(task.rank)
        grads.wait_to_read()

    timing = time_steps(task, step, prepare)
    w.check_dense(values.asnumpy(), task.total)
    return timing


def sparse(task: Task, mx: Any, store: Any) -> dict[str, Any]:
    """Row-sparse pushes and pulls of the batch's rows alone."""
    batches = [w.sparse_batches(rank) for rank in range(w.TRAINERS)]
    shape = (w.ROWS, w.WIDTH)
    # Rows of zeros would not be stored at all, which servers refuse: the table starts at one.
    store.init(KEY, mx.nd.ones(shape).tostype("row_sparse"))
    _set_optimizer(store, mx.optimizer.AdaGrad(learning_rate=w.SPARSE_RATE, wd=0.0, rescale_grad=1.0))
    pulled = mx.nd.sparse.zeros("row_sparse", shape)

    def step(index: int) -> None:
        rows, grads = w.unique_rows(batches[task.rank][index % w.SPARSE_POOL])
        ids = mx.nd.array(rows, dtype="int64")
        store.push(KEY, mx.nd.sparse.row_sparse_array((grads, ids), shape=shape))
        store.row_sparse_pull(KEY, out=pulled, row_ids=ids)
        pulled.wait_to_read()

    timing = time_steps(task, step)
    truth = w.sparse_truth(batches, task.total)
    store._barrier()
    store.row_sparse_pull(KEY, out=pulled, row_ids=mx.nd.array(sorted(truth.rows), dtype="int64"))
    found = dict(zip(pulled.indices.asnumpy().tolist(), pulled.data.asnumpy(), strict=True))
    truth.check([found[int(row)] - 1.0 for row in truth.rows])
    return timing


def bow(task: Task, mx: Any, store: Any) -> dict[str, Any]:
    """Real forward and backward with autograd; gradients are dense, as Adam wants them."""
    weight, bias = mx.nd.zeros((w.WORDS, w.CLASSES)), mx.nd.zeros((w.CLASSES,))
    store.init([KEY, BIAS], [weight, bias])
    _set_optimizer(store, mx.optimizer.Adam(learning_rate=w.BOW_RATE, wd=0.0, rescale_grad=1.0))
    weight.attach_grad()
    bias.attach_grad()
    batches = [(mx.nd.array(b.ids, dtype="int32"), mx.nd.array(b.labels)) for b in w.bow_batches(task.rank)]

    def step(index: int) -> Any:
        ids, labels = batches[index % len(batches)]
        with mx.autograd.record():
            looked_up = mx.nd.Embedding(ids, weight, input_dim=w.WORDS, output_dim=w.CLASSES)
            logits = mx.nd.sum(looked_up, axis=1) + bias
            cost = -mx.nd.sum(mx.nd.pick(mx.nd.log_softmax(logits), labels))
        cost.backward()
        store.push([KEY, BIAS], [weight.grad, bias.grad])
        store.pull([KEY, BIAS], out=[weight, bias])
        weight.wait_to_read()
        bias.wait_to_read()
        return cost.asscalar() if index == w.BOW_STEP else 0.0

    watch = w.CostWatch(step)
    timing = time_steps(task, watch)
    watch.check(task.rank)
    return timing


def _set_optimizer(store: Any, optimizer: Any) -> None:
    store.set_optimizer(optimizer)
    store._barrier()


def main() -> None:
    """Be what DMLC_ROLE says: importing mxnet serves until the end for all but workers."""
    task = begin()
    import mxnet as mx  # only in the peer's environment

    if task.role != "worker":
        return
    store = mx.kv.create("dist_sync")
    ways: dict[str, Callable[[Task, Any, Any], dict[str, Any]]] = {"sparse": sparse, "bow": bow}
    timing = ways.get(task.work, dense)(task, mx, store)
    store._barrier()
    answer(task, timing)


if __name__ == "__main__":
    main()
