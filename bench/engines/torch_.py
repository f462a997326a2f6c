"""torch over gloo: DistributedDataParallel, or bare all_reduce; every trainer updates a copy of its own.

Sparse, two ways were tried: (ids, rows) all-gathered, padded to the longer list, and the gradient as a
dense table with all_reduce. Gathering is more than four times as fast and is what is timed, for both.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch  # only in the peer's environment
import torch.distributed as dist

from engines import workloads as w
from engines.process import Task, answer, begin, time_steps


class Constant(torch.autograd.Function):  # torch is unknown to the checker
    """Costs nothing forward, and has a gradient that waits in memory: only what DDP does with it is timed."""

    @staticmethod
    def forward(context: Any, values: Any, gradient: Any) -> Any:
        """A number."""
        context.save_for_backward(gradient)
        return values.new_zeros(())

    @staticmethod
    def backward(context: Any, _: Any) -> Any:
        """The constant itself, for the first argument."""
        return context.saved_tensors[0], None


class Flat(torch.nn.Module):
    """One parameter whose gradient is a constant."""

    def __init__(self, size: int, gradient: float) -> None:
        super().__init__()
        self.w = torch.nn.Parameter(torch.zeros(size))
        # No buffer: DDP would overwrite rank 1's with rank 0's.
        self.c = torch.full((size,), gradient)

    def forward(self) -> Any:
        """A number whose derivative by w is taken to be c."""
        return Constant.apply(self.w, self.c)


class Words(torch.nn.Module):
    """Softmax regression on bags of words."""

    def __init__(self) -> None:
        super().__init__()
        self.bag = torch.nn.EmbeddingBag(w.WORDS, w.CLASSES, mode="sum")
        self.bias = torch.nn.Parameter(torch.zeros(w.CLASSES))
        torch.nn.init.zeros_(self.bag.weight)

    def forward(self, ids: Any) -> Any:
        """Logits."""
        return self.bag(ids) + self.bias


def dense_ddp(task: Task) -> dict[str, Any]:
    """Constant gradients through DDP's buckets; the optimizer is local."""
    size = w.DENSE_SIZES[task.work]
    model = Flat(size, w.dense_gradient(task.rank))
    # Buckets as gradients, zeroed rather than dropped, were the fastest of four ways; the rest is DDP's own.
    wrapped = torch.nn.parallel.DistributedDataParallel(model, broadcast_buffers=False, gradient_as_bucket_view=True)
    # DDP averages, the work sums.
    optimizer = torch.optim.SGD(model.parameters(), lr=w.DENSE_RATE * w.TRAINERS)

    def step(_: int) -> None:
        wrapped().backward()
        optimizer.step()

    timing = time_steps(task, step, prepare=lambda: optimizer.zero_grad(set_to_none=False))
    w.check_dense(model.w.detach().numpy(), task.total)
    return timing


def dense_bare(task: Task) -> dict[str, Any]:
    """all_reduce of the gradient, then the update; the sum is written over the gradient, which is put back untimed."""
    size = w.DENSE_SIZES[task.work]
    values, own = torch.zeros(size), torch.full((size,), w.dense_gradient(task.rank))
    total = torch.empty(size)

    def step(_: int) -> None:
        dist.all_reduce(total)
        values.sub_(total, alpha=w.DENSE_RATE)

    timing = time_steps(task, step, prepare=lambda: total.copy_(own))
    w.check_dense(values.numpy(), task.total)
    return timing


def sparse(task: Task) -> dict[str, Any]:
    """Every trainer keeps the table; rows and ids of all are gathered and applied by torch's sparse Adagrad."""
    batches = [w.sparse_batches(rank) for rank in range(w.TRAINERS)]
    table = torch.nn.Parameter(torch.zeros(w.ROWS, w.WIDTH))
    optimizer = torch.optim.Adagrad([table], lr=w.SPARSE_RATE)
    reduce = _gather_rows if task.options.get("sparse", "gather") == "gather" else _reduce_table

    def step(index: int) -> None:
        rows, grads = w.unique_rows(batches[task.rank][index % w.SPARSE_POOL])
        table.grad = reduce(torch.from_numpy(rows), torch.from_numpy(grads))
        optimizer.step()
        table.data[rows]

    timing = time_steps(task, step)
    truth = w.sparse_truth(batches, task.total)
    truth.check(table.detach().numpy()[truth.rows])
    return timing


def _gather_rows(rows: Any, grads: Any) -> Any:
    counts = [torch.zeros(1, dtype=torch.int64) for _ in range(w.TRAINERS)]
    dist.all_gather(counts, torch.tensor([len(rows)]))
    longest = int(max(counts))
    all_rows = [torch.empty(longest, dtype=torch.int64) for _ in counts]
    all_grads = [torch.empty(longest, w.WIDTH) for _ in counts]
    dist.all_gather(all_rows, _pad(rows, longest))
    dist.all_gather(all_grads, _pad(grads, longest))
    ids = torch.cat([part[: int(n)] for part, n in zip(all_rows, counts, strict=True)])
    values = torch.cat([part[: int(n)] for part, n in zip(all_grads, counts, strict=True)])
    return torch.sparse_coo_tensor(ids[None], values, (w.ROWS, w.WIDTH))


def _reduce_table(rows: Any, grads: Any) -> Any:
    # Zeroed on every step: the sum of the step before is in it.
    dense = torch.zeros(w.ROWS, w.WIDTH)
    dense.index_add_(0, rows, grads)
    dist.all_reduce(dense)
    return dense


def _pad(data: Any, length: int) -> Any:
    padded = torch.zeros(length, *data.shape[1:], dtype=data.dtype)
    padded[: len(data)] = data
    return padded


def bow(task: Task) -> dict[str, Any]:
    """Real forward and backward; DDP, or all_reduce of each gradient."""
    model = Words()
    is_ddp = task.options["way"] == "ddp"
    forward = torch.nn.parallel.DistributedDataParallel(model, gradient_as_bucket_view=True) if is_ddp else model
    optimizer = torch.optim.Adam(model.parameters(), lr=w.BOW_RATE)
    batches = [(torch.from_numpy(b.ids), torch.from_numpy(b.labels)) for b in w.bow_batches(task.rank)]

    def step(index: int) -> Any:
        ids, labels = batches[index % len(batches)]
        optimizer.zero_grad(set_to_none=True)
        cost = torch.nn.functional.cross_entropy(forward(ids), labels, reduction="sum")
        cost.backward()
        if not is_ddp:
            _reduce_gradients(model)
        optimizer.step()
        return cost.detach()

    watch = w.CostWatch(step)
    timing = time_steps(task, watch)
    watch.check(task.rank)
    return timing


def _reduce_gradients(model: Any) -> None:
    # One call each: joining them into one vector first was slower.
    for parameter in model.parameters():
        dist.all_reduce(parameter.grad)


def main() -> None:
    """Join the group and do the task."""
    task = begin()
    address = f"tcp://127.0.0.1:{task.ports[0]}"
    dist.init_process_group("gloo", init_method=address, rank=task.rank, world_size=w.TRAINERS)
    ways: dict[str, Callable[[Task], dict[str, Any]]] = {"sparse": sparse, "bow": bow}
    dense = dense_ddp if task.options["way"] == "ddp" else dense_bare
    timing = ways.get(task.work, dense)(task)
    dist.barrier()
    answer(task, timing)


if __name__ == "__main__":
    main()
