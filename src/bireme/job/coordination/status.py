"""The job's current status, from the coordinator's state. No I/O."""

from __future__ import annotations

import msgspec

from bireme.job.coordination.coordinator import Coordinator
from bireme.job.coordination.members import Trainer
from bireme.job.status import ENDED, JobStatus, PserverStatus, TrainerStatus
from bireme.ps.lanes.slow_trainers import STRAGGLES_ABOVE, Awaited

SILENT_S = 3.0
"""A member without a heartbeat for so long is named."""


def status_of(machine: Coordinator, now_s: float, late: Awaited | None = None) -> JobStatus:
    """The status now; `late` lists the trainers that the first lane waits for."""
    facts, members = machine.facts, machine.members
    progress = [t.progress for t in members.trainers.values() if t.progress]
    newest, failure = machine.snapshot_round, machine.cut_failure
    since = f"no snapshot since round {newest}" if newest is not None else "no snapshot yet"
    return JobStatus(
        phase=machine.phase,
        reason=machine.reason,
        job=facts.name if facts else "",
        view=machine.view,
        seconds=round(now_s - machine.begun_s, 3) if machine.begun_s else 0.0,
        first_pass=facts.start_pass if facts else 0,
        passes=facts.passes - facts.start_pass if facts else 0,
        pass_id=max((p.pass_id for p in progress), default=0),
        round=max((p.round for p in progress), default=0),
        trainers=tuple(_trainer(rank, t, now_s) for rank, t in sorted(members.trainers.items())),
        trainers_missing=tuple(rank for rank in range(machine.expected) if rank not in members.trainers),
        pservers=tuple(
            PserverStatus(pserver=r, host=p.address.host, ports=p.address.ports, silent_s=round(now_s - p.heard_s, 1))
            for r, p in sorted(members.pservers.items())
        ),
        waits_for=tuple(waits_for(machine, now_s, late)),
        stragglers=tuple(_stragglers(machine, late)),
        losses=tuple(dict.fromkeys(machine.losses)),
        passes_done=tuple(machine.passes.closed),
        saved=machine.passes.saved,
        snapshot=newest,
        snapshot_wanted=machine.cuts.is_wanted,
        warnings=(f"{since}: {failure.what}",) if failure is not None else (),
    )


def waits_for(machine: Coordinator, now_s: float, late: Awaited | None = None) -> list[str]:
    """The members that hold the job up: those missing, those silent, and those slower than the others."""
    if machine.phase in ENDED:
        return []
    texts = machine.missing() if machine.facts is not None else []
    for name, member in machine.members.named() if machine.phase == "training" else ():
        silent_s = now_s - member.heard_s
        if silent_s > SILENT_S:
            texts.append(f"{name}, silent for {silent_s:.0f} s")
    named = {_name(text) for text in texts}
    return texts + [text for text in _stragglers(machine, late) if _name(text) not in named]


def _name(text: str) -> tuple[str, ...]:
    """The role and rank that a text begins with: `trainer 1` is not `trainer 12, which …`."""
    return tuple(text.replace(",", " ").split()[:2])


def _stragglers(machine: Coordinator, late: Awaited | None) -> list[str]:
    if machine.phase != "training":
        return []
    return [*(_slow_trainers(late) if late is not None else ()), *_slow_pservers(machine)]


def _slow_trainers(late: Awaited) -> list[str]:
    reasons = {}
    if late.seconds >= SILENT_S:
        reasons = dict.fromkeys(late.missing, f"which the round has waited for {late.seconds:.0f} s")
    slowest = late.slowest
    if slowest is not None and slowest.share > STRAGGLES_ABOVE:
        of_s = f"{100 * slowest.share:.0f} % of the last {slowest.of_s:.0f} s"
        waited = "waited for" if late.behind is None else "were far ahead of"
        reasons[slowest.rank] = f"which all others {waited} {of_s}"
        if late.behind and late.missing == [slowest.rank]:
            reasons[slowest.rank] += f" (by {late.behind} batches now)"
    return [f"trainer {rank}, {why}" for rank, why in sorted(reasons.items())]


def _slow_pservers(machine: Coordinator) -> list[str]:
    """The pserver that every trainer reports as slowest; all must agree, as a slow trainer finds answers waiting."""
    progress = [trainer.progress for trainer in machine.members.trainers.values()]
    reports = [p.slowest_pserver if p is not None and p.view == machine.view else None for p in progress]
    if None in reports or len({each.rank for each in reports if each}) != 1:
        return []
    least = min((each for each in reports if each), key=lambda each: each.share)
    if least.share <= STRAGGLES_ABOVE:
        return []
    share = f"{100 * least.share:.0f} % of the last {least.of_s:.0f} s"
    return [f"pserver {least.rank}, which all trainers waited for {share}"]


def _trainer(rank: int, trainer: Trainer, now_s: float) -> TrainerStatus:
    silent_s = round(now_s - trainer.heard_s, 1)
    status = TrainerStatus(trainer=rank, pid=trainer.join.pid, host=trainer.join.host, silent_s=silent_s)
    p = trainer.progress
    if p is None:
        return status
    n = max(p.samples, 1)
    return msgspec.structs.replace(
        status, pass_id=p.pass_id, batch=p.batch, batches=p.batches, samples=p.samples,
        cost=p.cost / n, evals=tuple(e / n for e in p.evals), rate=p.rate,
    )  # fmt: skip
