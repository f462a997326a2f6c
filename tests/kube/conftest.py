"""Tests on a real cluster: `cluster` is one that is up, started for these tests where it was not.

Workers share it (see sharing.py): long tests come first, those marked `alone` last.

BIREME_KUBE_NAME names another cluster than the usual one. Where root or Go is missing the tests are skipped, and
the last line of the run says so in red; anywhere else a cluster that does not start fails them.
"""

from __future__ import annotations

import os
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tools.kube import build
from tools.kube.cluster import Cluster
from tools.kube.machine import wait_for
from tools.kube.running import Places
from xdist.scheduler import LoadScopeScheduling

from tests.kube.ordeal import ends_well, expected, passes, victim  # noqa: F401 - fixtures
from tests.kube.sharing import Turns, once
from tests.kube.stage import WAS_MADE, There, load_image, make_reviews, restrict

HERE = Path(__file__).parent
# The first start builds Kubernetes.
START_SECONDS = 1800
NAME = os.environ.get("BIREME_KUBE_NAME", "bireme")
TURNS = pytest.StashKey[Turns]()
WHOLE = ("test_seeds", "test_why_jobs", "test_images", "test_why", "test_gathering", "test_accepted")
"""Modules whose tests share jobs or objects of the cluster: one worker runs them all, in their order."""
LONG = (
    "test_outsiders", "test_seeds", "test_why_jobs", "test_logs", "test_recovery", "test_leaving", "test_submit",
    "test_volume", "test_images", "test_why", "test_gathering", "test_permissions",
)  # fmt: skip
"""Modules that begin first, so that at the end no worker waits for one that has just begun a long test."""


class Dealing(LoadScopeScheduling):
    """Gives a worker one test at a time, or a module of those that stay whole.

    (pytest-xdist's own `--dist loadgroup` would do, but its version 3.8 writes groups where pytest 9.2 does not look.)
    """

    def _split_scope(self, nodeid: str) -> str:
        module = nodeid.partition("::")[0]
        return module if Path(module).stem in WHOLE else nodeid


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Dealing | None:
    return Dealing(config, log) if config.getoption("dist") == "loadscope" else None


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    ours = [item for item in items if HERE in item.path.parents]
    for item in ours:
        item.add_marker(pytest.mark.kube)
        if item.get_closest_marker("timeout") is None:
            item.add_marker(pytest.mark.timeout(START_SECONDS))
    ordered = iter(sorted(ours, key=lambda item: (is_alone(item), rank_of(item))))
    items[:] = [next(ordered) if HERE in item.path.parents else item for item in items]


def is_alone(item: pytest.Item) -> bool:
    """Whether no other test may run on the cluster meanwhile."""
    return item.get_closest_marker("alone") is not None


def rank_of(item: pytest.Item) -> int:
    """The place of a test's module among the long ones, or behind them."""
    return LONG.index(item.path.stem) if item.path.stem in LONG else len(LONG)


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    if build.missing_ground():
        return  # it is about to be skipped
    if TURNS not in item.config.stash:
        item.config.stash[TURNS] = Turns(Places.of(os.environ).state, NAME)
    item.config.stash[TURNS].take(alone=is_alone(item))


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session: pytest.Session) -> None:
    if TURNS in session.config.stash:
        session.config.stash[TURNS].close()


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    skipped = [report for report in terminalreporter.stats.get("skipped", []) if "kube" in report.keywords]
    if skipped and (lack := build.missing_ground()):
        message = f"{len(skipped)} TESTS ON KUBERNETES DID NOT RUN: {lack}"
        terminalreporter.write_line(message, red=True, bold=True)


@pytest.fixture(scope="session")
def places() -> Places:
    if lack := build.missing_ground():
        pytest.skip(lack)
    build.require_packages(lambda line: None)
    return Places.of(os.environ)


@pytest.fixture(scope="session")
def cluster(places: Places, request: pytest.FixtureRequest) -> Iterator[Cluster]:
    """The three-node cluster; taken down by the worker that started it, if one of this run did, after all others."""
    reporter = request.config.pluginmanager.get_plugin("terminalreporter")

    def report(line: str) -> None:
        if reporter is not None:
            reporter.write_line(f"kube: {line}")

    cluster, turns = Cluster(places, NAME, report=report), request.config.stash[TURNS]
    turns.users.share()
    was_made = request.config.stash[WAS_MADE] = cluster.up()
    yield cluster
    turns.end()  # a worker that waits to run its tests alone would never end otherwise
    if was_made:
        turns.users.own()
        assert cluster.down() == []
    turns.users.release()


@pytest.fixture
def namespace(cluster: Cluster) -> Iterator[str]:
    """A namespace for one test, deleted with all that is in it."""
    name = f"test-{uuid.uuid4().hex[:8]}"
    cluster.kubectl("create", "namespace", name)
    account = f"/api/v1/namespaces/{name}/serviceaccounts?fieldSelector=metadata.name=default"
    wait_for("the namespace's service account", lambda: bool(cluster.api.get(account)["items"]), seconds=60)
    yield name
    cluster.kubectl("delete", "namespace", name, "--wait=false")


@pytest.fixture
def whole(cluster: Cluster) -> Iterator[Cluster]:
    """The cluster, to be broken: whatever the test did, its nodes are on, wired and ready afterwards."""
    yield cluster
    cluster.heal()
    for node in cluster.nodes:
        if not node.is_on():
            cluster.restart_node(node.name)
        elif node.daemons()["kubelet"]["code"] is not None:
            cluster.start_kubelet(node.name)
    wait_for("all nodes to be ready again", lambda: all(cluster.readiness().values()), seconds=120, every=0.5)


@pytest.fixture(scope="session")
def image(cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> str:
    """The name of an image of this tree that every node has."""
    return str(once(tmp_path_factory, "image", lambda: load_image(cluster)))


@pytest.fixture(scope="session")
def reviews(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """601 reviews, as for the tests of whole jobs on this machine."""
    return make_reviews(tmp_path_factory)


@pytest.fixture
def there(cluster: Cluster, image: str, namespace: str, tmp_path: Path) -> There:
    """The command line, logged in to a namespace that lets only restricted pods in."""
    restrict(cluster, namespace)
    return There(tmp_path, cluster, namespace, image)
