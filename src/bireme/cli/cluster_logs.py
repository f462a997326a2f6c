"""`bireme logs` for a job on a cluster: from its pods while they are there, from its volume afterwards."""

from __future__ import annotations

import json
import queue
import threading
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import click

from bireme.core.errors import BiremeError, ClusterError, NetworkError, UsageError

if TYPE_CHECKING:
    from bireme.kube.client import Cluster

PODS_EVERY_S = 2.0


@dataclass(frozen=True, slots=True)
class Wanted:
    """Which lines are asked for."""

    node: int | None = None
    role: str | None = None
    last: int | None = None
    since_s: float | None = None
    is_following: bool = False
    from_volume: bool = False


class Said(NamedTuple):
    """A line, with when and where it was said."""

    when: float
    log: str
    line: str


def print_logs(cluster: Cluster, name: str, wanted: Wanted, image: str | None, *, as_json: bool) -> None:
    """Print a job's logs in the order of time."""
    for log, line in lines_of(cluster, name, wanted, image):
        click.echo(json.dumps({"log": log, "line": line}) if as_json else f"{log}: {line}")


def lines_of(cluster: Cluster, name: str, wanted: Wanted, image: str | None) -> Iterator[tuple[str, str]]:
    """Log and line, from the pods if there are any."""
    from bireme.kube.listing import is_ended
    from bireme.kube.stopping import view_of

    if wanted.is_following and wanted.from_volume:
        raise UsageError("what is on the volume cannot be followed", fix="leave --from-volume or -f out")
    pods = [] if wanted.from_volume else pods_with_logs(cluster, name, wanted)
    if wanted.is_following and (pods or not is_ended(view_of(cluster, name).state)):
        yield from ((said.log, said.line) for said in _followed(cluster, name, wanted))
    elif pods:
        found = [said for pod in pods for said in _tail(list(said_by(cluster, pod, wanted)), wanted.last)]
        yield from ((said.log, said.line) for said in sorted(found, key=lambda said: said.when))
    else:
        yield from _from_volume(cluster, name, wanted, image)


def pods_with_logs(cluster: Cluster, name: str, wanted: Wanted) -> list[dict[str, Any]]:
    """The pods whose logs can be asked for: those that have begun."""
    from bireme.kube import naming
    from bireme.kube.client import POD
    from bireme.kube.listing import rank_of

    pods = cluster.list(POD, naming.selector_of(name))
    begun = [p for p in pods if any(not _waits(c) for c in (p.get("status") or {}).get("containerStatuses") or ())]
    return [pod for pod in begun if wanted.node in (None, rank_of(pod))]


def _waits(container: dict[str, Any]) -> bool:
    return "waiting" in (container.get("state") or {})


def said_by(cluster: Cluster, pod: dict[str, Any], wanted: Wanted) -> Iterator[Said]:
    """What the processes of a pod have said; nothing where its machine cannot be asked, or has thrown it away."""
    since = None if wanted.since_s is None else max(1, round(wanted.since_s))
    with _unless_denied():
        for _, said in _read(cluster.log(pod["metadata"]["name"], since_s=since), pod, wanted):
            yield said


def _read(lines: Iterable[str], pod: dict[str, Any], wanted: Wanted) -> Iterator[tuple[float, Said]]:
    """A pod's lines as said by its processes, each with the moment when the container wrote it."""
    from bireme.kube.listing import moment, rank_of
    from bireme.kube.merging import moment_of

    for text in lines:
        stamp, _, rest = text.partition(" ")
        try:
            written = moment(stamp)
        except ValueError:
            continue  # the machine's own words: it has thrown the log away
        log, line = _split(rest, rank_of(pod))
        # Its own time where it has one: the container's is that of the copy.
        said = Said(moment_of(line, time.gmtime(written).tm_year, written, is_utc=True) or written, log, line)
        if wanted.role is None or said.log.endswith(_file_of(wanted.role)):
            yield written, said


@contextmanager
def _unless_denied() -> Iterator[None]:
    """Let a log be as short as it is; that we may not see it is another matter."""
    from bireme.kube.client import ForbiddenError

    try:
        yield
    except ForbiddenError:
        raise
    except (ClusterError, NetworkError):
        return


def _file_of(role: str) -> str:
    from bireme.kube.merging import FILES

    return FILES[role]


def _split(text: str, rank: int) -> tuple[str, str]:
    """Which log a pod's line belongs to: processes are named in front of theirs."""
    who, bar, line = text.partition(" | ")
    role = who.partition(" ")[0] if bar else "node"
    if role not in ("trainer", "pserver"):
        role, line = "node", text
    return f"node_{rank}/{_file_of(role)}", line


def _tail(said: list[Said], last: int | None) -> list[Said]:
    """The last lines of each log of a pod."""
    if last is None:
        return said
    kept: dict[str, int] = {}
    found = []
    for each in reversed(said):
        kept[each.log] = kept.get(each.log, 0) + 1
        if kept[each.log] <= last:
            found.append(each)
    return found[::-1]


def _followed(cluster: Cluster, name: str, wanted: Wanted) -> Iterator[Said]:
    """What comes, as it comes, also from pods that come later; ends with the job."""
    from bireme.kube.listing import is_ended
    from bireme.kube.stopping import is_live, view_of

    lines: queue.Queue[Said | BiremeError] = queue.Queue()
    listeners: dict[str, _Listener] = {}
    looked = 0.0
    while True:
        if time.monotonic() - looked > PODS_EVERY_S:
            looked = time.monotonic()
            with suppress(NetworkError):  # the next look may find it back
                has_ended = is_ended(view_of(cluster, name).state)
                for pod in pods_with_logs(cluster, name, wanted):
                    known = listeners.setdefault(pod["metadata"]["uid"], _Listener(cluster, pod, wanted, lines))
                    if known.is_to_listen(is_live(pod)):
                        known.start()
                if has_ended and lines.empty() and not any(each.is_listening for each in listeners.values()):
                    return
        try:
            said = lines.get(timeout=0.2)
        except queue.Empty:
            continue
        if isinstance(said, BiremeError):
            raise said
        yield said


class _Listener:
    """One pod's log as it comes, taken up again where a connection was lost."""

    def __init__(
        self, cluster: Cluster, pod: dict[str, Any], wanted: Wanted, lines: queue.Queue[Said | BiremeError]
    ) -> None:
        self._cluster = cluster
        self._pod = pod
        self._wanted = wanted
        self._lines = lines
        self._thread: threading.Thread | None = None
        self._heard = 0.0
        """When the container wrote the last line that was passed on."""

    @property
    def is_listening(self) -> bool:
        """Whether more may come."""
        return self._thread is not None and self._thread.is_alive()

    def is_to_listen(self, is_pod_live: bool) -> bool:
        """Whether it is time to begin, or to begin again."""
        return self._thread is None or (is_pod_live and not self.is_listening)

    def start(self) -> None:
        """Begin after the last line that is known."""
        self._thread = threading.Thread(target=self._pass_on, name="logs", daemon=True)
        self._thread.start()

    def _pass_on(self) -> None:
        wanted = self._wanted
        since_s = wanted.since_s if not self._heard else time.time() - self._heard + 1.0
        log = self._cluster.log(
            self._pod["metadata"]["name"],
            is_following=True,
            since_s=None if since_s is None else max(1, round(since_s)),
            tail=None if self._heard else wanted.last,
        )
        try:
            with _unless_denied():
                for written, said in _read(log, self._pod, wanted):
                    if written > self._heard:
                        self._heard = written
                        self._lines.put(said)
        except BiremeError as e:
            self._lines.put(e)


def _from_volume(cluster: Cluster, name: str, wanted: Wanted, image: str | None) -> Iterator[tuple[str, str]]:
    from bireme.cli.fetch import left_by
    from bireme.kube.transfer import as_input
    from bireme.kube.volume import VolumePod

    since = time.time() - wanted.since_s if wanted.since_s is not None else None
    asked = {"node": wanted.node, "role": wanted.role, "last": wanted.last, "since": since}
    left = left_by(cluster, name, image)
    with VolumePod(cluster, left.place) as pod:
        found = pod.run(["logs", left.output], stdin=as_input(asked))
    if not found:
        raise UsageError(f"{name} has no such log", fix="leave --node, --role and --since out to see all")
    for line in found.decode(errors="replace").splitlines():
        told = json.loads(line)
        yield told["log"], told["line"]
