"""The facts of a job that benches alter."""

from __future__ import annotations

from bireme.spec.model import Optimizer, Snapshots
from bireme.spec.terms import Facts

FACTS = Facts(
    name="bench", program="bench", fingerprint="", parameters=(), optimizer=Optimizer(), batch_size=1, evals=(),
    shards=1, trainers=1, pservers=1, ports_num=1, ports_num_for_sparse=0, passes=1, seed=1, output="",
    connect_timeout_s=60.0, snapshots=Snapshots(every_s=0.0),
)  # fmt: skip
