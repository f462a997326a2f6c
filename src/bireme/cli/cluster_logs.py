"""`bireme logs` for a job on a cluster: from its pods while they are there, from its volume afterwards."""

from __future__ import annotations

import json
import queue
import threading
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import click

from bireme.core.errors import BiremeError, ClusterError, NetworkError, UsageError
from bireme.spec.load import command_name

if TYPE_CHECKING:
    from bireme.kube.api.client import Cluster

PODS_EVERY_S = 2.0
TAIL_LINES, SHARED = 200, 10
"""How much of a pod's log is asked for at first: so many lines at least, so many for each that is wanted."""
NOT_THERE = (
    "waiting to start", "ContainerCreating", "PodInitializing", "is not available", "is terminated",
    "no logs available",
)  # fmt: skip
"""What a machine says of a container that has no log yet, or none any more."""


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


_Lines = queue.Queue[Said | BiremeError]


def print_logs(cluster: Cluster, name: str, wanted: Wanted, image: str | None, *, as_json: bool) -> None:
    """Print a job's logs in the order of time."""
    for log, line in lines_of(cluster, name, wanted, image):
        click.echo(json.dumps({"log": log, "line": line}) if as_json else f"{log}: {line}")


def lines_of(cluster: Cluster, name: str, wanted: Wanted, image: str | None) -> Iterator[tuple[str, str]]:
    """Log and line, from the pods if there are any."""
    from bireme.kube.jobs.lifecycle import view_of
    from bireme.kube.jobs.listing import is_ended

    if wanted.is_following and wanted.from_volume:
        raise UsageError("what is on the volume cannot be followed", fix="leave --from-volume or -f out")
    pods = [] if wanted.from_volume else pods_with_logs(cluster, name, wanted)
    if wanted.is_following and (pods or not is_ended(view_of(cluster, name).state)):
        yield from ((said.log, said.line) for said in _followed(cluster, name, wanted))
    elif pods:
        found = [said for pod in pods for said in last_of(cluster, pod, wanted)]
        yield from ((said.log, said.line) for said in sorted(found, key=lambda said: said.when))
        if gone := pods_gone(cluster, name):
            how = f"`{command_name()} logs {name} --from-volume --namespace {cluster.namespace}`"
            click.echo(f"({gone} earlier pods are gone; what they have said is on the volume: {how})", err=True)
    else:
        yield from _from_volume(cluster, name, wanted, image)


def pods_with_logs(cluster: Cluster, name: str, wanted: Wanted) -> list[dict[str, Any]]:
    """The pods whose logs can be asked for: those that have begun."""
    from bireme.kube.api import naming
    from bireme.kube.api.client import POD
    from bireme.kube.jobs.listing import rank_of

    pods = cluster.list(POD, naming.selector_of(name))
    begun = [p for p in pods if any(not _waits(c) for c in (p.get("status") or {}).get("containerStatuses") or ())]
    return [pod for pod in begun if wanted.node in (None, rank_of(pod))]


def pods_gone(cluster: Cluster, name: str) -> int:
    """How many pods of a job have failed, were deleted or lost, and have taken their logs with them."""
    from bireme.kube.api import naming
    from bireme.kube.api.client import POD
    from bireme.kube.jobs.lifecycle import jobs_of

    counted: int = sum((job.get("status") or {}).get("failed") or 0 for job in jobs_of(cluster, name))
    pods = cluster.list(POD, naming.selector_of(name)) if counted else []
    there: int = sum((pod.get("status") or {}).get("phase") == "Failed" for pod in pods)
    return max(counted - there, 0)


def _waits(container: dict[str, Any]) -> bool:
    return "waiting" in (container.get("state") or {})


def last_of(cluster: Cluster, pod: dict[str, Any], wanted: Wanted) -> list[Said]:
    """What is wanted of a pod; all of it is asked for only where its end does not have enough of each log."""
    last = wanted.last
    if last is None:
        return list(said_by(_lines(cluster, pod, wanted), pod, wanted))
    tail = max(TAIL_LINES, SHARED * last)
    lines = list(_lines(cluster, pod, wanted, tail))
    found = _tail(list(said_by(lines, pod, wanted)), last)
    counts = Counter(said.log for said in found)
    if len(lines) >= tail and any(counts[log] < last for log in _logs_of(pod, wanted)):
        return _tail(list(said_by(_lines(cluster, pod, wanted), pod, wanted)), last)
    return found


def _lines(cluster: Cluster, pod: dict[str, Any], wanted: Wanted, tail: int | None = None) -> Iterator[str]:
    """The lines of a pod's log; none where its machine cannot be asked, or has thrown them away."""
    from bireme.kube.api import naming

    since = None if wanted.since_s is None else max(1, round(wanted.since_s))
    with _unless_gone():
        yield from cluster.log(pod["metadata"]["name"], container=naming.CONTAINER, since_s=since, tail=tail)


def _logs_of(pod: dict[str, Any], wanted: Wanted) -> Iterator[str]:
    """The logs that share a pod's stream, as far as they are wanted."""
    from bireme.kube.jobs.listing import rank_of, role_of

    roles = {"node": ("trainer", "pserver", "node")}.get(role_of(pod), (role_of(pod), "node"))
    for role in roles:
        if wanted.role in (None, role):
            yield f"node_{rank_of(pod)}/{_file_of(role)}"


def said_by(lines: Iterable[str], pod: dict[str, Any], wanted: Wanted) -> Iterator[Said]:
    """What the processes of a pod have said."""
    for _, said in _read(lines, pod, wanted):
        yield said


def _read(lines: Iterable[str], pod: dict[str, Any], wanted: Wanted) -> Iterator[tuple[float, Said]]:
    """A pod's lines as said by its processes, each with the moment when the container wrote it."""
    from bireme.kube.jobs.listing import moment, rank_of
    from bireme.kube.jobs.log_merge import moment_of

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
def _unless_gone() -> Iterator[None]:
    """Let a log be as short as it is, where its container is gone or has not begun; any other refusal is told."""
    from bireme.kube.api.client import AbsentError

    try:
        yield
    except (AbsentError, NetworkError):
        return
    except ClusterError as e:
        if not any(words in e.what for words in NOT_THERE):
            raise


def _file_of(role: str) -> str:
    from bireme.kube.jobs.log_merge import FILES

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
    from bireme.cli.following import OUTAGE_S

    lines: _Lines = queue.Queue()
    listeners: dict[str, _Listener] = {}
    looked, answered = 0.0, time.monotonic()
    while True:
        if time.monotonic() - looked > PODS_EVERY_S:
            looked = time.monotonic()
            try:
                has_ended = _listen(cluster, name, wanted, listeners, lines)
                answered = time.monotonic()
                if has_ended and lines.empty() and not any(each.is_listening for each in listeners.values()):
                    return
            except NetworkError:
                if time.monotonic() - answered > OUTAGE_S:
                    raise  # before, the next look may find it back
        try:
            said = lines.get(timeout=0.2)
        except queue.Empty:
            continue
        if isinstance(said, BiremeError):
            raise said
        yield said


def _listen(cluster: Cluster, name: str, wanted: Wanted, listeners: dict[str, _Listener], lines: _Lines) -> bool:
    """Have a listener at every pod that has something to say; whether the job has ended."""
    from bireme.kube.jobs.lifecycle import is_live, view_of
    from bireme.kube.jobs.listing import is_ended

    has_ended = is_ended(view_of(cluster, name).state)
    for pod in pods_with_logs(cluster, name, wanted):
        known = listeners.setdefault(pod["metadata"]["uid"], _Listener(cluster, pod, wanted, lines))
        if known.is_to_listen(is_live(pod)):
            known.start()
    return has_ended


class _Listener:
    """One pod's log as it comes, taken up again where a connection was lost."""

    def __init__(self, cluster: Cluster, pod: dict[str, Any], wanted: Wanted, lines: _Lines) -> None:
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
        from bireme.kube.api import naming

        wanted, heard = self._wanted, self._heard
        since_s = wanted.since_s if not heard else time.time() - heard + 1.0
        log = self._cluster.log(
            self._pod["metadata"]["name"],
            container=naming.CONTAINER,
            is_following=True,
            since_s=None if since_s is None else max(1, round(since_s)),
            tail=None if heard else wanted.last,
        )
        try:
            with _unless_gone():
                for written, said in _read(log, self._pod, wanted):
                    if written > heard:  # and not the last line's own moment: a burst shares one
                        self._heard = max(self._heard, written)
                        self._lines.put(said)
        except BiremeError as e:
            self._lines.put(e)


def _from_volume(cluster: Cluster, name: str, wanted: Wanted, image: str | None) -> Iterator[tuple[str, str]]:
    from bireme.cli.fetch import left_by
    from bireme.kube.volume.helper_pod import VolumePod
    from bireme.kube.volume.transfer import as_input

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
