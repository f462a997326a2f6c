"""The logs of a job on a cluster: from its pods while they exist, from its volume afterwards."""

from __future__ import annotations

import json
import queue
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager

from bireme.core.errors import BiremeError, ClusterError, NetworkError, UsageError
from bireme.job.output.logs import FILES, LogFilter, LogLine, moment_of
from bireme.kube.api import naming
from bireme.kube.api.client import POD, AbsentError, Cluster
from bireme.kube.api.fields import has_ended, name_of, phase_of, rank_of, seconds, status_of
from bireme.kube.api.naming import Object
from bireme.kube.jobs.lifecycle import jobs_of, view_of
from bireme.kube.jobs.listing import is_ended, role_of
from bireme.kube.jobs.volumes import left_by
from bireme.kube.volume.helper_pod import VolumePod
from bireme.kube.volume.transfer import as_input
from bireme.spec.load import command_name

OUTAGE_S = 120.0
"""How long the API server may be unreachable before a watch is given up; the job does not need it."""
PODS_EVERY_S = 2.0
TAIL_LINES, SHARED = 200, 10
"""How much of a pod's log is requested at first: so many lines at least, so many for each that is wanted."""
NOT_THERE = (
    "waiting to start", "ContainerCreating", "PodInitializing", "is not available", "is terminated",
    "no logs available",
)  # fmt: skip
"""The kubelet's errors for a container that has no log yet, or none any more."""
_Lines = queue.Queue[LogLine | BiremeError]


def lines_of(
    cluster: Cluster, name: str, wanted: LogFilter, image: str | None, note: Callable[[str], None] = lambda text: None
) -> Iterator[LogLine]:
    """Lines by time, from the pods if there are any."""
    if wanted.is_following and wanted.from_volume:
        raise UsageError("what is on the volume cannot be followed", fix="leave --from-volume or -f out")
    pods = [] if wanted.from_volume else pods_with_logs(cluster, name, wanted)
    if wanted.is_following and (pods or not is_ended(view_of(cluster, name).state)):
        yield from _followed(cluster, name, wanted)
    elif pods:
        yield from sorted((line for pod in pods for line in last_of(cluster, pod, wanted)), key=lambda line: line.when)
        if gone := pods_gone(cluster, name):
            how = f"`{command_name()} logs {name} --from-volume --namespace {cluster.namespace}`"
            note(f"({gone} earlier pods are gone; their logs are on the volume: {how})")
    else:
        yield from _from_volume(cluster, name, wanted, image)


def pods_with_logs(cluster: Cluster, name: str, wanted: LogFilter) -> list[Object]:
    pods = cluster.list(POD, naming.selector_of(name))
    return [pod for pod in pods if wanted.node in (None, rank_of(pod)) and _has_begun(pod)]


def _has_begun(pod: Object) -> bool:
    statuses = status_of(pod).get("containerStatuses") or ()
    return any("waiting" not in (each.get("state") or {}) for each in statuses)


def pods_gone(cluster: Cluster, name: str) -> int:
    """How many pods of a job have failed, were deleted or lost, and have taken their logs with them."""
    counted: int = sum(status_of(job).get("failed") or 0 for job in jobs_of(cluster, name))
    pods = cluster.list(POD, naming.selector_of(name)) if counted else []
    there: int = sum(phase_of(pod) == "Failed" for pod in pods)
    return max(counted - there, 0)


def last_of(cluster: Cluster, pod: Object, wanted: LogFilter) -> list[LogLine]:
    """The wanted lines of a pod; the whole log is requested only if its end has too few lines of each log."""
    last = wanted.last
    tail = None if last is None else max(TAIL_LINES, SHARED * last)
    lines = list(_lines(cluster, pod, wanted, tail))
    end = _ends(lines, pod, wanted)
    if last is not None and tail is not None and len(lines) >= tail:
        counts = Counter(line.log for line in end)
        if any(counts[log] < last for log in _logs_of(pod, wanted)):
            return _ends(_lines(cluster, pod, wanted), pod, wanted)
    return end


def _lines(cluster: Cluster, pod: Object, wanted: LogFilter, tail: int | None = None) -> Iterator[str]:
    """The lines of a pod's log; none where its machine cannot be reached, or has removed them."""
    since = None if wanted.since_s is None else max(1, round(wanted.since_s))
    with _unless_gone():
        yield from cluster.log(name_of(pod), container=naming.CONTAINER, since_s=since, tail=tail)


def _logs_of(pod: Object, wanted: LogFilter) -> Iterator[str]:
    roles = {"node": ("trainer", "pserver", "node")}.get(role_of(pod), (role_of(pod), "node"))
    for role in roles:
        if wanted.role in (None, role):
            yield f"node_{rank_of(pod)}/{FILES[role]}"


def _read(lines: Iterable[str], pod: Object, wanted: LogFilter) -> Iterator[tuple[float, LogLine]]:
    """The lines of a pod's processes, each with the moment when the container wrote it."""
    for text in lines:
        stamp, _, rest = text.partition(" ")
        try:
            written = seconds(stamp)
        except ValueError:
            continue  # the kubelet's own error: it has removed the log
        log, line = _split(rest, rank_of(pod))
        # Its own time where it has one: the container's is that of the copy.
        when = moment_of(line, time.gmtime(written).tm_year, written, is_utc=True) or written
        if wanted.role is None or log.endswith(FILES[wanted.role]):
            yield written, LogLine(when, log, line)


@contextmanager
def _unless_gone() -> Iterator[None]:
    """Let a log be as short as it is, where its container is gone or has not begun; raise any other refusal."""
    try:
        yield
    except (AbsentError, NetworkError):
        return
    except ClusterError as e:
        if not any(words in e.what for words in NOT_THERE):
            raise


def _split(text: str, rank: int) -> tuple[str, str]:
    who, bar, line = text.partition(" | ")
    role = who.partition(" ")[0] if bar else "node"
    if role not in ("trainer", "pserver"):
        role, line = "node", text
    return f"node_{rank}/{FILES[role]}", line


def _ends(lines: Iterable[str], pod: Object, wanted: LogFilter) -> list[LogLine]:
    """The wanted number of last lines of each log."""
    kept: Counter[str] = Counter()
    ends = []
    for _, line in reversed(list(_read(lines, pod, wanted))):
        kept[line.log] += 1
        if wanted.last is None or kept[line.log] <= wanted.last:
            ends.append(line)
    return ends[::-1]


def _followed(cluster: Cluster, name: str, wanted: LogFilter) -> Iterator[LogLine]:
    """New lines as they arrive, also from pods that start later; ends with the job."""
    lines: _Lines = queue.Queue()
    listeners: dict[str, _Listener] = {}
    looked, answered = 0.0, time.monotonic()
    while True:
        if time.monotonic() - looked > PODS_EVERY_S:
            looked = time.monotonic()
            try:
                is_over = is_ended(view_of(cluster, name).state)  # asked first: an ended job starts no more pods
                for pod in pods_with_logs(cluster, name, wanted):
                    listener = listeners.setdefault(pod["metadata"]["uid"], _Listener(cluster, pod, wanted, lines))
                    listener.listen(may_write=not has_ended(pod))
                answered = time.monotonic()
                if is_over and lines.empty() and not any(each.is_listening for each in listeners.values()):
                    return
            except NetworkError:
                if time.monotonic() - answered > OUTAGE_S:
                    raise  # before that, the next request may succeed
        try:
            line = lines.get(timeout=0.2)
        except queue.Empty:
            continue
        if isinstance(line, BiremeError):
            raise line
        yield line


class _Listener:
    """Queues new lines of one pod's log, in a thread; reads on after a lost connection."""

    def __init__(self, cluster: Cluster, pod: Object, wanted: LogFilter, lines: _Lines) -> None:
        self._cluster = cluster
        self._pod = pod
        self._wanted = wanted
        self._lines = lines
        self._thread: threading.Thread | None = None
        # When the container wrote the last line that was queued. Only the thread writes it, and only one thread runs.
        self._last = 0.0

    @property
    def is_listening(self) -> bool:
        return self._thread is not None and self._thread.is_alive()

    def listen(self, *, may_write: bool) -> None:
        """Read the log, once; again after a lost connection if the pod may write more."""
        if self._thread is None or (may_write and not self.is_listening):
            # A daemon: a silent log never returns, and nothing is lost with the thread.
            self._thread = threading.Thread(target=self._read, name="logs", daemon=True)
            self._thread.start()

    def _read(self) -> None:
        wanted, last = self._wanted, self._last
        since_s = wanted.since_s if not last else time.time() - last + 1.0
        log = self._cluster.log(
            name_of(self._pod),
            container=naming.CONTAINER,
            is_following=True,
            since_s=None if since_s is None else max(1, round(since_s)),
            tail=None if last else wanted.last,
        )
        try:
            with _unless_gone():
                for written, line in _read(log, self._pod, wanted):
                    if written > last:  # and not the last line's own moment: a burst shares one
                        self._last = max(self._last, written)
                        self._lines.put(line)
        except BiremeError as e:
            self._lines.put(e)


def _from_volume(cluster: Cluster, name: str, wanted: LogFilter, image: str | None) -> Iterator[LogLine]:
    request = {"node": wanted.node, "role": wanted.role, "last": wanted.last, "since": wanted.since or None}
    left = left_by(cluster, name, image)
    with VolumePod(cluster, left.place) as pod:
        lines = pod.run(["logs", left.output], stdin=as_input(request))
    if not lines:
        raise UsageError(f"{name} has no such log", fix="leave --node, --role and --since out to see all")
    for line in lines.decode(errors="replace").splitlines():
        payload = json.loads(line)
        yield LogLine(0.0, payload["log"], payload["line"])
