"""How many pservers a job needs, by the sum of the times of a round's parts, without any queueing.

The sums leave out queueing, which only events show, so they are a little below the results of `simulate`;
but they take no time, so that every number of pservers can be tried.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from bireme.scale.costs import Costs
from bireme.scale.plan import Cluster, Load, Plan

GOOD_ENOUGH = 1.05
"""More pservers are not worth it if they would shorten a round by less than this."""


@dataclass(frozen=True, slots=True)
class Advice:
    """The fewest pservers with which a round is nearly as short as with any number of them."""

    pservers: int
    round_s: float
    best_round_s: float


def sum_of_parts(plan: Plan) -> float:
    """Seconds for a round in which all trainers keep in step."""
    cluster, costs = plan.cluster, plan.costs
    (sends, receives), (takes, gives) = plan.trainer_rates(), plan.pserver_rates()
    lanes, own = range(len(plan.slices)), range(cluster.lanes)  # of the first pserver; others' are as large
    mine, rows = len(plan.rows[0]), sum(map(len, plan.rows))
    largest = max(plan.rows[0], key=lambda row: len(row.shards))
    return sum(
        [
            sum(map(plan.compute_s, plan.rows[0])) + mine * plan.encode_s(),
            max(
                mine * sum(plan.push_nbytes(lane, largest) for lane in lanes) / sends.bytes_s,
                rows * sum(plan.push_nbytes(lane, largest) for lane in own) / takes.bytes_s,
            ),
            plan.kernel_s(len(lanes) - 1),
            max(
                sum(map(plan.pull_nbytes, lanes)) / receives.bytes_s,
                cluster.trainers * sum(map(plan.pull_nbytes, own)) / gives.bytes_s,
            ),
            costs.frame * (len(lanes) * (mine + 1) + 2 + cluster.lanes * cluster.trainers),
            2 * (cluster.latency_s + costs.wake),
        ]
    )


def advise(load: Load, cluster: Cluster, costs: Costs) -> Advice:
    """Try every number of pservers from 1 to one for each trainer."""
    rounds = [(count, sum_of_parts(Plan(load, replace(cluster, pservers=count), costs))) for count in _counts(cluster)]
    best = min(seconds for _, seconds in rounds)
    count, seconds = next((n, s) for n, s in rounds if s <= GOOD_ENOUGH * best)
    return Advice(count, seconds, best)


def _counts(cluster: Cluster) -> list[int]:
    """All small numbers, then in steps of a fiftieth: the difference between 700 and 701 does not matter."""
    counts, count = [], 1
    while count <= max(cluster.trainers, 1):
        counts.append(count)
        count += max(1, count // 50)
    return counts
