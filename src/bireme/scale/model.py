"""A job at a scale that no machine here can hold: how long a round takes, and what it waits for.

`simulate` lets some rounds happen in virtual time (scale_rounds.py) over a plan like a real job's
(scale_plan.py), with costs that were measured (scale_costs.py). The way to the last moment
is followed back through everything that held something else up, so shares add up to the whole.
Left out are sparse parameters, snapshots, tests, failures, switches between machines, packets
that get lost, and machines that do something else besides.
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
    """What a job came to at a scale."""

    round_s: float
    samples_s: float
    efficiency: float
    """Of what as many trainers would compute if they never waited."""
    shares: dict[Limit, float]
    """Of the time, by what it went to; from the largest to the smallest."""
    in_step_s: float
    """A round in which nobody is late and nobody stands behind anybody: the sum of its parts."""
    pushed_nbytes: int
    """Through all pservers, in all rounds together."""
    pulled_nbytes: int

    @property
    def limit(self) -> Limit:
        """What most of the time goes to."""
        return next(iter(self.shares))


def simulate(load: Load, cluster: Cluster, costs: Costs, *, rounds: int = 4, seed: int = 0) -> Outcome:
    """Let some rounds happen; the same arguments always give the same outcome."""
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
