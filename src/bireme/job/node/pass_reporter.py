"""A trainer's output: lines in train.log for people's scripts, reports to the coordinator, models on the disk.

The lines keep the original's shape:

     Batch=50 samples=6400 AvgCost=0.61 CurrentCost=0.58 Eval: …=0.3  CurrentEval: …=0.28
     Pass=0 Batch=63 samples=8000 AvgCost=0.55 Eval: …=0.26
     Test samples=2400 cost=0.41 Eval: …=0.19
"""

from __future__ import annotations

import logging
import math
import queue
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

import msgspec
import numpy as np
from numpy.typing import NDArray

from bireme.core import faults
from bireme.core.errors import NetworkError
from bireme.core.files import storage_errors, sync_directory
from bireme.job.coordination import messages as m
from bireme.job.node.trainer_options import TrainerOptions
from bireme.job.output.kept import drop_models
from bireme.job.output.model import Array, pass_name, save_model, table_arrays
from bireme.ps.client.push_pull import Position
from bireme.ps.lanes.slow_trainers import Slowest
from bireme.train.loop import PassResult, Tables
from bireme.train.worker import Running, Worker

log = logging.getLogger(__name__)
REPORT_EVERY_S = 0.2
Reply = TypeVar("Reply", m.PassClosed, m.Counted)


def evals_text(totals: Running) -> str:
    """Evaluators as `name=mean`, six significant digits as the original prints them."""
    return "  ".join(f"{name}={value / max(totals.samples, 1):g}" for name, value in totals.evals.items())


def difference(now: Running, before: Running) -> Running:
    evals = {name: value - before.evals.get(name, 0.0) for name, value in now.evals.items()}
    return Running(now.samples - before.samples, now.cost - before.cost, evals)


class PassReporter:
    """The loop's listener in a trainer process."""

    def __init__(
        self,
        control: m.Line,
        options: TrainerOptions,
        begin: m.Begin,
        worker: Worker,
        slowest_pserver: Callable[[], Slowest | None],
        *,
        is_exact: bool,
    ) -> None:
        """Report in the view of `begin`; `is_exact`: the same pass always ends with the same values."""
        self._control = control
        self._options, self._job, self._trainer = options, options.job, options.trainer
        self._begin = begin
        self._worker = worker
        self._slowest_pserver = slowest_pserver
        self._is_exact = is_exact
        self.closed: queue.Queue[m.PassClosed | m.Counted | None] = queue.Queue()
        """The coordinator's replies about passes, put here by the listening thread; None: the view ended."""
        self._logged = Running()
        self._reported = (time.monotonic(), 0)
        self._pushed = 0
        """Rounds in this view: all but the last of them are closed."""

    def round_done(self, at: Position, batches: int, totals: Running) -> None:
        """Log every log_period rounds, report a few times a second."""
        number = at.batch + 1
        self._pushed += 1
        if number == 1:
            self._logged = Running()
            self._reported = (self._reported[0], 0)
        if number % self._job.log_period == 0:
            current = difference(totals, self._logged)
            log.info(
                " Batch=%d samples=%d AvgCost=%g CurrentCost=%g Eval: %s  CurrentEval: %s",
                number, totals.samples, totals.cost / max(totals.samples, 1), current.cost / max(current.samples, 1),
                evals_text(totals), evals_text(current),
            )  # fmt: skip
            self._logged = replace(totals, evals=dict(totals.evals))
        # 2: then the first round of this view is closed, and the job has recovered.
        if number == batches or self._pushed == 2 or time.monotonic() - self._reported[0] >= REPORT_EVERY_S:
            self._report(at, batches, totals)

    def _report(self, at: Position, batches: int, totals: Running) -> None:
        now = time.monotonic()
        then, samples = self._reported
        self._reported = (now, totals.samples)
        self._control.send(
            m.Progress(
                trainer=self._trainer, pass_id=at.pass_id, batch=at.batch + 1, batches=batches,
                samples=totals.samples, cost=totals.cost, evals=tuple(totals.evals.values()),
                rate=(totals.samples - samples) / max(now - then, 1e-6), view=self._begin.view, round=at.round,
                closed=self._pushed - 1, slowest_pserver=self._slowest_pserver(),
            )
        )  # fmt: skip

    def pass_done(self, result: PassResult, values: NDArray[np.float32], tables: Tables) -> None:
        """Log and report the end of a pass; trainer 0 also saves the model before it continues."""
        totals = result.totals
        log.info(
            " Pass=%d Batch=%d samples=%d AvgCost=%g Eval: %s", result.pass_id, result.batches, totals.samples,
            totals.cost / max(totals.samples, 1), evals_text(totals),
        )  # fmt: skip
        if (test := result.test) is not None:
            mean = test.cost / max(test.samples, 1)
            log.info(" Test samples=%d cost=%g Eval: %s", test.samples, mean, evals_text(test))
        if result.pass_id <= self._begin.saved:
            return  # it was saved before a rewind to a cut within it
        cost = test.cost if test and math.isfinite(test.cost) else None
        self._control.send(
            m.PassDone(
                trainer=self._trainer, pass_id=result.pass_id, round=result.round,
                read={shard: counts.read for shard, counts in result.ledger.items()},
                trained={shard: counts.trained for shard, counts in result.ledger.items()},
                test=m.Sum(samples=test.samples, cost=cost, evals=test.evals) if test else None,
                wire_error=result.wire_error, spent=dict(result.spent),
            )
        )  # fmt: skip
        if self._trainer == 0:
            self._save(result.pass_id, values, tables)

    def _save(self, pass_id: int, values: NDArray[np.float32], tables: Tables) -> None:
        closed = self._await(m.PassClosed, pass_id)
        output = Path(self._job.output)
        self._write(output / pass_name(pass_id), closed, values, tables)
        faults.at("model.saved")
        self._control.send(m.Saved(trainer=self._trainer, pass_id=pass_id))
        # Wait until the pass is in the ledger: if Saved is lost, this trainer can repeat it only while lanes still hold
        # the parameters that end this pass.
        self._await(m.Counted, pass_id)
        drop_models(output, pass_id, self._job.keep, needs_costs=bool(self._job.stop_after))

    def _write(self, target: Path, closed: m.PassClosed, values: NDArray[np.float32], tables: Tables) -> None:
        if not self._is_exact and (target / "done").is_file():
            # Saved before a rewind, and not in the ledger yet: either model is a correct result of the pass.
            with storage_errors(str(target)):
                sync_directory(target.parent)
            return
        log.info("Saving parameters to %s", target)
        arrays: dict[str, Array] = dict(self._worker.layout.views(values))
        for parameter, block in zip(self._worker.tables, tables(), strict=True):
            arrays |= table_arrays(parameter, self._job.seed, block)
        metrics: Mapping[str, object] = msgspec.to_builtins(closed)
        # The incarnation: our predecessor or successor may be writing the same model at the same time.
        save_model(target, arrays, Path(self._job.config), metrics, incarnation=self._options.incarnation)

    def _await(self, kind: type[Reply], pass_id: int) -> Reply:
        while (reply := self.closed.get()) is not None:
            if isinstance(reply, kind) and reply.pass_id == pass_id:
                return reply
        raise NetworkError("the view ended at the end of a pass")
