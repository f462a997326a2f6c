"""The best pass, the passes whose models are kept (all, the last ones, or the best one and the last), early stopping.

The last pass that counts is always kept, as a job resumes from there, and so is the one with the lowest test cost where
the end of the job depends on it. Others are renamed before they are deleted: a crash must not leave half a `pass-N`.
"""

from __future__ import annotations

import logging
import math
import shutil
from collections.abc import Iterable, Mapping
from pathlib import Path

import msgspec

from bireme.job.status import PassSummary

log = logging.getLogger(__name__)
Metrics = Mapping[int, PassSummary]
"""The contents of metrics.json by pass."""


def metrics_in(output: Path) -> dict[int, PassSummary]:
    from bireme.job.output.model import finished_passes, pass_name  # here: it imports NumPy, `bireme list` need not

    summaries = {pass_id: summary_of(output / pass_name(pass_id)) for pass_id in sorted(finished_passes(output))}
    return {pass_id: summary for pass_id, summary in summaries.items() if summary is not None}


def summary_of(model: Path) -> PassSummary | None:
    """The metrics.json of a model; None where it cannot be read, which `bireme verify` reports."""
    try:
        return msgspec.json.decode((model / "metrics.json").read_bytes(), type=PassSummary)
    except (OSError, msgspec.MsgspecError):
        return None


def best_of(metrics: Metrics) -> tuple[int, str, float] | None:
    """The pass with the lowest test error; without tests, with the lowest cost. Of equals the first.

    Returns its number, the name of the value compared, and the value.
    """
    passes = sorted(metrics.items())
    for name in ("test error", "test cost", "cost"):
        values = [value for _, each in passes if (value := getattr(each, name.replace(" ", "_"))) is not None]
        if passes and len(values) == len(passes):
            best = values.index(min(values))
            return passes[best][0], name, values[best]
    return None


def passes_kept(metrics: Metrics, keep: str, *, needs_costs: bool = False) -> set[int]:
    """The passes whose models are kept by `keep`: `all`, `best` or `last N`."""
    if keep == "all" or not metrics:
        return set(metrics)
    kept = {max(metrics)}
    if keep == "best":
        best = best_of(metrics)
        kept |= {best[0]} if best else set(metrics)
    else:
        kept |= set(sorted(metrics)[-int(keep.split()[1]) :])
    costs = {pass_id: each.test_cost for pass_id, each in metrics.items() if each.test_cost is not None}
    return kept | ({_cheapest(costs)} if needs_costs and costs else set())


def early_end(costs: Mapping[int, float | None], stop_after: int) -> str:
    """Why a job ends after these test costs: the last `stop_after` passes have none lower than one before; else ''.

    A cost that is not a number (None) is no better than any. It depends on the costs alone, so a job ends at the same
    pass in every layout, also if it was killed on the way and resumed.
    """
    if not stop_after or not costs or max(costs) - _cheapest(costs) < stop_after:
        return ""
    return f"no better test cost for {stop_after} {'pass' if stop_after == 1 else 'passes'}"


def _cheapest(costs: Mapping[int, float | None]) -> int:
    """The pass with the lowest cost, of equals the first."""
    values = {pass_id: math.inf if cost is None else cost for pass_id, cost in costs.items()}
    return min(values, key=lambda pass_id: (values[pass_id], pass_id))


def drop_models(output: Path, counted: int, keep: str, *, needs_costs: bool) -> None:
    """Delete the other models of passes up to `counted`; a model that cannot be deleted is no error."""
    if keep == "all":
        return
    metrics = {pass_id: each for pass_id, each in metrics_in(output).items() if pass_id <= counted}
    try:
        _drop(output, sorted(metrics.keys() - passes_kept(metrics, keep, needs_costs=needs_costs)))
    except OSError as e:
        log.warning("failed to delete models cause=%r", str(e))


def _drop(output: Path, passes: Iterable[int]) -> None:
    from bireme.job.output.model import pass_name

    for left in output.glob(".pass-*.dropped.tmp"):  # left by a crash
        shutil.rmtree(left)
    for pass_id in passes:
        path = output / pass_name(pass_id)
        # Renamed first: readers see a whole model or none, also if this process dies half-way.
        shutil.rmtree(path.replace(path.with_name(f".{path.name}.dropped.tmp")))
