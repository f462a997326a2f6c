"""Admission of trainers, and the SetUp and Begin messages that follow from the job's facts. No I/O."""

from __future__ import annotations

import msgspec

from bireme.core.text import shortened
from bireme.job.coordination import messages as m
from bireme.job.coordination.effects import Base
from bireme.ps.setup import Setup
from bireme.ps.tree import share_out
from bireme.spec.terms import Facts, JobTerms

_TRAINER_0_KNOWS = ("output", "start_samples")
"""Facts taken from trainer 0 alone, which reads and writes models; others may differ."""

_TERMS = frozenset(JobTerms.__struct_fields__) - {"name"}
_OTHER_PROGRAM = (
    "its config, or a file that the config reads such as dict.txt, is not that of the trainers that came before it"
)


def settle_facts(facts: Facts, trainers: int) -> Facts:
    """Facts with the counts filled in: as in the original, only pservers know how many were started by hand."""
    return msgspec.structs.replace(facts, trainers=trainers, shards=trainers) if facts.trainers == 0 else facts


def wrong_rank(rank: int, trainers: int) -> tuple[str, str] | None:
    """What is wrong with a rank, and how to fix it; None if nothing is."""
    if 0 <= rank < trainers:
        return None
    return (
        f"trainer_id {rank}, but this job has trainers 0 to {trainers - 1}",
        f"start pserver 0 with --num_gradient_servers={rank + 1}, or use a smaller --trainer_id",
    )


def why_not(
    join: m.Join, facts: Facts, present: m.Join | None, known: Facts | None, trainers: int
) -> tuple[str, str] | None:
    """Why a trainer may not join, and how to fix it; None if it may. `present` holds its rank, `known` is the job."""
    wrong = wrong_rank(join.trainer, trainers)
    if wrong:
        return wrong
    if present is not None and not _is_later(present, join):
        return f"trainer {join.trainer} has joined already", "give each trainer its own --trainer_id"
    if facts.shards < facts.trainers:
        return f"{facts.trainers} trainers but only {facts.shards} data shards", ""
    differs = difference(known, facts, trainers)
    if differs:
        fix = "give all trainers the same config and flags"
        if differs == _OTHER_PROGRAM:
            fix += ", and all shards the same files; `bireme data check DIR` finds those that differ"
        return f"trainer {join.trainer} runs another job: {differs}", fix
    return None


def _is_later(present: m.Join, join: m.Join) -> bool:
    """Whether `join` is from the successor of `present`, or from the same process after a lost connection.

    Trainers started by hand have no incarnation: a second one with the same id is a mistake. Where there are
    incarnations they decide alone: in containers a successor has its predecessor's host name and process id.
    """
    if join.incarnation or present.incarnation:
        return join.incarnation >= present.incarnation
    return (present.pid, present.host) == (join.pid, join.host)


def difference(ours: Facts | None, theirs: Facts, trainers: int) -> str:
    """How a trainer's facts differ from those of the others; '' if they agree."""
    if theirs.trainers != trainers:
        return f"it counts {theirs.trainers} trainers, pserver 0 counts {trainers}"
    if ours is None:
        return ""
    left, right = msgspec.to_builtins(ours), msgspec.to_builtins(theirs)
    for name in sorted(left, key=_TERMS.__contains__):  # what the program says explains terms that follow from it
        if left[name] != right[name] and name not in _TRAINER_0_KNOWS:
            if name == "fingerprint":
                return _OTHER_PROGRAM
            there, others = (shortened(repr(facts[name]), 60) for facts in (right, left))
            return f"`{name}` is {there} there and {others} with the others"
    return ""


def setup_of(facts: Facts, ids: tuple[int, int], rank: int, base: Base) -> Setup:
    """A pserver's SetUp for a view that resumes from `base`; `ids` are the job's and the view's."""
    shares = share_out(facts.shards, facts.trainers)
    return Setup(job=ids[0], view=ids[1], pserver=rank, facts=facts, shares=shares, base=base.files)


def begin_of(
    facts: Facts, ids: tuple[int, int], pservers: tuple[m.Address, ...], *, saved: int, has_base: bool
) -> m.Begin:
    """The trainers' Begin for a view whose pservers are ready."""
    return m.Begin(
        job=ids[0],
        view=ids[1],
        shares=share_out(facts.shards, facts.trainers),
        pservers=pservers,
        wants_values=facts.is_set_by_trainer and not has_base,
        start_samples=facts.start_samples,
        saved=saved,
    )
