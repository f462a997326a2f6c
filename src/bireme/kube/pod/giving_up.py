"""End a job that would fail again and again, from inside: set a deadline on its Jobs that has passed.

Kubernetes has a policy for that (exit codes that fail a Job), but refuses it together with replacing pods on machines
that do not answer. So a pod whose replacement would fail alike ends the Jobs through the API server.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Protocol

import msgspec

from bireme.core.errors import BiremeError, ProcessError, error_class
from bireme.job.status import JobStatus
from bireme.kube.api import naming
from bireme.kube.jobs.listing import status_in
from bireme.kube.pod.status_annotation import failed
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
    """End Jobs, and write the reason on the first; where that is refused, pods fail up to the backoff limit."""
    for number, name in enumerate(names):
        try:
            job = jobs.get(name)
            change = ending_of(job, error, is_main=number == 0)
            if change:
                jobs.patch(name, change)
        except BiremeError as e:
            log.warning("failed to end job=%s cause=%s", name, e.what)


def is_hopeless(error: BiremeError | type[BiremeError]) -> bool:
    """Whether a replacement would fail alike."""
    return error.exit_code in HOPELESS


def _has_cause(status: JobStatus) -> bool:
    """Whether a Job's status already holds a hopeless error; one after which pods are replaced does not count."""
    return is_hopeless(error_class((status.error or {}).get("kind"), ProcessError))


def ending_of(job: Object, error: BiremeError, *, is_main: bool) -> Object:
    """The patch that ends a Job, with the reason on the main one; where its own policy ends it, only the reason."""
    status = status_in(job)
    has_policy = bool(job["spec"].get("podFailurePolicy")) and is_hopeless(error)
    change: Object = {} if has_policy else {"spec": {"activeDeadlineSeconds": 1}}
    if is_main and not (has_policy and _has_cause(status)):
        text = msgspec.json.encode(failed(status, error)).decode()
        change["metadata"] = {"annotations": {naming.STATUS: text}}
    return change
