"""What a pod runs: finds out which node of which job it is, waits for the others, and runs that node's processes.

A job never half-starts: nothing is started before the job is settled (claims.py) and every node gives signs of life on
the volume. Who is missing is told in the log, in the status, and when patience ends, in the error. From then on the
entry looks after the node (job/node/entry.py) and a `PodWatch` after what the cluster wants to see of it.
"""

from __future__ import annotations

import contextlib
import logging
import math
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from bireme.core.errors import BiremeError, NetworkError, StorageError
from bireme.core.log import GlogFormatter
from bireme.job.node.entry import STOPPED, NodeConfig, children_of, note_signals, report_failure, roles_of, run_node
from bireme.job.node.failure_reports import failure_of, first_cause, has_ended, last_status, read_reports
from bireme.job.node.incarnations import Lease
from bireme.job.node.log_budget import Copier
from bireme.job.output import ownership
from bireme.job.output.volume_probe import check_volume
from bireme.kube.api import naming
from bireme.kube.plain.peers import HeartbeatFiles
from bireme.kube.plain.ranks import Wait
from bireme.kube.plain.tutorial import CONNECT_TIMEOUT_S
from bireme.kube.pod.environment import PATIENCE, PodPlace, cluster_of, jobs_in, place_of
from bireme.kube.pod.giving_up import Jobs, give_up, is_hopeless
from bireme.kube.pod.liveness import PodWatch, PreStopSnapshot, Probes
from bireme.kube.pod.status_annotation import Publisher, Reporter, Status, waiting_status
from bireme.spec.job import Job

log = logging.getLogger(__name__)
REST_S = 0.1
BEAT_S = 1.0
SAY_AFTER_S = 2.0
"""Whoever comes within this time was not worth a word."""
SIGN_EVERY_S = 0.2
"""How often a node that waits says that it is there; one that runs says so every second."""
SIGN_PATIENCE_S = 60.0
"""For so long a node may be silent: volumes show late what others write, and who leaves in peace says so."""
SKEW_S = 30.0
"""So much may machines' clocks differ."""
LOOK_EVERY_S, LOOK_EACH_S = 0.2, 0.01
"""How often a node that waits looks for the others, and how much less for each of them: all look at all."""


def run_pod(environment: Mapping[str, str]) -> None:
    """Run this pod's node to its end; raises what went wrong first."""
    stops = note_signals()
    probes = Probes(Path(environment.get("BIREME_PROBES") or "/tmp/bireme"))
    try:
        place = place_of(environment, _Waiting(probes, stops).rest, check_volume)
    except BiremeError as e:
        _give_up_blindly(environment, e)
        raise
    if place is None:
        raise SystemExit(STOPPED)
    Member(place, probes, stops).run()


def _give_up_blindly(environment: Mapping[str, str], error: BiremeError) -> None:
    """End the job of a pod that cannot even tell what it belongs to, by the names that its environment has."""
    main, is_inside = environment.get("BIREME_KUBE_JOB", ""), bool(environment.get("KUBERNETES_SERVICE_HOST"))
    if not (main and is_inside and is_hopeless(error)):
        return
    name = main.removesuffix("-pserver")
    names = (main, naming.job_name(name, "trainer")) if environment.get("BIREME_ROLE") else (main,)
    _end_jobs(lambda: jobs_in(environment.get("POD_NAMESPACE", "")), names, error)


def _end_jobs(connect: Callable[[], Jobs], names: Sequence[str], error: BiremeError) -> None:
    try:
        give_up(connect(), names, error)
    except BiremeError as e:
        log.warning("the job cannot be ended, its pods will come again: %s", e.what)


def _rest(probes: Probes, stops: Sequence[int]) -> bool:
    """Wait a little; whether to go on waiting."""
    probes.set("started", is_so=True)
    probes.set("alive", is_so=True)
    time.sleep(REST_S)
    return not stops


class NodesMissingError(NetworkError):
    """Some of a job's nodes did not come in time: the others give back what they hold."""


class _Waiting:
    """A pod of a plain Job that has no rank yet, because others are not there; with a deadline."""

    def __init__(self, probes: Probes, stops: Sequence[int]) -> None:
        self._probes = probes
        self._stops = stops
        self._began_s = time.monotonic()

    def rest(self, wait: Wait) -> bool:
        """Wait a little; whether to go on waiting. One pod too many may wait until another has left."""
        waited_s = time.monotonic() - self._began_s
        if waited_s > PATIENCE * CONNECT_TIMEOUT_S and not wait.is_surplus:
            raise NodesMissingError(
                f"waited {waited_s:.0f} s for the other pods: {wait.why}",
                why="a job starts when all its nodes are there",
                fix="look at the pods of the Job with kubectl; CONF_PADDLE_GRADIENT_NUM says how many there must be",
            )
        return _rest(self._probes, self._stops)


class Member:
    """A pod from the moment it knows which node of the job it is."""

    def __init__(self, place: PodPlace, probes: Probes, stops: list[int]) -> None:
        self._place = place
        self._probes = probes
        self._stops = stops
        self._run = Path(place.job.output) / ownership.RUN_DIRECTORY
        self._nodes = self._run / "nodes"
        self._name = f"{place.role or 'node'} {place.rank}"
        self._seat = Lease.take(self._nodes / _file_name(self._name), place.pod.name)
        here = (self._run / "present", _file_name(self._name), place.host)
        self._meeting = HeartbeatFiles(*here, every_s=SIGN_EVERY_S, patience_s=SIGN_PATIENCE_S)
        self._duties = (*place.each_second, self._meeting.beat)
        self._leads = roles_of(place.job, place.rank, place.role)[:1] == ["pserver"] and place.rank == 0
        self._reporter: Reporter | None = None
        self._born = time.time()
        self._old_reports = read_reports(self._run / "reports")
        """Left before anybody could have seen us: of an earlier try."""

    def run(self) -> None:
        """Take part in the job until it is over."""
        place, output = self._place, Path(self._place.job.output)
        _keep_log(output / f"node_{place.rank}" / "node.log")
        log.info("%s of %s, in pod %s on %s", self._name, place.job.name, place.pod.name, place.pod.machine or "?")
        if self._leads and place.kube_job:
            tell = Publisher(lambda job, change: cluster_of(place).patch(job, change), place.kube_job)
            self._reporter = Reporter(self._status, tell)
        self._meeting.beat()
        try:
            self._take_part()
            self._report(None)
        except BiremeError as e:
            self._fail(e)
            raise
        except SystemExit:
            self._report(self._hopeless_cause())
            raise
        finally:
            if not self._seat.is_lost():
                self._meeting.leave()

    def _take_part(self) -> None:
        job = self._settle()
        if self._is_finished(job):
            return
        self._gather(job)
        if self._is_finished(job):
            return
        if job.tls:
            from bireme.ps.wire import security

            security.use(Path(job.tls))
        if self._reporter is not None:
            self._reporter.start()
        place = self._place
        post = NodeConfig(
            ownership.job_file(job), place.rank, self._run, place.role, place.host, place.pod.scratch, self._seat
        )
        children = children_of(job, post)
        farewell = PreStopSnapshot(lambda is_wish: self._ask(is_wish=is_wish), place.pod.grace_s)
        copier = Copier({child.name: child.log for child in children}, sys.stdout.buffer)
        watch = PodWatch(self._seat, self._probes, copier, farewell)
        watch.marks = [child.mark for child in children if child.mark is not None]
        watch.each_second += self._duties
        run_node(post, watch, self._stops)
        # Whose own processes left in peace, or had to be ended after the job was over, has failed with the others.
        failure = failure_of(Path(job.output), self._run)
        if failure is not None:
            raise failure

    # Before anything runs

    def _is_finished(self, job: Job) -> bool:
        is_so: bool = last_status(Path(job.output)).get("phase") == "finished"
        if is_so:
            log.info("this job is finished: its models are in %s", job.output)
        return is_so

    def _settle(self) -> Job:
        """The job as all nodes run it: settled by the first of them, awaited by the others."""
        given = self._place.job
        for report in self._own_reports():
            report.unlink(missing_ok=True)
        if self._leads:
            with self._alive():
                return ownership.claim(given)
        found: list[Job] = []

        def missing() -> list[str]:
            found[:] = ownership.ready_job(given)
            return [] if found else ["node 0 (it has not begun the job)"]

        self._wait(missing)
        return found[0]

    @contextlib.contextmanager
    def _alive(self) -> Iterator[None]:
        """Give signs of life while something takes long: a volume with many files is slow to look through."""
        over = threading.Event()

        def beat() -> None:
            while not over.wait(BEAT_S):
                for sign in ("started", "alive"):
                    self._probes.set(sign, is_so=True)
                for duty in self._duties:
                    duty()

        thread = threading.Thread(target=beat, name="alive", daemon=True)
        thread.start()
        try:
            yield
        finally:
            over.set()
            thread.join()

    def _own_reports(self) -> list[Path]:
        """Where this node's processes say what went wrong."""
        place = self._place
        names = [self._name, *(f"{role} {place.rank}" for role in roles_of(place.job, place.rank, place.role))]
        return [self._run / "reports" / f"{_file_name(name)}.json" for name in names]

    def _gather(self, job: Job) -> None:
        """Wait until every node is there: what one that is gone has left on the volume does not count."""
        is_split = self._place.role is not None
        wanted = [f"node {rank}" for rank in range(job.nodes)]
        if is_split:
            wanted = [f"pserver {rank}" for rank in range(job.pservers)]
            wanted += [f"trainer {rank}" for rank in range(job.trainers)]

        absent, look_s = [name for name in wanted if name != self._name], -math.inf

        def missing() -> list[str]:
            nonlocal absent, look_s
            if has_ended(Path(job.output)):
                return []  # whoever has left since will not come again
            if time.monotonic() - look_s >= LOOK_EVERY_S + LOOK_EACH_S * len(wanted):
                there = {peer.name for peer in self._meeting.look().peers}
                absent = [name for name in wanted if name != self._name and _file_name(name) not in there]
                look_s = time.monotonic()
            return [f"{name} (its pod gives no sign of life)" for name in absent]

        self._wait(missing)

    def _wait(self, missing: Callable[[], list[str]]) -> None:
        """Wait until nobody is missing; with a deadline, and with words about who is."""
        began_s, said, look_s = time.monotonic(), [""], -math.inf
        while found := missing():
            if time.monotonic() - look_s >= BEAT_S:
                look_s = time.monotonic()
                if (cause := self._hopeless_cause()) is not None:
                    raise cause  # who has failed and left will not come
            waited_s = time.monotonic() - began_s
            if waited_s > self._place.job.connect_timeout_s:
                raise NodesMissingError(
                    f"waited {waited_s:.0f} s for {'; '.join(found)}",
                    why="a job starts when all its nodes are there",
                    fix=f"`bireme why {self._place.job.name}` tells what their pods wait for",
                )
            if waited_s > SAY_AFTER_S:
                if found != said:
                    said = found
                    log.info("waiting for %s", "; ".join(found))
                if self._reporter is not None:
                    self._reporter.hear(waiting_status(self._place.job.name, found), time.monotonic())
            for duty in self._duties:
                duty()
            if not _rest(self._probes, self._stops) or self._seat.is_lost():
                raise SystemExit(STOPPED)

    def _hopeless_cause(self) -> BiremeError | None:
        """What another node has failed of since we are here, if we would too.

        A volume may show late what an earlier try has left, so it must not be much older than this pod, too.
        """
        reports = read_reports(self._run / "reports")
        news = (each for each in reports if each not in self._old_reports and each.time >= self._born - SKEW_S)
        cause = first_cause(news)
        return cause.error() if cause is not None and is_hopeless(cause.error()) else None

    # While it runs, and after

    def _status(self) -> Status | None:
        """What the cluster is told: the coordinator's word, and when the job's certificate is over."""
        from bireme.ps.wire import security

        status, until = self._ask(), security.good_until()
        return status if status is None or until is None else {**status, "certificate_until": until}

    def _ask(self, *, is_wish: bool = False) -> Status | None:
        """The job's status, after asking for a snapshot if told to; None if nobody answers."""
        from bireme.job.coordination import messages as m
        from bireme.job.coordination.query import ask
        from bireme.job.node.discovery import discovery_of

        job, host = self._place.job, self._place.host
        address: m.Address | None
        if self._leads and host:
            address = m.Address(host=host, ports=(job.first_port,))
        else:
            address = discovery_of(job, self._run).look_up(0)
        try:
            return None if address is None else ask(address, m.SaveSoon() if is_wish else m.GetStatus())
        except BiremeError:
            return None

    def _fail(self, error: BiremeError) -> None:
        if not any(report.exists() for report in self._own_reports()):
            with contextlib.suppress(OSError, StorageError):
                (self._run / "reports").mkdir(parents=True, exist_ok=True)
                report_failure(self._run, self._name, error)
        self._report(error)
        if (is_hopeless(error) or isinstance(error, NodesMissingError)) and self._place.kube_job:
            _end_jobs(lambda: cluster_of(self._place), self._place.all_jobs, error)

    def _report(self, error: BiremeError | None) -> None:
        """Node 0's last word to the cluster; what went wrong first may have been told by another node."""
        if self._reporter is None or self._seat.is_lost():  # then its successor speaks
            return
        status: dict[str, Any] = last_status(Path(self._place.job.output))
        if error is not None:
            cause = first_cause(read_reports(self._run / "reports"))
            error = cause.error() if cause is not None else error
        self._reporter.finish(status or None, error)


def _file_name(name: str) -> str:
    """What a node or a process is called on the volume."""
    return name.replace(" ", "-")


def _keep_log(path: Path) -> None:
    """Let this process's own log lines go to the volume too."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handler = logging.FileHandler(path)
    except OSError as e:
        log.warning("no log on the volume: %s", e.strerror)
        return
    handler.setFormatter(GlogFormatter())
    logging.getLogger("bireme").addHandler(handler)
