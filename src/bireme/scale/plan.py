"""A job at a scale, in numbers: the bytes and rates of each transfer, and the times of kernels.

The same plan as a real job's: `Layout` cuts slices, the tree hands out shards and counts rows.
The properties of machines (network, latency, rate of computing) are a `Cluster`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from functools import cached_property, lru_cache

from bireme.core.errors import UsageError
from bireme.ps.plan import Layout
from bireme.ps.setup import is_apart
from bireme.ps.tree import Span, rows_of, share_out
from bireme.ps.wire.frames import HEAD_NBYTES, RECORD_NBYTES
from bireme.scale.costs import Costs
from bireme.scale.ports import Limit, Rate
from bireme.spec.model import Parameter, Updates, Wire

GOODPUT = 1448 / 1538
"""Of a wire's bits, the share that is payload: the rest are heads of TCP, IP and Ethernet at an MTU of 1,500."""


@dataclass(frozen=True, slots=True)
class Workload:
    """A job's demands on any cluster."""

    name: str
    values: int
    """Floats in all dense parameters."""
    batch: int
    """Samples per shard and round."""
    shards: int = 1
    """The least number of shards; every trainer has one or more."""
    method: str = "momentum"
    wire: Wire = field(default_factory=Wire)


@dataclass(frozen=True, slots=True)
class Machines:
    """Machines: each trainer and each pserver has one, with a network card of its own."""

    trainers: int
    pservers: int
    lanes: int = 1
    """Dense lanes of a pserver, with a core each."""
    network_bit_s: float = 10e9
    latency_s: float = 100e-6
    samples_s: float = 1000.0
    """Samples per second that a trainer computes if it never waits."""


class Plan:
    """All sizes, rates and times of a load on a cluster."""

    def __init__(self, load: Workload, cluster: Machines, costs: Costs) -> None:
        _check(load, cluster)
        self.load, self.cluster, self.costs = load, cluster, costs
        self.shards = max(load.shards, cluster.trainers)
        self.rows = _rows(self.shards, cluster.trainers, is_apart=is_apart(Updates(), load.wire))
        """The rows that each trainer sends in a round."""

    @cached_property
    def slices(self) -> list[int]:
        """Floats of each lane, those of one pserver beside each other."""
        layout = Layout([Parameter(name="all", shape=(self.load.values,))])
        return [len(part) for part in layout.slices(self.cluster.pservers * self.cluster.lanes)]

    def first_lane(self, trainer: int) -> int:
        """The lane that a trainer serves first; they differ, so that not all begin with the same one."""
        return self.rows[trainer][0].lo % len(self.slices)

    def compute_s(self, row: Span) -> float:
        return len(row.shards) * self.load.batch / self.cluster.samples_s

    def push_nbytes(self, lane: int, row: Span) -> int:
        return HEAD_NBYTES + RECORD_NBYTES * len(row.shards) + self.coded_nbytes(self.slices[lane])

    def coded_nbytes(self, floats: int) -> int:
        """The bytes of so many floats of a gradient on the wire; for top_k, if its picks are spread evenly."""
        match self.load.wire.gradients:
            case "float32":
                return 4 * floats
            case "top_k":
                return 8 * math.ceil(self.load.wire.top_k * floats)
            case _:
                return 2 * floats

    def pull_nbytes(self, lane: int) -> int:
        return HEAD_NBYTES + 4 * self.slices[lane]

    def encode_s(self) -> float:
        return self.costs.encode.get(self.load.wire.gradients, 0.0) * sum(self.slices)

    def kernel_s(self, lane: int) -> float:
        """Seconds from the last row of a round to fresh parameters."""
        costs, further = self.costs, max(sum(map(len, self.rows)) - 2, 0)
        per_float = costs.kernel_of(self.load.method) + further * costs.kernel_row
        return costs.kernel_start + per_float * self.slices[lane]

    def _rate(self, nic: Limit, cpu: Limit, seconds_per_byte: float, cores: int) -> Rate:
        card = Rate(self.cluster.network_bit_s / 8 * GOODPUT, nic)
        processor = Rate(cores / seconds_per_byte if seconds_per_byte else math.inf, cpu)
        return card if card.bytes_s <= processor.bytes_s else processor

    def trainer_rates(self) -> tuple[Rate, Rate]:
        """To send, and to receive."""
        nic, cpu = Limit.TRAINER_NIC, Limit.TRAINER_CPU
        return self._rate(nic, cpu, self.costs.send, 1), self._rate(nic, cpu, self.costs.receive, 1)

    def pserver_rates(self) -> tuple[Rate, Rate]:
        """To receive, and to send."""
        nic, cpu, costs, cores = Limit.PSERVER_NIC, Limit.LANE_CPU, self.costs, self.cluster.lanes
        floats = max(self.slices)
        decode = costs.decode.get(self.load.wire.gradients, 0.0) * floats / max(self.coded_nbytes(floats), 1)
        return self._rate(nic, cpu, costs.receive + decode, cores), self._rate(nic, cpu, costs.send, cores)


@lru_cache(maxsize=8)
def _rows(shards: int, trainers: int, *, is_apart: bool) -> tuple[list[Span], ...]:
    return tuple(rows_of(share, shards, is_apart=is_apart) for share in share_out(shards, trainers))


def _check(load: Workload, cluster: Machines) -> None:
    positive = {
        "trainers": cluster.trainers,
        "pservers": cluster.pservers,
        "lanes": cluster.lanes,
        "network": cluster.network_bit_s,
        "compute-rate": cluster.samples_s,
        "parameters": load.values,
        "batch": load.batch,
    }
    for name, value in positive.items():
        if not 0 < value < math.inf:
            raise UsageError(f"--{name} is {value:g}: it must be above 0")
    if not 0 <= cluster.latency_s < math.inf:
        raise UsageError(f"--latency is {cluster.latency_s:g} s: it must not be below 0")
