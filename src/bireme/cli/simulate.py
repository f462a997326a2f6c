"""`bireme simulate`: a job at another scale, in virtual time."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from bireme.cli.options import json_option, shown
from bireme.cli.output import emit
from bireme.core.errors import UsageError
from bireme.core.text import parse_duration
from bireme.view.plain import count

if TYPE_CHECKING:
    from bireme.scale.model import Advice, Costs, Machines, Outcome, Workload

_BITS = {"k": 1e3, "m": 1e6, "g": 1e9, "t": 1e12}
_CODINGS = ("float32", "float16", "bfloat16", "top_k")


@click.command(epilog="\b\nExample: bireme simulate first-job/job.yaml --trainers 64 --pservers 8 --compute-rate 20000")
@click.argument("job_file", metavar="[JOB.yaml]", required=False, type=Path)
@click.option("--trainers", type=click.IntRange(1, 4096), help="Trainers instead of those in the file.")
@click.option("--pservers", type=click.IntRange(1, 4096), help="Pservers instead of those in the file.")
@click.option("--lanes", type=click.IntRange(1, 64), help="Dense lanes of each pserver, with a core each.")
@shown("--network", metavar="RATE", default="10Gbit", help="Of every network card.")
@shown("--latency", metavar="TIME", default="100us", help="From one machine to another.")
@click.option(
    "--compute-rate",
    type=float,
    help="Samples per second that one trainer computes alone. Left out: as in the job's last run.",
)
@click.option("--spread", type=float, help="Of computing times, as a share. Left out: as measured.")
@click.option("--parameters", type=int, help="Without a file: how many values the model has.")
@click.option("--batch", type=int, help="Samples per shard and round, instead of those in the program.")
@click.option("--gradients", type=click.Choice(_CODINGS), help="On the wire, instead of that in the file.")
@click.option("--costs", "costs_file", type=Path, help="What `./dev bench costs` measured, here or elsewhere.")
@shown("--rounds", type=click.IntRange(1, 1000), default=4, help="How many to simulate.")
@json_option
def simulate(job_file: Path | None, costs_file: Path | None, rounds: int, as_json: bool, **flags: Any) -> None:
    """Predict how a job would do with other numbers of machines, without having them.

    Rounds happen in virtual time, event by event, with costs that were measured on a real machine: how long a round
    takes, what it waits for, and how many pservers the job needs. Every trainer and every pserver is taken to have a
    machine of its own. With more trainers than shards the data is taken to be split again. JOB.yaml
    describes the job; for one that is not written yet its sizes will do:

    \b
    bireme simulate --parameters 138357544 --batch 128 --compute-rate 17.6 --trainers 100 --pservers 20

    Sparse parameters, snapshots, failures and switches between the machines are not in the model.
    """
    from dataclasses import replace

    from bireme.scale.jobs import Sizes, scenario
    from bireme.scale.model import advise, load_costs
    from bireme.scale.model import simulate as run

    costs = load_costs(costs_file)
    if (spread := flags.pop("spread")) is not None:
        if not 0 <= spread <= 1:
            raise UsageError(f"--spread is {spread:g}: it must be from 0 to 1")
        costs = replace(costs, spread=spread)
    network, latency = bits_of(flags.pop("network")), _latency_s(flags.pop("latency"))
    load, cluster = scenario(job_file, Sizes(**flags), network_bit_s=network, latency_s=latency)
    outcome = run(load, cluster, costs, rounds=rounds)
    advice = advise(load, cluster, costs)
    value = _as_json(load, cluster, costs, outcome, advice)
    emit(value, _describe(load, cluster, costs, outcome, advice), as_json=as_json)


def bits_of(text: str) -> float:
    """A rate such as 10Gbit, 2.5G or 800Mbit/s, in bits per second; a bare number could mean anything."""
    match = re.fullmatch(r"([0-9.]+) ?([kmgt])(?:bit|b|bps)?(?:/s)?", text.strip().lower())
    try:
        value = float(match[1]) * _BITS[match[2]] if match else 0.0
    except ValueError:
        value = 0.0
    if value <= 0:
        raise UsageError(f"--network {text}: not a rate above 0 with its unit", fix="write it like 10Gbit or 800Mbit")
    return value


def _latency_s(text: str) -> float:
    try:
        return parse_duration(text, "ns us µs ms s")
    except ValueError as e:
        raise UsageError(f"--latency {text}: not a time", fix="write it with its unit, like 100us or 0.5ms") from e


def _as_json(load: Workload, cluster: Machines, costs: Costs, outcome: Outcome, advice: Advice) -> dict[str, Any]:
    from dataclasses import asdict

    return {
        "job": load.name,
        "parameters": load.values,
        "batch": load.batch,
        "gradients": load.wire.gradients,
        "cluster": asdict(cluster),
        "round_s": outcome.round_s,
        "samples_per_s": outcome.samples_s,
        "efficiency": outcome.efficiency,
        "limit": outcome.limit.words,
        "shares": {limit.words: share for limit, share in outcome.shares.items()},
        "round_s_in_step": outcome.in_step_s,
        "advice": asdict(advice),
        "spread": costs.spread,
        "costs": costs.source,
    }


def _describe(load: Workload, cluster: Machines, costs: Costs, outcome: Outcome, advice: Advice) -> Iterator[str]:
    size = f"{load.values:,} values, batch {load.batch}, gradients as {load.wire.gradients}"
    yield f"{load.name}: {size}; {cluster.trainers:,} trainers at {cluster.samples_s:,.5g} samples/s"
    machines = f"{cluster.pservers:,} pservers with {count(cluster.lanes, 'lane')} each"
    network = f"{cluster.network_bit_s / 1e9:g} Gbit/s, {cluster.latency_s * 1e6:g} µs"
    yield f"{machines}, {network}; computing times spread by {costs.spread:.1%}"
    yield ""
    yield f"time per round       {_time(outcome.round_s)}  (if all kept in step: {_time(outcome.in_step_s)})"
    yield f"samples per second   {outcome.samples_s:,.5g}"
    yield f"parallel efficiency  {outcome.efficiency:.1%}"
    yield ""
    yield "what a round waits for"
    for limit, share in outcome.shares.items():
        yield f"  {limit.words:<18} {share:6.1%}  {'█' * round(40 * share)}".rstrip()
    yield ""
    needed = count(advice.pservers, "pserver") + (", as it has" if advice.pservers == cluster.pservers else "")
    needs, least = f"a round of {_time(advice.round_s)} in step", _time(advice.best_round_s)
    yield f"this job needs {needed}: {needs}, where no number comes below {least}"
    yield f"costs measured on {costs.source}"


def _time(seconds: float) -> str:
    return f"{seconds:.3g} s" if seconds >= 1 else f"{seconds * 1e3:.3g} ms"
