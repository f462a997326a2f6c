"""What clusters do to pods: whatever happens, a job ends with the bits of the run on this machine.

Faults are grouped so that each job suffers several, one after the other; between two of them it must be back at work.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tools.kube.cluster import Cluster
from tools.kube.machine import wait_for
from tools.kube.victim import Victim

from tests.kube.stage import There

OWNER = "batch.kubernetes.io/controller-uid"


def show(what: str, seconds: float) -> None:
    """Print what a fault cost, which pytest -s shows."""
    print(f"\n{what}: next round after {seconds:.1f} s")


# What happens on one machine


def test_killed_processes_containers_and_pods_change_no_bit(victim: Victim, ends_well: Callable[[], None]) -> None:
    show("trainer killed", victim.survive(lambda: victim.kill_process(1, "trainer")))
    show("pserver killed", victim.survive(lambda: victim.kill_process(2, "pserver")))
    show("coordinator killed", victim.survive(lambda: victim.kill_process(0, "pserver")))
    show("container killed", victim.survive(lambda: victim.kill_container(1)))
    show("pod deleted", victim.survive(lambda: victim.delete_pod(2)))
    ends_well()


@pytest.mark.slow  # a drain evicts, too, and test_why covers memory
def test_evicted_pods_and_pods_out_of_memory_change_no_bit(victim: Victim, ends_well: Callable[[], None]) -> None:
    wait_for("leave to evict a pod", lambda: may_evict(victim), seconds=60, every=0.5)
    show("pod evicted", victim.survive(lambda: victim.evict(0)))
    starved = victim.name_of(1)
    show("out of memory", victim.survive(lambda: victim.run_out_of_memory(1)))
    ended = next(pod for pod in victim.pods() if pod["metadata"]["name"] == starved)
    assert ended["status"]["containerStatuses"][0]["state"]["terminated"]["reason"] == "OOMKilled"
    ends_well()


def may_evict(victim: Victim) -> bool:
    """Whether the job's disruption budget lets a pod go right now."""
    path = f"/apis/policy/v1/namespaces/{victim.namespace}/poddisruptionbudgets/{victim.name}"
    return int(victim.cluster.api.get(path).get("status", {}).get("disruptionsAllowed", 0)) > 0


# What happens to machines


@pytest.mark.alone
@pytest.mark.parametrize("passes", [4])
def test_a_container_beside_its_replacement_changes_no_bit(
    victim: Victim, whole: Cluster, ends_well: Callable[[], None]
) -> None:
    """The treacherous one: the kubelet dies, its containers cannot be ended, and another pod takes their place."""
    machine = victim.machine_of(0)
    replace_behind_its_back(victim, 0, lambda: whole.stop_kubelet(machine))
    whole.start_kubelet(machine)
    await_ready(whole, machine)
    another = victim.machine_of(1)
    show("machine lost", victim.survive(lambda: whole.lose_node(another)))
    whole.restart_node(another)
    await_ready(whole, another)
    ends_well()


def await_ready(whole: Cluster, machine: str) -> None:
    """Wait until a machine takes part in the cluster again."""
    wait_for(f"{machine} to be ready", lambda: whole.readiness()[machine], seconds=120)


@pytest.mark.alone
@pytest.mark.slow
def test_a_machine_cut_from_the_control_plane_changes_no_bit(
    victim: Victim, whole: Cluster, ends_well: Callable[[], None]
) -> None:
    """As treacherous: its kubelet lives, but gets no order to end the pods that were replaced."""
    machine = victim.machine_of(2)
    replace_behind_its_back(victim, 2, lambda: whole.cut(machine, "cp"))
    whole.heal()
    await_ready(whole, machine)
    ends_well()


def replace_behind_its_back(victim: Victim, rank: int, hide: Callable[[], object]) -> None:
    """Hide a node's machine from the cluster; its pod runs on until it sees that another one has its place."""
    before, old, view, began = victim.name_of(rank), victim.processes(rank), victim.view(), time.time()
    hide()
    victim.await_another(rank, before)
    wait_for("the old container to leave by itself", lambda: not any(map(alive, old.values())), seconds=60)
    show("replaced behind its back", victim.await_rounds(after=began, view=view, more=3) - began)
    log = (victim.output / f"node_{rank}/node.log").read_text()
    assert "leaving cause=replaced-by-another-pod" in log, "both were to run side by side"


def alive(pid: int) -> bool:
    """Whether a process of this number runs."""
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    return False


@pytest.fixture
def uncordoned(whole: Cluster) -> Iterator[None]:
    """Machines take pods again, whatever a test did."""
    yield
    for machine in whole.nodes:
        whole.kubectl("uncordon", machine.name)


@pytest.mark.alone
@pytest.mark.usefixtures("uncordoned")
@pytest.mark.parametrize("passes", [6])
def test_a_drain_a_restart_a_cut_and_a_stop_change_no_bit(
    victim: Victim, whole: Cluster, there: There, ends_well: Callable[[], None]
) -> None:
    machine = victim.machine_of(2)
    # Pods of tests before this one may still be on their way out: only those of this job are drained.
    own = f"--pod-selector={OWNER}={victim.pod(2)['metadata']['labels'][OWNER]}"
    drain = ("drain", machine, own, "--delete-emptydir-data", "--force", "--ignore-daemonsets", "--timeout=120s")
    show("node drained", victim.survive(lambda: whole.kubectl(*drain, seconds=150)))
    whole.kubectl("uncordon", machine)
    whole.restart_apiserver()
    victim.await_rounds(after=time.time(), more=3)
    show("wire cut until it was noticed", victim.survive(lambda: cut_until_noticed(victim, whole)))
    assert there.ask("cancel", "small")["state"] == "suspended"
    assert not [pod for pod in victim.pods() if pod["status"]["phase"] in ("Pending", "Running")]
    show("resumed", victim.survive(lambda: there.do("resume", "small")))
    ends_well()


def cut_until_noticed(victim: Victim, whole: Cluster) -> None:
    """Cut the wire between the coordinator's machine and another one, until a connection was given up."""
    began = time.time()
    ranks = [rank for rank in (1, 2) if victim.machine_of(rank) != victim.machine_of(0)]
    whole.cut(victim.machine_of(0), victim.machine_of(ranks[0]))
    wait_for("a loss", lambda: any(row["unix"] > began for row in victim.lines("lost")), seconds=120)
    whole.heal()
