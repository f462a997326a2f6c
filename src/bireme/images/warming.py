"""Compile every kernel once, so that an image carries the machine code: `python -m bireme.images.warming`.

Runs in the image's own root file system, where paths and versions are those that Numba will look for later.
Each part of bireme has a `warm` for a job's first round; this calls it for all methods and codings.
"""

from __future__ import annotations

from typing import get_args


def warm_all() -> None:
    """Compile the kernels of every optimizer, dense and sparse, of every coding, and of the bag of words."""
    from bireme.ps.optim import methods, optimizers
    from bireme.ps.sparse import row_sums, table
    from bireme.ps.wire import codec
    from bireme.spec.model import Coding, Optimizer

    row_sums.warm()
    for coding in get_args(Coding):
        codec.warm(coding)
    for method in methods.METHODS:
        optimizers.warm(Optimizer(method=method))
    for method in table.METHODS:
        _warm_table(method)
    _warm_bag_of_words()


def _warm_table(method: str) -> None:
    import numpy as np

    from bireme.ps.optim import methods
    from bireme.ps.sparse import table
    from bireme.spec.model import Optimizer, Parameter, Rows

    # So little momentum that the clock of lazy momentum starts anew at once; rows that are soon forgotten.
    momentum = 1e-7 if methods.METHODS[method].rows == "catch up" else 0.0
    rows = Parameter(name="warm", shape=(1000, 2), momentum=momentum, l2=0.1, rows=Rows(evict_after=1))
    table.warm(rows, Optimizer(method=method))
    one = table.Table(rows, Optimizer(method=method), 0)
    for round_ in range(4):
        one.apply(np.array([round_], np.uint64), np.zeros((1, 2), np.float32), 0.0, round_)


def _warm_bag_of_words() -> None:
    import numpy as np

    from bireme.programs import bow

    weight, bias = np.zeros((2, 2), np.float32), np.zeros(2, np.float32)
    ids, offsets = np.zeros(1, np.int32), np.array([0, 1], np.int64)
    bags = (ids, offsets, np.zeros(0, np.float32))
    labels, model = np.zeros(1, np.int32), (weight, bias)
    bow._step(model, bags, labels, (weight.copy(), bias.copy()))
    bow._evaluate(model, bags, labels)
    bow._predict(model, bags, np.zeros((1, 2), np.float32))


if __name__ == "__main__":
    warm_all()
