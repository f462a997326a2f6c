"""Which engines there are, which processes each consists of, and which arguments each needs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from engines.running import Part, Run
from engines.workloads import SERVERS, TRAINERS

HOST = "127.0.0.1"
OURS = "ours"


@dataclass(frozen=True)
class Engine:
    """One engine; `home` names its environment, and is empty for our own."""

    name: str
    module: str
    home: str
    roles: Sequence[tuple[str, int]]
    """Role and how many of it; the last one answers."""
    options: Mapping[str, str] = field(default_factory=dict)

    def run(self, work: str, steps: int, warmup: int, python: str, ports: Sequence[int]) -> Run:
        """Everything that is needed to run it once."""
        last = self.roles[-1][0]
        parts = [
            Part(role, rank, role == last, self._environment(role, rank, ports))
            for role, count in self.roles
            for rank in range(count)
        ]
        return Run(python, self.module, parts, work, warmup, steps, self.options)

    def _environment(self, role: str, rank: int, ports: Sequence[int]) -> dict[str, str]:
        if self.home == "torch":
            return {"GLOO_SOCKET_IFNAME": "lo"}
        if self.home == "ray":
            return {"RAY_USAGE_STATS_ENABLED": "0", "RAY_DEDUP_LOGS": "0"}
        if self.home != "mxnet":
            return {}
        return {
            "DMLC_ROLE": role,
            "DMLC_WORKER_ID": str(rank),
            "DMLC_PS_ROOT_URI": HOST,
            "DMLC_PS_ROOT_PORT": str(ports[0]),
            "DMLC_NODE_HOST": HOST,
            "DMLC_NUM_SERVER": str(SERVERS),
            "DMLC_NUM_WORKER": str(TRAINERS),
            "MXNET_KVSTORE_BIGARRAY_BOUND": "100000",
        }


def ours(place: str) -> Engine:
    """Our engine with pservers reached as between machines ("tcp") or in the best way on one ("local")."""
    return Engine(OURS, "ours", "", (("pserver", SERVERS), ("trainer", TRAINERS)), {"place": place})


PEERS = (
    Engine("torch-ddp", "torch_", "torch", (("trainer", TRAINERS),), {"way": "ddp"}),
    Engine("torch-all-reduce", "torch_", "torch", (("trainer", TRAINERS),), {"way": "bare"}),
    Engine("mxnet", "mxnet_", "mxnet", (("scheduler", 1), ("server", SERVERS), ("worker", TRAINERS))),
    Engine("tensorflow", "tensorflow_", "tensorflow", (("ps", SERVERS), ("worker", TRAINERS), ("chief", 1))),
    Engine("ray", "ray_", "ray", (("driver", 1),)),
)
