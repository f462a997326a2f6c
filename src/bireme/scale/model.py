"""A job at a scale that no machine here can hold: how long a round takes, and what limits it.

`simulate` runs some rounds in virtual time (rounds.py) over a plan like a real job's (plan.py), with
measured costs (costs.py). It follows the critical path back from the last moment, so shares add up to
the whole. Left out are sparse parameters, snapshots, tests, failures, switches between machines, lost
packets, and other load on the machines. `advise` adds up a round's parts without any queueing, which only events
show: a little below the results of `simulate`, but so fast that every number of pservers can be tried.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from bireme.core.errors import UsageError
from bireme.scale.costs import Costs, load_costs
from bireme.scale.plan import Machines, Plan, Workload
from bireme.scale.ports import Limit, spent
from bireme.scale.rounds import Rounds

__all__ = ["Advice", "Costs", "Limit", "Machines", "Outcome", "Workload", "advise", "load_costs", "simulate"]

GOOD_ENOUGH = 1.05
"""More pservers are not worth it if they would shorten a round by less than this."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """The result of a simulation."""

    round_s: float
    samples_s: float
    efficiency: float
    """The share of the samples that as many trainers would compute if they never waited."""
    shares: dict[Limit, float]
    """Shares of the time by limit, from the largest to the smallest."""
    in_step_s: float
    """A round without stragglers and queueing: the sum of its parts."""

    @property
    def limit(self) -> Limit:
        return next(iter(self.shares))


def simulate(load: Workload, cluster: Machines, costs: Costs, *, rounds: int = 4, seed: int = 0) -> Outcome:
    """Simulate some rounds; the same arguments always give the same outcome."""
    if rounds < 1:
        raise UsageError(f"--rounds is {rounds}: at least one is needed")
    plan = Plan(load, cluster, costs)
    end = Rounds(plan, rounds, seed).run()
    samples_s = rounds * plan.shards * load.batch / end.at
    shares = sorted(((seconds / end.at, limit) for limit, seconds in spent(end).items()), key=lambda s: (-s[0], s[1]))
    return Outcome(
        round_s=end.at / rounds,
        samples_s=samples_s,
        efficiency=samples_s / (cluster.trainers * cluster.samples_s),
        shares={limit: share for share, limit in shares},
        in_step_s=sum_of_parts(plan),
    )


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


def advise(load: Workload, cluster: Machines, costs: Costs) -> Advice:
    """Try every number of pservers from 1 to one for each trainer."""
    rounds = [(count, sum_of_parts(Plan(load, replace(cluster, pservers=count), costs))) for count in _counts(cluster)]
    best = min(seconds for _, seconds in rounds)
    count, seconds = next((n, s) for n, s in rounds if s <= GOOD_ENOUGH * best)
    return Advice(count, seconds, best)


def _counts(cluster: Machines) -> list[int]:
    """All small numbers, then in steps of a fiftieth: the difference between 700 and 701 does not matter."""
    counts = [1]
    while (count := counts[-1] + max(1, counts[-1] // 50)) <= cluster.trainers:
        counts.append(count)
    return counts
