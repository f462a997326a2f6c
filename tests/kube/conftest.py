"""Tests on a real cluster: `cluster` is one that is up, started for these tests where it was not.

BIREME_KUBE_NAME names another cluster than the usual one. Where root or Go is missing the tests are skipped, and
the last line of the run says so in red; anywhere else a cluster that does not start fails them.
"""

from __future__ import annotations

import os
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest
from tools.kube import build
from tools.kube.cluster import Cluster
from tools.kube.machine import wait_for
from tools.kube.running import Places

from tests.kube.ordeal import ends_well, expected, passes, victim  # noqa: F401 - fixtures
from tests.kube.stage import WAS_MADE, There, load_image, make_reviews, restrict

HERE = Path(__file__).parent
# The first start builds Kubernetes.
START_SECONDS = 1800


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if HERE in item.path.parents:
            item.add_marker(pytest.mark.kube)
            if item.get_closest_marker("timeout") is None:
                item.add_marker(pytest.mark.timeout(START_SECONDS))


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    skipped = [report for report in terminalreporter.stats.get("skipped", []) if "kube" in report.keywords]
    if skipped and (lack := build.missing_ground()):
        told = f"{len(skipped)} TESTS ON KUBERNETES DID NOT RUN: {lack}"
        terminalreporter.write_line(told, red=True, bold=True)


@pytest.fixture(scope="session")
def places() -> Places:
    if lack := build.missing_ground():
        pytest.skip(lack)
    build.require_packages(lambda line: None)
    return Places.of(os.environ)


@pytest.fixture(scope="session")
def cluster(places: Places, request: pytest.FixtureRequest) -> Iterator[Cluster]:
    """The three-node cluster; taken down afterwards only where this run started it."""
    reporter = request.config.pluginmanager.get_plugin("terminalreporter")

    def tell(line: str) -> None:
        if reporter is not None:
            reporter.write_line(f"kube: {line}")

    cluster = Cluster(places, os.environ.get("BIREME_KUBE_NAME", "bireme"), tell=tell)
    was_made = request.config.stash[WAS_MADE] = cluster.up()
    yield cluster
    if was_made:
        assert cluster.down() == []


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
def image(cluster: Cluster) -> str:
    """The name of an image of this tree that every node has."""
    return load_image(cluster)


@pytest.fixture(scope="session")
def reviews(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """601 reviews, as for the tests of whole jobs on this machine."""
    return make_reviews(tmp_path_factory)


@pytest.fixture
def there(cluster: Cluster, image: str, namespace: str, tmp_path: Path) -> There:
    """The command line, logged in to a namespace that lets only restricted pods in."""
    restrict(cluster, namespace)
    return There(tmp_path, cluster, namespace, image)
