"""Telling the cluster how the job is: node 0 asks the coordinator and writes its answer on the Job.

The status is an annotation of the Job, so whoever may see the Job sees it, with the pods or after them. It is written
when it has changed and seldom enough for an API server that serves many jobs. Nothing that goes wrong here harms the
job: it is said once in the log, and tried again with the next status.
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
TELL_EVERY_S = 2.0
LAST_WORD_S = 12.0
"""Longer than the API server is given to take a status (5 s to connect, 5 s to answer)."""
MAX_NBYTES = 200_000
"""All annotations of an object may have 256 KiB."""
PASSES_TOLD = 20
Status = dict[str, Any]


def compact(status: Mapping[str, Any]) -> Status:
    """A status that fits into an annotation: the newest passes, and as many members as there is room for."""
    told: Status = {
        **status,
        "version": __version__,
        "passes_done": list(status.get("passes_done") or ())[-PASSES_TOLD:],
    }
    keep = 1024
    while len(msgspec.json.encode(told)) > MAX_NBYTES and keep:
        keep //= 2
        for name in ("trainers", "pservers", "trainers_missing", "waits_for", "stragglers"):
            told[name] = list(told.get(name) or ())[:keep]
    return told


def essence(status: Mapping[str, Any]) -> Status:
    """What must differ for a status to be news: clocks alone are none."""
    found = {name: value for name, value in status.items() if name != "seconds"}
    for name in ("trainers", "pservers"):
        found[name] = [{k: v for k, v in one.items() if k != "silent_s"} for one in status.get(name) or ()]
    return found


class Reporter:
    """Asks how the job is, in a thread, and hands on what is new."""

    def __init__(self, ask: Callable[[], Status | None], tell: Callable[[Status], None]) -> None:
        """`ask` returns None while there is nobody to ask; neither may raise a BiremeError."""
        self._ask = ask
        self._tell = tell
        self._told: Status = {}
        self._told_s = -TELL_EVERY_S
        self._last: Status = {}
        self._is_over = threading.Event()
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Begin to ask."""
        self._thread = threading.Thread(target=self._run, name="reporting", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        while not self._is_over.wait(ASK_EVERY_S):
            status = self._ask()
            if status is not None:
                self.hear(status, time.monotonic())

    def hear(self, status: Status, now_s: float) -> None:
        """Take a status, and hand it on if it is new and the last time is long enough ago."""
        self._last = status
        news = essence(status)
        if now_s - self._told_s >= TELL_EVERY_S and news != self._told:
            self._told, self._told_s = news, now_s
            self._tell(compact(status))

    def finish(self, status: Status | None = None, error: BiremeError | None = None) -> None:
        """Ask no more, and hand on the last word: the coordinator's own, or what went wrong."""
        self._is_over.set()
        if self._thread is not None:
            self._thread.join(LAST_WORD_S)  # what it tells must not come after our last word
        last = compact(status or self._last)
        if error is not None:
            last |= {"phase": "failed", "reason": last.get("reason") or error.what, "error": error.told()}
        self._tell(last)


class Publisher:
    """Writes a status on a Job; the connection to the API server is made when it is needed."""

    def __init__(self, patch: Callable[[str, dict[str, Any]], object], job: str) -> None:
        """`patch` merges a change into the Job of a name, and raises a BiremeError where that fails."""
        self._patch = patch
        self._job = job
        self._has_warned = False

    def __call__(self, status: Status) -> None:
        """Write it, or say once that it cannot be."""
        text = msgspec.json.encode(status).decode()
        try:
            self._patch(self._job, {"metadata": {"annotations": {naming.STATUS: text}}})
        except BiremeError as e:
            if not self._has_warned:
                log.warning("the cluster cannot be told how the job is: %s", e.what)
            self._has_warned = True


def waiting_status(job: str, waits_for: Sequence[str]) -> Status:
    """The status of a job that has no coordinator yet."""
    return {
        "phase": "gathering", "reason": "", "job": job, "view": 0, "seconds": 0.0, "first_pass": 0, "passes": 0,
        "pass": 0, "round": 0, "trainers": [], "trainers_missing": [], "pservers": [],
        "waits_for": list(waits_for), "passes_done": [], "saved": -1, "snapshot": None, "snapshot_wanted": False,
    }  # fmt: skip
