"""`bireme logs` for a job on a cluster: from its pods while they are there, from its volume afterwards."""

from __future__ import annotations

import json
import queue
import threading
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import click

from bireme.core.errors import BiremeError, UsageError

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
    pods = [] if wanted.from_volume else pods_with_logs(cluster, name, wanted)
    if wanted.is_following:
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


def said_by(cluster: Cluster, pod: dict[str, Any], wanted: Wanted, *, is_following: bool = False) -> Iterator[Said]:
    """What the processes of a pod have said; nothing where its machine cannot be asked."""
    from bireme.kube.listing import moment, rank_of
    from bireme.kube.merging import moment_of

    since = None if wanted.since_s is None else max(1, round(wanted.since_s))
    try:
        for text in cluster.log(pod["metadata"]["name"], is_following=is_following, since_s=since):
            stamp, _, rest = text.partition(" ")
            log, line = _split(rest, rank_of(pod))
            written = moment(stamp)
            # Its own time where it has one: the container's is that of the copy.
            said = Said(moment_of(line, time.gmtime(written).tm_year, written, is_utc=True) or written, log, line)
            if wanted.role is None or said.log.endswith(_file_of(wanted.role)):
                yield said
    except BiremeError:
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
    from bireme.kube.stopping import view_of

    lines: queue.Queue[Said] = queue.Queue()
    asked: set[str] = set()
    listeners: list[threading.Thread] = []
    looked = 0.0
    while True:
        if time.monotonic() - looked > PODS_EVERY_S:
            looked = time.monotonic()
            has_ended = is_ended(view_of(cluster, name).state) and not any(t.is_alive() for t in listeners)
            for pod in pods_with_logs(cluster, name, wanted):
                if pod["metadata"]["uid"] not in asked:
                    asked.add(pod["metadata"]["uid"])
                    listeners.append(_listen(said_by(cluster, pod, wanted, is_following=True), lines))
                    has_ended = False
            if has_ended and lines.empty():
                return
        try:
            yield lines.get(timeout=0.2)
        except queue.Empty:
            continue


def _listen(said: Iterable[Said], lines: queue.Queue[Said]) -> threading.Thread:
    def pass_on() -> None:
        for each in said:
            lines.put(each)

    listener = threading.Thread(target=pass_on, name="logs", daemon=True)
    listener.start()
    return listener


def _from_volume(cluster: Cluster, name: str, wanted: Wanted, image: str | None) -> Iterator[tuple[str, str]]:
    from bireme.cli.fetch import output_of, place_of
    from bireme.kube.transfer import as_input
    from bireme.kube.volume import VolumePod

    since = time.time() - wanted.since_s if wanted.since_s is not None else None
    asked = {"node": wanted.node, "role": wanted.role, "last": wanted.last, "since": since}
    with VolumePod(cluster, place_of(cluster, name, image)) as pod:
        found = pod.run(["logs", output_of(cluster, name)], stdin=as_input(asked))
    if not found:
        raise UsageError(f"{name} has no such log", fix="leave --node, --role and --since out to see all")
    for line in found.decode(errors="replace").splitlines():
        told = json.loads(line)
        yield told["log"], told["line"]
