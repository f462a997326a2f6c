"""The job's status on the cluster: node 0 asks the coordinator and writes the answer on the Job.

The status is an annotation of the Job, so every user who may read the Job sees it, even after its pods have ended. It
is written when it has changed, and rarely enough for an API server that serves many jobs. A failure here never harms
the job: it is logged once, and the next status is the retry.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec

from bireme import __version__
from bireme.core.errors import BiremeError
from bireme.kube.api import naming

log = logging.getLogger(__name__)
ASK_EVERY_S = 1.0
SEND_EVERY_S = 2.0
FINAL_STATUS_S = 12.0
"""Longer than the API server is given to take a status (5 s to connect, 5 s to answer)."""
MAX_NBYTES = 200_000
"""All annotations of an object may have 256 KiB."""
PASSES_KEPT = 20
Status = dict[str, Any]


def compact(status: Mapping[str, Any]) -> Status:
    """A status that fits into an annotation: the newest passes, and as many members as there is room for."""
    short: Status = {
        **status,
        "version": __version__,
        "passes_done": list(status.get("passes_done") or ())[-PASSES_KEPT:],
    }
    keep = 1024
    while len(msgspec.json.encode(short)) > MAX_NBYTES and keep:
        keep //= 2
        for name in ("trainers", "pservers", "trainers_missing", "waits_for", "stragglers"):
            short[name] = list(short.get(name) or ())[:keep]
    return short


def essence(status: Mapping[str, Any]) -> Status:
    """A status without its clocks: what must differ for it to be sent."""
    kept = {name: value for name, value in status.items() if name != "seconds"}
    for name in ("trainers", "pservers"):
        kept[name] = [{k: v for k, v in one.items() if k != "silent_s"} for one in status.get(name) or ()]
    return kept


class Reporter:
    """Polls the job's status in a thread, and publishes changes."""

    def __init__(self, ask: Callable[[], Status | None], publish: Callable[[Status], None]) -> None:
        """`ask` returns None while no coordinator answers; neither may raise a BiremeError."""
        self._ask = ask
        self._publish = publish
        self._sent: Status = {}
        self._sent_s = -SEND_EVERY_S
        self._last: Status = {}
        self._is_over = threading.Event()
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Start the thread, unless it runs; only it calls `hear` from then on, so the fields need no lock."""
        if self._thread is not None:
            return
        self._thread = threading.Thread(target=self._run, name="reporting", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        while not self._is_over.wait(ASK_EVERY_S):
            status = self._ask()
            if status is not None:
                self.hear(status, time.monotonic())

    def hear(self, status: Status, now_s: float) -> None:
        """Take a status; publish it if it has changed and the last one was sent SEND_EVERY_S ago."""
        self._last = status
        content = essence(status)
        if now_s - self._sent_s >= SEND_EVERY_S and content != self._sent:
            self._sent, self._sent_s = content, now_s
            self._publish(compact(status))

    def finish(self, status: Status | None = None, error: BiremeError | None = None) -> None:
        """Stop polling, and publish the final status: the coordinator's last one, with an error if there was one."""
        self._is_over.set()
        if self._thread is not None:
            self._thread.join(FINAL_STATUS_S)  # its last status must not overwrite the final one
        last = compact(status or self._last)
        if error is not None:
            last |= {"phase": "failed", "reason": last.get("reason") or error.what, "error": error.as_dict()}
        self._publish(last)


class Publisher:
    """Writes a status on a Job; the connection to the API server is made at its first use."""

    def __init__(self, patch: Callable[[str, dict[str, Any]], object], job: str) -> None:
        """`patch` merges a change into the Job of a name, and raises a BiremeError where that fails."""
        self._patch = patch
        self._job = job
        self._has_warned = False

    def __call__(self, status: Status) -> None:
        """Write it; log only the first failure."""
        text = msgspec.json.encode(status).decode()
        try:
            self._patch(self._job, {"metadata": {"annotations": {naming.STATUS: text}}})
        except BiremeError as e:
            if not self._has_warned:
                log.warning("cannot write the status on Job %s: %s", self._job, e.what)
            self._has_warned = True


def waiting_status(job: str, waits_for: Sequence[str]) -> Status:
    """The status of a job that has no coordinator yet."""
    return {
        "phase": "gathering", "reason": "", "job": job, "view": 0, "seconds": 0.0, "first_pass": 0, "passes": 0,
        "pass": 0, "round": 0, "trainers": [], "trainers_missing": [], "pservers": [],
        "waits_for": list(waits_for), "passes_done": [], "saved": -1, "snapshot": None, "snapshot_wanted": False,
    }  # fmt: skip
