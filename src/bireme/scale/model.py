"""A job at a scale that no machine here can hold: how long a round takes, and what limits it.

`simulate` runs some rounds in virtual time (rounds.py) over a plan like a real job's (plan.py), with
measured costs (costs.py). It follows the critical path back from the last moment, so shares add up to
the whole. Left out are sparse parameters, snapshots, tests, failures, switches between machines, lost
packets, and other load on the machines.
"""

from __future__ import annotations

from dataclasses import dataclass

from bireme.core.errors import UsageError
from bireme.scale.advice import Advice, advise, sum_of_parts
from bireme.scale.costs import Costs, load_costs
from bireme.scale.plan import Cluster, Load, Plan
from bireme.scale.ports import Limit, spent
from bireme.scale.rounds import Rounds

__all__ = ["Advice", "Cluster", "Costs", "Limit", "Load", "Outcome", "advise", "load_costs", "simulate"]


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
    pushed_nbytes: int
    """Through all pservers, in all rounds together."""
    pulled_nbytes: int

    @property
    def limit(self) -> Limit:
        """The limit that takes most of the time."""
        return next(iter(self.shares))


def simulate(load: Load, cluster: Cluster, costs: Costs, *, rounds: int = 4, seed: int = 0) -> Outcome:
    """Simulate some rounds; the same arguments always give the same outcome."""
    if rounds < 1:
        raise UsageError(f"--rounds is {rounds}: at least one is needed")
    plan = Plan(load, cluster, costs)
    run = Rounds(plan, rounds, seed)
    end = run.run()
    samples_s = rounds * plan.shards * load.batch / end.at
    shares = sorted(((seconds / end.at, limit) for limit, seconds in spent(end).items()), key=lambda s: (-s[0], s[1]))
    return Outcome(
        round_s=end.at / rounds,
        samples_s=samples_s,
        efficiency=samples_s / (cluster.trainers * cluster.samples_s),
        shares={limit: share for share, limit in shares},
        in_step_s=sum_of_parts(plan),
        pushed_nbytes=sum(port.nbytes for port in run.inward),
        pulled_nbytes=sum(port.nbytes for port in run.outward),
    )
