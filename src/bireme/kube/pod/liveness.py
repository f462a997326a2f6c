"""What a pod does for its node while the processes run: probe files, log copies, and a snapshot before it stops.

Probes test files, which needs no Python process and no open port: `started` and `ready` exist or not, the main loop
touches `alive`. The node's lease on the volume shows when another pod has replaced it. Before it stops it requests a
snapshot, if the job trains: its successor resumes from there.
"""

from __future__ import annotations

import contextlib
import logging
import math
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from bireme.job.node.entry import NodeWatch
from bireme.job.node.incarnations import Lease
from bireme.job.node.log_budget import Copier
from bireme.job.status import JobStatus

log = logging.getLogger(__name__)
LOOK_EVERY_S = 1.0
COPY_EVERY_S = 0.2
ASK_EVERY_S = 0.2
GONE_S = 6.0
"""After so long without an answer the coordinator is gone too, and no snapshot can be made."""


class Probes:
    """Files that the kubelet's probes test."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        with contextlib.suppress(OSError):
            directory.mkdir(parents=True, exist_ok=True)
        for name in ("started", "ready", "alive"):
            self.set(name, is_so=False)

    def set(self, name: str, *, is_so: bool) -> None:
        """Create or remove a probe's file; errors are ignored, so that a full disk does not kill the node."""
        with contextlib.suppress(OSError):
            if is_so:
                (self._directory / name).touch()
            else:
                (self._directory / name).unlink(missing_ok=True)

    def beat(self) -> None:
        """Show that the node has started and that its main loop turns."""
        self.set("started", is_so=True)
        self.set("alive", is_so=True)


class PreStopSnapshot:
    """Requests a snapshot before the node stops; polled until it is over, with the time passed in."""

    def __init__(self, ask: Callable[[bool], JobStatus | None], grace_s: float) -> None:
        """`ask` returns the job's status, after requesting a snapshot if called with True; None without an answer."""
        self._ask = ask
        self._grace_s = grace_s
        self._since_s = math.inf
        self._next_s = -math.inf
        self._heard_s = math.inf
        self._is_wanted = False

    def is_over(self, now_s: float) -> bool:
        """Whether the snapshot is saved, or none will come."""
        if self._since_s == math.inf:
            log.info("requested snapshot cause=stop-signal")
            self._since_s = self._heard_s = now_s
        if now_s - self._since_s >= self._grace_s:
            log.warning("snapshot missed grace_s=%.0f", self._grace_s)
            return True
        if now_s < self._next_s:
            return False
        self._next_s = now_s + ASK_EVERY_S
        # The request is repeated until a status confirms it: its connection may break, or the coordinator be replaced.
        status = self._ask(not self._is_wanted)
        if status is not None:
            self._heard_s = now_s
            return self._is_settled(status)
        if now_s - self._heard_s < GONE_S:
            return False
        log.info("snapshot skipped cause=coordinator-gone silent_s=%.1f", now_s - self._heard_s)
        return True

    def _is_settled(self, status: JobStatus) -> bool:
        if status.phase != "training":
            log.info("snapshot skipped cause=not-training phase=%s", status.phase)
            return True
        if status.snapshot_wanted:
            self._is_wanted = True
            return False
        if self._is_wanted:
            log.info("snapshot committed round=%s", status.snapshot)
        else:
            log.info("snapshot skipped cause=only-at-pass-end")
        return True


class PodWatch(NodeWatch):
    """Watches one node of a pod."""

    def __init__(self, lease: Lease, probes: Probes, copier: Copier, pre_stop: PreStopSnapshot) -> None:
        self._lease = lease
        self._probes = probes
        self._copier = copier
        self._pre_stop = pre_stop
        self._look_s = self._copy_s = -math.inf
        self.marks: Sequence[Path] = ()
        """Files of the node's processes, which exist while these take part."""
        self.each_second: list[Callable[[], None]] = []

    def may_continue(self) -> bool:
        # Called 20 times a second by the loop that also watches the processes: most calls must do nothing, as the
        # lease and the logs are on a slow volume.
        now_s = time.monotonic()
        if now_s - self._copy_s >= COPY_EVERY_S:
            self._copy_s = now_s
            self._copier.copy()
        if now_s - self._look_s < LOOK_EVERY_S:
            return True
        self._look_s = now_s
        self._probes.beat()
        # Ready: all processes take part in the job. Without marks none has been started.
        self._probes.set("ready", is_so=bool(self.marks) and all(mark.exists() for mark in self.marks))
        for duty in self.each_second:
            duty()
        if self._lease.is_lost():
            log.warning("leaving cause=replaced-by-another-pod")
            return False
        return True

    def may_leave(self) -> bool:
        return self._pre_stop.is_over(time.monotonic())

    def left(self) -> None:
        self._probes.set("ready", is_so=False)
        self._copier.finish()
