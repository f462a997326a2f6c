"""Why a job is in its state: the table of situations, in the order in which they should be solved, and `explain`.

Pure: facts in, causes out. A row of the table holds one situation: how it is recognised, a sentence of cause with the
names and figures of the case, and a sentence of advice with the command to type. A consequence is reported only where
no cause explains the same pods; that all is well is reported only if nothing else is.
"""

from __future__ import annotations

import dataclasses

from bireme.diagnose import creating as creating
from bireme.diagnose import dying as dying
from bireme.diagnose import images as images
from bireme.diagnose import nodes as nodes
from bireme.diagnose import peers as peers
from bireme.diagnose import resting as resting
from bireme.diagnose import scheduling as scheduling
from bireme.diagnose import starting as starting
from bireme.diagnose import training as training
from bireme.diagnose import volumes as volumes
from bireme.diagnose.facts import Cause, Facts, Situation, is_suspended

STANDING: tuple[Situation, ...] = (resting.not_found, resting.queued, resting.suspended)
"""Situations that explain the whole state alone."""
TABLE: tuple[Situation, ...] = (
    *STANDING,
    training.forbidden,
    creating.quota,
    creating.limit_range,
    creating.pod_security,
    creating.admission,
    creating.service_account,
    creating.class_missing,
    # Of the job's own errors the roots come first: a full volume makes everything else fail.
    training.disk_full,
    training.not_writable,
    training.certificate_expired,
    training.config_error,
    training.data_missing,
    training.not_a_number,
    dying.deadline,
    nodes.node_lost,
    dying.out_of_memory,
    nodes.evicted,
    nodes.disrupted,
    nodes.kubelet_refused,
    images.image_name,
    images.image_not_found,
    images.pull_denied,
    images.registry_unreachable,
    images.image_never_pulled,
    images.wrong_architecture,
    starting.command_missing,
    starting.object_missing,
    starting.runs_as_root,
    volumes.mount_failed,
    starting.sandbox,
    volumes.claim_unbound,
    volumes.volume_elsewhere,
    scheduling.sick_nodes,
    scheduling.cordoned,
    scheduling.taint,
    scheduling.too_little_cpu,
    scheduling.too_little_memory,
    scheduling.too_little_else,
    scheduling.ports_taken,
    scheduling.too_many_pods,
    scheduling.spread,
    scheduling.node_selector,
    scheduling.gated,
    dying.probe_failed,
    peers.name_not_found,
    peers.port_blocked,
    training.version_skew,
    peers.slow_pserver,
    peers.slow_trainer,
    resting.died_here,
    resting.cancelled_here,
    training.own_words,
    starting.cannot_start,
    scheduling.unschedulable,
    creating.not_created,
    dying.crash_loop,
    dying.gave_up,
    resting.waiting_for_pods,
    resting.waiting_for_peers,
    resting.finished,
    resting.running,
    resting.no_status_yet,
)


def explain(facts: Facts) -> list[Cause]:
    """Every cause in the facts, the one to solve first in front; never empty."""
    if resting.is_finished(facts):
        return _found(resting.finished, facts)
    standing = [cause for row in STANDING for cause in _found(row, facts)]
    if standing and (is_suspended(facts) or not facts.jobs):
        return standing
    causes = [cause for row in TABLE if row.kind == "cause" for cause in _found(row, facts)]
    explained = {name for cause in causes for name in cause.about}
    for row in TABLE:
        if row.kind == "consequence":
            # A consequence without pods of its own follows from any cause.
            new = [c for c in _found(row, facts) if not causes or not set(c.about) <= explained]
            causes += new
            explained |= {name for cause in new for name in cause.about}
    if not causes:
        causes = [cause for row in TABLE if row.kind == "calm" for cause in _found(row, facts)][:1]
    return causes or [_unknown(facts)]


def _found(row: Situation, facts: Facts) -> list[Cause]:
    return [dataclasses.replace(cause, situation=row.name) for cause in row.find(facts)]


def _unknown(facts: Facts) -> Cause:
    state = facts.record.get("state", "unknown")
    reason = f" ({facts.record['reason']})" if facts.record.get("reason") else ""
    return Cause(
        f"The job is {state}{reason}, and no fact that can be seen from here explains it.",
        f"Read its logs with `{facts.command} logs {facts.job}`.",
        situation="unknown",
    )
