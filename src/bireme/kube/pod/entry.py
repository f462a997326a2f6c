"""The main program of a pod: gets its rank, waits for the other nodes, and runs its node's processes.

A job never half-starts: no process is started before the job is settled (ownership.py) and every node writes heartbeats
to the volume. The log and the status name missing nodes; so does the error after the timeout. Then the entry runs the
node (job/node/entry.py), and a `PodWatch` serves the probes and the copied logs.
"""

from __future__ import annotations

import contextlib
import logging
import math
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path

from msgspec.structs import replace

from bireme.core.errors import BiremeError, NetworkError, StorageError
from bireme.core.forking import Loader
from bireme.core.log import GlogFormatter
from bireme.job.node.entry import STOPPED, NodeConfig, children_of, note_signals, roles_of, run_node
from bireme.job.node.failure_reports import (
    failure_of,
    first_cause,
    has_ended,
    last_status,
    read_reports,
    report_failure,
)
from bireme.job.node.incarnations import Lease
from bireme.job.node.log_budget import Copier
from bireme.job.output import ownership
from bireme.job.output.volume_probe import check_volume
from bireme.job.status import JobStatus
from bireme.kube.api import naming
from bireme.kube.plain.peers import HeartbeatFiles
from bireme.kube.plain.ranks import RankWait
from bireme.kube.plain.tutorial import CONNECT_TIMEOUT_S
from bireme.kube.pod.environment import PATIENCE, PodPlace, cluster_in, place_of
from bireme.kube.pod.liveness import PodWatch, PreStopSnapshot, Probes
from bireme.kube.pod.status_annotation import Publisher, Reporter, give_up, is_hopeless
from bireme.spec.job import Job

log = logging.getLogger(__name__)
REST_S = 0.1
BEAT_S = 1.0
LOG_AFTER_S = 2.0
"""Nodes that arrive within this time are not logged as missing."""
SIGN_EVERY_S = 0.2
"""Heartbeat interval of a waiting node; a running one writes every second."""
SIGN_PATIENCE_S = 60.0
"""How long a node may be silent: volumes show writes late, and a node that ends cleanly removes its heartbeat."""
SKEW_S = 30.0
"""How much machines' clocks may differ."""
LOOK_EVERY_S, LOOK_EACH_S = 0.2, 0.01
"""How often a waiting node reads the heartbeats, plus a delay for each node: all nodes read all files."""


def run_pod(environment: Mapping[str, str], load: Loader | None = None) -> None:
    """Run this pod's node to its end; raises the first error. `load` lets the node fork its children."""
    stops = note_signals()  # first: also a pod that waits for its rank must end when it is asked to
    probes = Probes(Path(environment.get("BIREME_PROBES") or "/tmp/bireme"))
    try:
        place = place_of(environment, _waiting(probes, stops), check_volume)
    except BiremeError as e:
        _give_up_blindly(environment, e)
        raise
    if place is None:
        raise SystemExit(STOPPED)
    PodNode(place, probes, stops, load).run()


def _give_up_blindly(environment: Mapping[str, str], error: BiremeError) -> None:
    """End the job of a pod that cannot read its job, by the names in its environment."""
    main, is_inside = environment.get("BIREME_KUBE_JOB", ""), bool(environment.get("KUBERNETES_SERVICE_HOST"))
    if not (main and is_inside and is_hopeless(error)):
        return
    name = main.removesuffix("-pserver")
    names = (main, naming.job_name(name, "trainer")) if environment.get("BIREME_ROLE") else (main,)
    give_up(partial(cluster_in, environment.get("POD_NAMESPACE", "")), names, error)


def _rest(probes: Probes, stops: Sequence[int]) -> bool:
    """Wait a little; False once this pod is asked to stop."""
    probes.beat()
    time.sleep(REST_S)
    return not stops


class NodesMissingError(NetworkError):
    """Some of a job's nodes did not arrive in time; the others end, to free their machines."""


def _waiting(probes: Probes, stops: Sequence[int]) -> Callable[[RankWait], bool]:
    """The rest of a pod of a plain Job that waits for its rank, up to a deadline; a surplus pod has none."""
    began_s = time.monotonic()

    def rest(wait: RankWait) -> bool:
        waited_s = time.monotonic() - began_s
        if waited_s > PATIENCE * CONNECT_TIMEOUT_S and not wait.is_surplus:
            raise NodesMissingError(
                f"waited {waited_s:.0f} s for the other pods: {wait.why}",
                why="a job starts when all its nodes are there",
                fix="look at the pods of the Job with kubectl; CONF_PADDLE_GRADIENT_NUM says how many there must be",
            )
        return _rest(probes, stops)

    return rest


class PodNode:
    """A pod from the moment it has a rank."""

    def __init__(self, place: PodPlace, probes: Probes, stops: list[int], load: Loader | None = None) -> None:
        self._place = place
        self._load = load
        self._probes = probes
        self._stops = stops
        self._run = Path(place.job.output) / ownership.RUN_DIRECTORY
        self._nodes = self._run / "nodes"
        self._name = f"{place.role or 'node'} {place.rank}"
        # Before any other step: from now on an older pod of this node finds its lease lost, and leaves.
        self._lease = Lease.take(self._nodes / _file_name(self._name), place.pod.name)
        here = (self._run / "present", _file_name(self._name), place.host)
        self._heartbeats = HeartbeatFiles(*here, every_s=SIGN_EVERY_S, patience_s=SIGN_PATIENCE_S)
        self._duties = (*place.each_second, self._heartbeats.beat)
        self._leads = roles_of(place.job, place.rank, place.role)[:1] == ["pserver"] and place.rank == 0
        self._connect = partial(cluster_in, place.pod.namespace)
        self._reporter: Reporter | None = None
        self._born = time.time()
        self._old_reports = read_reports(self._run)
        """Reports from before our first heartbeat: those of an earlier try."""

    def run(self) -> None:
        place, output = self._place, Path(self._place.job.output)
        _keep_log(output / f"node_{place.rank}" / "node.log")
        machine = place.pod.machine or "?"
        log.info("starting %s job=%s pod=%s machine=%s", self._name, place.job.name, place.pod.name, machine)
        if self._leads and place.kube_job:
            self._reporter = Reporter(self._status, Publisher(self._connect, place.kube_job))
        self._heartbeats.beat()
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
            # Else the heartbeat file is the successor's by now.
            if not self._lease.is_lost():
                self._heartbeats.leave()

    def _take_part(self) -> None:
        job = self._settle()
        if self._is_finished(job):
            return
        self._gather(job)
        if self._is_finished(job):  # by the other nodes, while this one waited
            return
        if job.tls:
            from bireme.ps.wire import security

            security.use(Path(job.tls))
        place = self._place
        config = NodeConfig(
            ownership.job_file(job), place.rank, self._run, place.role, place.host, place.pod.scratch, self._lease
        )
        children = children_of(job, config)
        pre_stop = PreStopSnapshot(lambda is_wish: self._ask(is_wish=is_wish), place.pod.grace_s)
        copier = Copier({child.name: child.log for child in children}, sys.stdout.buffer)
        watch = PodWatch(self._lease, self._probes, copier, pre_stop)
        watch.marks = [child.mark for child in children if child.mark is not None]
        watch.each_second += self._duties
        if self._reporter is not None:
            watch.each_second.append(self._reporter.start)  # after the children: it makes a thread, and they are forked
        run_node(config, watch, self._stops, self._load)
        # A node whose own processes ended cleanly, or were ended after the job, still fails with the job.
        failure = failure_of(Path(job.output), self._run)
        if failure is not None:
            raise failure

    # Before anything runs

    def _is_finished(self, job: Job) -> bool:
        is_so = last_status(Path(job.output)).phase == "finished"
        if is_so:
            log.info("already finished output=%s", job.output)
        return is_so

    def _settle(self) -> Job:
        job = self._place.job
        # Of an earlier try of this node: `_fail` keeps a report that is there, and other nodes read them.
        for report in self._own_reports():
            report.unlink(missing_ok=True)
        if self._leads:
            with self._alive():
                return ownership.claim(job)
        settled: list[Job] = []

        def missing() -> list[str]:
            settled[:] = ownership.ready_job(job)
            return [] if settled else ["node 0 (it has not begun the job)"]

        self._wait(missing)
        return settled[0]

    @contextlib.contextmanager
    def _alive(self) -> Iterator[None]:
        """Write heartbeats and probe files in a thread while the main one scans a slow volume.

        The duties are not locked: the main thread runs none of them before this one has ended.
        """
        over = threading.Event()

        def beat() -> None:
            while not over.wait(BEAT_S):
                self._probes.beat()
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
        place = self._place
        names = [self._name, *(f"{role} {place.rank}" for role in roles_of(place.job, place.rank, place.role))]
        return [self._run / "reports" / f"{_file_name(name)}.json" for name in names]

    def _gather(self, job: Job) -> None:
        """Wait until every node writes heartbeats; the stale one of a node that is gone does not count."""
        roles = {"node": job.nodes}
        if self._place.role is not None:
            roles = {"pserver": job.pservers, "trainer": job.trainers}
        wanted = [f"{role} {rank}" for role, count in roles.items() for rank in range(count)]
        absent, look_s = [name for name in wanted if name != self._name], -math.inf

        def missing() -> list[str]:
            nonlocal absent, look_s
            if has_ended(Path(job.output)):
                return []  # nodes that have ended with the job will not come again
            if time.monotonic() - look_s >= LOOK_EVERY_S + LOOK_EACH_S * len(wanted):
                there = {peer.name for peer in self._heartbeats.look().peers}
                absent = [name for name in wanted if name != self._name and _file_name(name) not in there]
                look_s = time.monotonic()
            return [f"{name} (its pod gives no sign of life)" for name in absent]

        self._wait(missing)

    def _wait(self, missing: Callable[[], list[str]]) -> None:
        """Wait until no node is missing, up to a deadline; log and report the missing ones."""
        began_s, logged, look_s = time.monotonic(), [""], -math.inf
        while absent := missing():
            if time.monotonic() - look_s >= BEAT_S:
                look_s = time.monotonic()
                if (cause := self._hopeless_cause()) is not None:
                    raise cause  # the failed node will not come
            waited_s = time.monotonic() - began_s
            if waited_s > self._place.job.connect_timeout_s:
                raise NodesMissingError(
                    f"waited {waited_s:.0f} s for {'; '.join(absent)}",
                    why="a job starts when all its nodes are there",
                    fix=f"`bireme why {self._place.job.name}` shows what their pods wait for",
                )
            if waited_s > LOG_AFTER_S:
                if absent != logged:
                    logged = absent
                    log.info("waiting members=%r", "; ".join(absent))
                if self._reporter is not None:
                    status = JobStatus(phase="gathering", job=self._place.job.name, waits_for=tuple(absent))
                    self._reporter.hear(status, time.monotonic())
            for duty in self._duties:
                duty()
            if not _rest(self._probes, self._stops) or self._lease.is_lost():
                raise SystemExit(STOPPED)

    def _hopeless_cause(self) -> BiremeError | None:
        """Another node's failure since this pod started, if this pod would fail alike.

        A volume may show an earlier try's report late, so the report must not be much older than this pod either.
        """
        reports = read_reports(self._run)
        recent = (each for each in reports if each not in self._old_reports and each.time >= self._born - SKEW_S)
        cause = first_cause(recent)
        return cause.error() if cause is not None and is_hopeless(cause.error()) else None

    # While it runs, and after

    def _status(self) -> JobStatus | None:
        from bireme.ps.wire import security

        status, until = self._ask(), security.good_until()
        return status if status is None or until is None else replace(status, certificate_until=until)

    def _ask(self, *, is_wish: bool = False) -> JobStatus | None:
        """The job's status, after requesting a snapshot if `is_wish`; None if the coordinator does not answer."""
        from bireme.job.coordination import messages as m
        from bireme.job.node.discovery import discovery_of

        job, host = self._place.job, self._place.host
        address: m.Address | None
        if self._leads and host:
            address = m.Address(host=host, ports=(job.first_port,))
        else:
            address = discovery_of(job, self._run).look_up(0)
        try:
            return None if address is None else m.ask(address, m.SaveSoon() if is_wish else m.GetStatus())
        except BiremeError:
            return None

    def _fail(self, error: BiremeError) -> None:
        # A report of this node's own process names the cause; ours would only repeat its effect.
        if not any(report.exists() for report in self._own_reports()):
            with contextlib.suppress(OSError, StorageError):
                (self._run / "reports").mkdir(parents=True, exist_ok=True)
                report_failure(self._run, self._name, error)
        self._report(error)
        if (is_hopeless(error) or isinstance(error, NodesMissingError)) and self._place.kube_job:
            give_up(self._connect, self._place.all_jobs, error)

    def _report(self, error: BiremeError | None) -> None:
        """Publish the final status; the first failure may be in another node's report."""
        if self._reporter is None or self._lease.is_lost():  # then the successor publishes
            return
        status = last_status(Path(self._place.job.output))
        if error is not None:
            cause = first_cause(read_reports(self._run))
            error = cause.error() if cause is not None else error
        self._reporter.finish(status if status.phase else None, error)


def _file_name(name: str) -> str:
    return name.replace(" ", "-")


def _keep_log(path: Path) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handler = logging.FileHandler(path)
    except OSError as e:
        log.warning("failed to open log path=%s cause=%r", path, e.strerror)
        return
    handler.setFormatter(GlogFormatter())
    logging.getLogger("bireme").addHandler(handler)
