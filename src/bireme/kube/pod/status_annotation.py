"""The job's status on the cluster: node 0 asks the coordinator and writes the answer on the Job.

The status is an annotation of the Job, so every user who may read the Job sees it, even after its pods have ended. It
is written when it has changed, and rarely enough for an API server that serves many jobs. A failure here never harms
the job: it is logged once, and the next status is the retry.

A job that would fail again and again is ended from here too, by a deadline on its Jobs that has passed. Kubernetes has
a policy for that (exit codes that fail a Job), but refuses it together with replacing pods on machines that do not
answer.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Sequence

import msgspec
from msgspec.structs import replace

from bireme import __version__
from bireme.core.errors import BiremeError, ProcessError, error_class
from bireme.job.status import JobStatus
from bireme.kube.api import naming
from bireme.kube.api.client import JOB, Cluster
from bireme.kube.api.naming import Object
from bireme.kube.jobs.listing import status_in
from bireme.kube.submit.indexed_jobs import HOPELESS

log = logging.getLogger(__name__)
ASK_EVERY_S = 1.0
SEND_EVERY_S = 2.0
FINAL_STATUS_S = 12.0
"""Longer than the API server is given to take a status (5 s to connect, 5 s to answer)."""
MAX_NBYTES = 200_000
"""All annotations of an object may have 256 KiB."""
PASSES_KEPT = 20


def compact(status: JobStatus) -> JobStatus:
    """A status that fits into an annotation: the newest passes, and as many members as there is room for."""
    short = replace(status, version=__version__, passes_done=status.passes_done[-PASSES_KEPT:])
    keep = 1024
    while len(msgspec.json.encode(short)) > MAX_NBYTES and keep:
        keep //= 2
        lists = ("trainers", "pservers", "trainers_missing", "waits_for", "stragglers")
        short = replace(short, **{name: getattr(short, name)[:keep] for name in lists})
    return short


def without_clocks(status: JobStatus) -> JobStatus:
    """A status without its clocks: what must differ for it to be sent."""
    return replace(
        status,
        seconds=0.0,
        trainers=tuple(replace(each, silent_s=0.0) for each in status.trainers),
        pservers=tuple(replace(each, silent_s=0.0) for each in status.pservers),
    )


def failed(status: JobStatus, error: BiremeError) -> JobStatus:
    return replace(compact(status), phase="failed", reason=status.reason or error.what, error=error.as_dict())


class Reporter:
    """Polls the job's status in a thread, and publishes changes."""

    def __init__(self, ask: Callable[[], JobStatus | None], publish: Callable[[JobStatus], None]) -> None:
        """`ask` returns None while no coordinator answers; neither may raise a BiremeError."""
        self._ask = ask
        self._publish = publish
        self._sent = JobStatus()
        self._sent_s = -SEND_EVERY_S
        self._last = JobStatus()
        self._is_over = threading.Event()
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Start the thread, unless it runs; only it calls `hear` from then on, so the fields need no lock."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="reporting", daemon=True)
            self._thread.start()

    def _run(self) -> None:
        while not self._is_over.wait(ASK_EVERY_S):
            status = self._ask()
            if status is not None:
                self.hear(status, time.monotonic())

    def hear(self, status: JobStatus, now_s: float) -> None:
        """Take a status; publish it if it has changed and the last one was sent SEND_EVERY_S ago."""
        self._last = status
        content = without_clocks(status)
        # Every patch is a write in the API server's store: a job that only waits must not cause any.
        if now_s - self._sent_s >= SEND_EVERY_S and content != self._sent:
            self._sent, self._sent_s = content, now_s
            self._publish(compact(status))

    def finish(self, status: JobStatus | None = None, error: BiremeError | None = None) -> None:
        """Stop polling, and publish the final status: the coordinator's last one, with an error if there was one."""
        # The caller's thread: `_last` and what `publish` keeps are its own once the thread has ended.
        self._is_over.set()
        if self._thread is not None:
            self._thread.join(FINAL_STATUS_S)  # its last status must not overwrite the final one
        last = status or self._last
        self._publish(compact(last) if error is None else failed(last, error))


class Publisher:
    """Writes a status on a Job; the connection to the API server is made at its first use."""

    def __init__(self, connect: Callable[[], Cluster], job: str) -> None:
        self._connect = connect
        self._job = job
        self._has_warned = False

    def __call__(self, status: JobStatus) -> None:
        change = {"metadata": {"annotations": {naming.STATUS: msgspec.json.encode(status).decode()}}}
        try:
            self._connect().patch(JOB, self._job, change)
        except BiremeError as e:
            if not self._has_warned:
                log.warning("failed to write status job=%s cause=%r", self._job, e.what)
            self._has_warned = True


def give_up(connect: Callable[[], Cluster], names: Sequence[str], error: BiremeError) -> None:
    """End Jobs, and write the reason on the first; where that is refused, pods fail up to the backoff limit."""
    try:
        cluster = connect()
    except BiremeError as e:
        log.warning("failed to end job effect=pods-are-replaced cause=%r", e.what)
        return
    for number, name in enumerate(names):
        try:
            change = ending_of(cluster.get(JOB, name), error, is_main=number == 0)
            if change:
                cluster.patch(JOB, name, change)
        except BiremeError as e:
            log.warning("failed to end job=%s cause=%r", name, e.what)


def is_hopeless(error: BiremeError | type[BiremeError]) -> bool:
    return error.exit_code in HOPELESS


def ending_of(job: Object, error: BiremeError, *, is_main: bool) -> Object:
    """The patch that ends a Job, with the reason on the main one; where its own policy ends it, only the reason."""
    status = status_in(job)
    # A hopeless error that is there stays; one after which pods are replaced does not.
    has_cause = is_hopeless(error_class((status.error or {}).get("kind"), ProcessError))
    has_policy = bool(job["spec"].get("podFailurePolicy")) and is_hopeless(error)
    change: Object = {} if has_policy else {"spec": {"activeDeadlineSeconds": 1}}
    if is_main and not (has_policy and has_cause):
        text = msgspec.json.encode(failed(status, error)).decode()
        change["metadata"] = {"annotations": {naming.STATUS: text}}
    return change
