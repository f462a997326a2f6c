"""Admission of trainers: the facts that each brings must be those of the job. No I/O."""

from __future__ import annotations

import msgspec

from bireme.core.text import shortened
from bireme.job.coordination import messages as m
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


def why_not(
    join: m.Join, facts: Facts, present: m.Join | None, known: Facts | None, trainers: int
) -> tuple[str, str] | None:
    """Why a trainer may not join, and how to fix it; None if it may. `present` holds its rank, `known` is the job."""
    if not 0 <= join.trainer < trainers:
        fix = f"start pserver 0 with --num_gradient_servers={join.trainer + 1}, or use a smaller --trainer_id"
        return f"trainer_id {join.trainer}, but this job has trainers 0 to {trainers - 1}", fix
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
