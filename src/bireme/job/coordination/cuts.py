"""Collects pservers' parts of a cut; a complete cut becomes the manifest to commit. No I/O."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

from bireme.job.coordination import messages as m
from bireme.job.output.manifest import EndedPass, Inputs, Manifest, PartRecord, rules_hash
from bireme.ps.lanes.rounds import PassTotals
from bireme.ps.setup import Setup
from bireme.ps.snapshot.writer import FileWritten
from bireme.spec.terms import Facts

ASK_AGAIN_S = 1.0
"""Repeat CutSoon after so long: pservers may have skipped the requested cut, or lost a part of it."""


class CutFailure(NamedTuple):
    """A cut that could not be committed."""

    round: int
    what: str


class Cuts:
    """One history's cuts: parts of incomplete ones, by round, and the newest committed one."""

    def __init__(self) -> None:
        self._parts: dict[int, dict[int, m.CutPart]] = {}
        self.newest: Manifest | None = None
        self._wanted: int | None = None
        self._asked_s = -math.inf

    @property
    def is_wanted(self) -> bool:
        return self._wanted is not None

    def want(self, round_: int) -> None:
        self._wanted = max(round_, self._wanted or 0)

    def is_to_be_asked(self, now_s: float) -> bool:
        if not self.is_wanted or now_s - self._asked_s < ASK_AGAIN_S:
            return False
        self._asked_s = now_s
        return True

    def add(self, part: m.CutPart, pservers: int) -> list[m.CutPart] | None:
        """Add a part; once the cut is complete, return all of its parts in the order of pservers."""
        parts = self._parts.setdefault(part.round, {})
        parts[part.pserver] = part
        if len(parts) < pservers or not all(one.sha256 for one in parts.values()):
            return None
        # Pservers write parts in the order of rounds, so older incomplete cuts will never be completed.
        self._parts = {round_: some for round_, some in self._parts.items() if round_ > part.round}
        return [parts[rank] for rank in sorted(parts)]

    def committed(self, manifest: Manifest) -> None:
        """Note a committed cut; it fulfils a request for its round or an earlier one."""
        if self.newest is None or manifest.round > self.newest.round:
            self.newest = manifest
        if self._wanted is not None and manifest.round >= self._wanted:
            self._wanted = None

    def base_of(self, parts: Sequence[m.CutPart]) -> tuple[str, ...]:
        """The snapshots that a complete cut builds on: none, or the newest one and all that it builds on itself.

        Lanes that had not received Committed for the newest one hold changes since an earlier one: more than is
        needed, and correct all the same.
        """
        if self.newest is None or not any(part.is_delta for part in parts):
            return ()
        return (*self.newest.base, self.newest.name)


def part_of(setup: Setup, done: FileWritten) -> m.CutPart:
    counts, written = done.counts, done.written
    return m.CutPart(
        pserver=setup.pserver,
        history=setup.view,
        round=counts.round,
        pass_id=counts.pass_id,
        batch=0 if done.ends_pass else counts.round - counts.pass_start,
        samples=counts.samples,
        ends_pass=done.ends_pass,
        file=done.path.name if written else "",
        sha256=written.sha256 if written else "",
        nbytes=written.nbytes if written else 0,
        is_delta=done.is_delta,
        failure=done.failure,
    )


def manifest_of(
    facts: Facts, incarnation: int, parts: Sequence[m.CutPart], ended: PassTotals | None, base: tuple[str, ...]
) -> Manifest:
    """The manifest of a complete cut; `ended` has the totals of the pass that ended with it, if one did."""
    last = parts[-1]
    return Manifest(
        job=facts.name,
        round=last.round,
        pass_id=last.pass_id,
        batch=last.batch,
        samples=last.samples,
        view=last.history,
        incarnation=incarnation,
        inputs=inputs_of(facts),
        pservers=facts.pservers,
        dense_lanes=facts.ports_num,
        sparse_lanes=facts.ports_num_for_sparse,
        parts=tuple(
            PartRecord(file=part.file, sha256=part.sha256, nbytes=part.nbytes, pserver=part.pserver) for part in parts
        ),
        base=base,
        ended=EndedPass.of(ended) if ended else None,
    )


def inputs_of(facts: Facts) -> Inputs:
    return Inputs(
        program=facts.fingerprint,
        data=facts.data_fingerprint,
        rules=rules_hash(facts.parameters, facts.optimizer, facts.updates, facts.wire),
        shards=facts.shards,
        seed=facts.seed,
    )
