"""How the pods of a plain Job see each other: through the API server, or where that is forbidden, on the volume.

Both ways give the same list of peers and use the same record on the volume (ranks.py decides, this does I/O). Every pod
writes heartbeats to the volume in any case: other pods may not reach the API server.
"""

from __future__ import annotations

import contextlib
import logging
import os
import re
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import msgspec

from bireme.core.errors import BiremeError
from bireme.core.files import half_of, storage_errors, volume
from bireme.kube.api.client import ForbiddenError
from bireme.kube.plain.ranks import Decision, Hold, Peer, RankAll, RankRecord, RankWait, SignsOfLife, TakeRank, decide

log = logging.getLogger(__name__)
BEAT_S = 1.0
PATIENCE_S = 10.0
"""After so many seconds without a heartbeat a pod counts as gone."""
ABSENCE_S = 2.5
"""A pod that has a rank and is not listed for so long is gone; before, it may be newer than the list."""
TRIES = 3
"""Failed watches in a row before the volume is used instead."""
REST_S = 0.5


class VisiblePods(NamedTuple):
    """The listed pods, names of those that are neither live nor gone yet, and the time of the list."""

    peers: list[Peer]
    unsure: set[str]
    at_s: float


class PeerLister(Protocol):
    """A way to list the other pods."""

    @property
    def is_blind(self) -> bool:
        """Whether this way has failed for good."""

    def look(self) -> VisiblePods | None:
        """The pods now; None before the first list, which differs from an empty one."""


class ApiPeerLister:
    """Pods as the API server shows them: a thread lists and then watches them until `close`.

    A watch without events for a while counts as broken and is started again with a list.
    """

    def __init__(self, watch: Callable[[], Iterable[tuple[str, Any]]]) -> None:
        """`watch` yields `("LISTED", all pods)`, then `(event, pod)`, and ends after some quiet time."""
        self._watch = watch
        self._pods: dict[str, Peer] | None = None
        self._is_over = threading.Event()
        self.is_blind = False  # written by the thread alone; `take_rank` may see it one look late
        self._thread = threading.Thread(target=self._run, name="pods", daemon=True)
        self._thread.start()

    def look(self) -> VisiblePods | None:
        """The pods right now; those without an address count as unsure."""
        pods = self._pods
        if pods is None:
            return None
        unsure = {pod.name for pod in pods.values() if pod.may_live and not pod.is_live}
        return VisiblePods(list(pods.values()), unsure, time.monotonic())

    def close(self) -> None:
        """Stop watching: the thread ends with the next event, or with the quiet time."""
        self._is_over.set()

    def _run(self) -> None:
        try:
            self._keep_looking()
        finally:  # also after an accident: `take_rank` would wait for this thread for ever
            self.is_blind = not self._is_over.is_set()

    def _keep_looking(self) -> None:
        in_vain, rest_s = 0, 0.0
        while in_vain < TRIES and not self._is_over.wait(rest_s):
            in_vain += 1
            try:
                for event, pod in self._watch():
                    in_vain = 0
                    self._see(event, pod)
                    if self._is_over.is_set():
                        return
            except BiremeError as e:
                if in_vain:  # else the watch only had no events
                    log.info("failed to list pods cause=%r", e.what)
                if isinstance(e, ForbiddenError):
                    return
            rest_s = REST_S * max(in_vain, 1)  # also after a list, to spare a server that refuses only the watch

    def _see(self, event: str, thing: Mapping[str, Any]) -> None:
        pods = dict(self._pods or {})  # a new dict: `look` may be reading the old one in the main thread
        if event == "LISTED":
            pods = {peer.name: peer for peer in map(peer_of, thing["items"])}
        elif event == "DELETED":
            pods.pop(peer_of(thing).name, None)
        else:
            pods[peer_of(thing).name] = peer_of(thing)
        self._pods = pods


def peer_of(pod: Mapping[str, Any]) -> Peer:
    status, is_deleted = pod.get("status") or {}, bool(pod["metadata"].get("deletionTimestamp"))
    return Peer(pod["metadata"]["name"], status.get("podIP") or "", status.get("phase") or "", is_deleted)


class _Sign(msgspec.Struct):
    ip: str
    beat: int
    started: float


class HeartbeatFiles:
    """Heartbeats on the volume: one small file for each pod, which that pod rewrites while it lives."""

    is_blind = False

    def __init__(
        self, directory: Path, name: str, ip: str, *, every_s: float = BEAT_S, patience_s: float = PATIENCE_S
    ) -> None:
        self._directory = directory
        self._every_s = every_s
        self._path = directory / f"{name}.json"
        self._sign = _Sign(ip, 0, time.time())
        self._seen = SignsOfLife(patience_s)
        self._is_mute = False
        self._next_s = 0.0
        with storage_errors(str(directory)):
            directory.mkdir(parents=True, exist_ok=True)

    def beat(self) -> None:
        now_s = time.monotonic()
        if now_s < self._next_s:
            return
        self._next_s = now_s + self._every_s
        self._sign.beat += 1
        half = half_of(self._path)
        # No fsync: a heartbeat must change, not survive a crash.
        try:
            half.write_bytes(msgspec.json.encode(self._sign))
            half.replace(self._path)
            self._is_mute = False
        except OSError as e:
            if not self._is_mute:
                log.warning("heartbeat failed path=%s cause=%r", self._path, str(e))
            self._is_mute = True

    def leave(self) -> None:
        """Remove the heartbeat, so that other pods need not wait for it to expire."""
        with contextlib.suppress(OSError):
            self._path.unlink(missing_ok=True)

    def look(self) -> VisiblePods:
        signs = {}
        for path in self._directory.glob("*.json"):
            with contextlib.suppress(OSError, msgspec.MsgspecError):
                signs[path.stem] = msgspec.json.decode(path.read_bytes(), type=_Sign)
        now_s = time.monotonic()
        self._seen.see({name: sign.beat for name, sign in signs.items()}, now_s)
        living = self._seen.living(now_s)
        return VisiblePods([Peer(name, signs[name].ip) for name in living], self._seen.unsure(now_s), now_s)


class RankBook:
    """The record of ranks on the volume: files that are created once and never changed."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        with storage_errors(str(directory)):
            directory.mkdir(parents=True, exist_ok=True)

    def read(self) -> RankRecord:
        first = self._directory / "first.json"
        written = first.read_bytes() if first.is_file() else b""
        names = msgspec.json.decode(written, type=tuple[str, ...]) if written else ()
        files = [(path, re.fullmatch(r"rank-(\d+)\.(\d+)", path.name)) for path in self._directory.iterdir()]
        return RankRecord(
            names, [TakeRank(int(match[1]), int(match[2]), path.read_text()) for path, match in files if match]
        )

    def write(self, order: RankAll | TakeRank) -> bool:
        """Write a decision; False if another pod was faster."""
        if isinstance(order, RankAll):
            return create_once(self._directory / "first.json", msgspec.json.encode(order.first))
        return create_once(self._directory / f"rank-{order.rank}.{order.turn}", order.name.encode())


def create_once(path: Path, data: bytes) -> bool:
    """Create a file with all its content at once unless it exists; returns whether it was created."""
    half = half_of(path)
    with storage_errors(str(path)):
        try:
            half.write_bytes(data)
            try:
                os.link(half, path)
            except FileExistsError:
                raise
            except OSError:  # a volume without hard links: a reader may see the file empty for a moment
                volume().create(path, data)
        except FileExistsError:
            return False
        finally:
            half.unlink(missing_ok=True)
    return True


def take_rank(
    name: str,
    nodes: int,
    book: RankBook,
    listers: tuple[PeerLister | None, HeartbeatFiles],
    rest: Callable[[RankWait], bool],
) -> int | None:
    """Get a rank for this pod; None if `rest`, called with each wait, returns False."""
    api, heartbeats = listers
    waits_for, missing = "", SignsOfLife(ABSENCE_S)
    while True:
        heartbeats.beat()
        seen = (heartbeats if api is None or api.is_blind else api).look()
        decision: Decision = RankWait("the API server has not answered yet")
        if seen is not None:
            record = book.read()
            unseen = {one.name for one in record.holders().values()} - {peer.name for peer in seen.peers}
            missing.see(dict.fromkeys(unseen, 0), time.monotonic())
            decision = decide(name, seen.peers, record, nodes, seen.unsure | missing.unsure(seen.at_s))
        if isinstance(decision, Hold):
            return decision.rank
        if isinstance(decision, RankWait):
            if decision.why != waits_for:
                waits_for = decision.why
                log.info("waiting for rank cause=%r", waits_for)
            if not rest(decision):
                return None
        elif not book.write(decision):
            log.info("retry rank cause=taken-by-another-pod")
