"""Ending a job from inside that would fail again and again: its Jobs are given a deadline that has passed.

Kubernetes has a policy for that (exit codes that fail a Job), but does not accept it together with replacing pods that
cannot be asked. So a pod that knows that another one would fail in the same way says so to the API server.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import msgspec

from bireme.core.errors import BiremeError, ProcessError, error_class
from bireme.kube.api import naming
from bireme.kube.jobs.listing import status_in
from bireme.kube.pod.status_annotation import compact
from bireme.kube.submit.indexed_jobs import HOPELESS
from bireme.kube.submit.submission import Object

log = logging.getLogger(__name__)


class Jobs(Protocol):
    """Jobs of a namespace."""

    def get(self, name: str) -> Object:
        """One Job."""

    def patch(self, name: str, change: Object) -> Object:
        """Merge a change into a Job."""


def give_up(jobs: Jobs, names: Sequence[str], error: BiremeError) -> None:
    """End Jobs, and leave the reason on the first; where that is refused, pods fail until Kubernetes has enough."""
    for number, name in enumerate(names):
        try:
            job = jobs.get(name)
            change = ending_of(job, error, is_told=number == 0)
            if change:
                jobs.patch(name, change)
        except BiremeError as e:
            log.warning("the Job %s cannot be ended: %s", name, e.what)


def is_hopeless(error: BiremeError | type[BiremeError]) -> bool:
    """Whether another pod would fail in the same way."""
    return error.exit_code in HOPELESS


def _knows_why(status: Mapping[str, Any]) -> bool:
    """Whether a Job's status tells already what ends it; what pods were replaced after does not."""
    return is_hopeless(error_class((status.get("error") or {}).get("kind"), ProcessError))


def ending_of(job: Object, error: BiremeError, *, is_told: bool) -> Object:
    """What ends a Job and says why; one whose own policy ends it is only told why, unless it knows already."""
    status = status_in(job)
    has_policy = bool(job["spec"].get("podFailurePolicy")) and is_hopeless(error)
    change: Object = {} if has_policy else {"spec": {"activeDeadlineSeconds": 1}}
    if is_told and not (has_policy and _knows_why(status)):
        told = {"phase": "failed", "reason": status.get("reason") or error.what, "error": error.told()}
        text = msgspec.json.encode(compact(status) | told).decode()
        change["metadata"] = {"annotations": {naming.STATUS: text}}
    return change
