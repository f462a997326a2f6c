"""Pods that are not of a job connect to its pservers: they are refused, logged once, and change nothing."""

from __future__ import annotations

import base64
import json
import re
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tools.kube.cluster import Cluster
from tools.kube.machine import Machine, wait_for
from tools.kube.victim import Victim

from bireme.core.certificates import Pair, files_of, make_ca
from tests.kube.stage import There, small_job

PORT = 7164
OUTSIDER = Path(__file__).with_name("outsider.py")
# Prints what goes to a port of an address as it is, packet by packet: a stranger on the wire sees no more.
LISTEN = """
import base64, socket, struct, sys
host, port = socket.inet_aton(sys.argv[1]), int(sys.argv[2])
wire = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.ntohs(3))
wire.setsockopt(socket.SOL_SOCKET, 33, 1 << 24)  # SO_RCVBUFFORCE
kept = {}  # bytes of each new connection; it is read late, and a full pipe would stop the recording
print("ready", flush=True)
while True:
    packet = wire.recv(65535)
    if packet[12:14] != b"\\x08\\x00" or packet[23] != 6 or packet[30:34] != host:
        continue
    at = 14 + (packet[14] & 15) * 4
    source, target, number = struct.unpack_from("!HHI", packet, at)
    end, begin = 14 + struct.unpack_from("!H", packet, 16)[0], at + (packet[at + 12] >> 4) * 4
    if target == port and packet[at + 13] & 2:
        kept[source] = 0
    if target == port and kept.get(source, 8000) < 8000:
        kept[source] += end - begin
        print(source, number, packet[at + 13] & 2, base64.b64encode(packet[begin:end]).decode(), flush=True)
"""


class Outsider:
    """A pod in a namespace of its own."""

    def __init__(self, cluster: Cluster, namespace: str, victim: Victim) -> None:
        self._cluster, self._namespace, self._victim = cluster, namespace, victim

    @property
    def address(self) -> str:
        """The address that it connects from."""
        return str(self._cluster.get("pod", "outsider", "-n", self._namespace)["status"]["podIP"])

    def attempt(self, how: str, times: int = 1, **more: Any) -> dict[str, int]:
        """Connect to pservers in turn; returns how many connections were reached and let in."""
        hosts = [self._victim.pod(rank)["status"]["podIP"] for rank in range(3)]
        request = {"try": how, "times": times, "hosts": hosts, "port": PORT, "data": "", "certificates": {}, **more}
        program = OUTSIDER.read_text()
        command = ("exec", "-i", "outsider", "-n", self._namespace, "--", "python3", "-c", program)
        done = self._cluster.kubectl(*command, stdin=json.dumps(request) + "\n", seconds=600)
        found: dict[str, int] = json.loads(done)
        return found


@pytest.fixture
def outsider(cluster: Cluster, namespace: str, image: str, victim: Victim) -> Iterator[Outsider]:
    other = f"{namespace}-other"
    cluster.kubectl("create", "namespace", other)
    box = {"name": "box", "image": image, "command": ["sleep", "3600"]}
    pod = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "outsider", "namespace": other},
        "spec": {"terminationGracePeriodSeconds": 0, "automountServiceAccountToken": False, "containers": [box]},
    }
    cluster.apply(pod)
    status = f"/api/v1/namespaces/{other}/pods/outsider"
    wait_for("the outsider", lambda: cluster.api.get(status)["status"]["phase"] == "Running", seconds=120)
    yield Outsider(cluster, other, victim)
    cluster.kubectl("delete", "namespace", other, "--wait=false")


def refusals(victim: Victim, address: str) -> Counter[tuple[int, str]]:
    """How often each pserver has logged that it refused a connection, by its rank and the reason it gave."""
    found: Counter[tuple[int, str]] = Counter()
    for rank in range(3):
        log = (victim.output / f"node_{rank}/server.log").read_text()
        for line in re.findall(rf"refused connection peer={re.escape(address)} cause=(.*)", log):
            found[rank, line] += 1
    return found


def record(machine: Machine, address: str) -> subprocess.Popen[str]:
    """Begin to listen on a machine's wires to what goes to a pserver; returns when it does."""
    command = machine.inside(sys.executable, "-I", "-c", LISTEN, address, str(PORT), only_net=True)
    recorder = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert recorder.stdout is not None and recorder.stdout.readline() == "ready\n"
    return recorder


def longest_stream(lines: list[str]) -> bytes:
    """Of all connections that were recorded from their first packet on, the bytes of the one that sent most."""
    packets: dict[str, dict[int, bytes]] = {}
    begins: dict[str, int] = {}
    for line in lines:
        source, number, is_first, data = line.split(" ")
        if is_first != "0":
            begins[source] = int(number) + 1
        elif data:
            packets.setdefault(source, {})[int(number)] = base64.b64decode(data)
    streams = []
    for source, begin in begins.items():
        said, at = b"", begin
        while (more := packets.get(source, {}).get(at)) is not None:
            said, at = said + more, (at + len(more)) % 2**32
        streams.append(said)
    return max(streams, key=len, default=b"")


@pytest.mark.parametrize(("times", "passes"), [(1_000, 4), pytest.param(10_000, 6, marks=pytest.mark.slow)])
def test_outsiders_are_refused_logged_once_and_change_no_bit(
    victim: Victim, outsider: Outsider, cluster: Cluster, ends_well: Callable[[], None], times: int
) -> None:
    stranger: Pair = make_ca("another job")
    name = f"small.{victim.namespace}.bireme"
    of_another = {key: data.decode() for key, data in files_of(stranger, "other.elsewhere.bireme").items()}
    in_our_name = {key: data.decode() for key, data in files_of(stranger, name).items()}
    for certificates in ({}, of_another, in_our_name):
        result = outsider.attempt("greet", times=6, certificates=certificates)
        assert result == {"reached": 6, "let_in": 0}
    http = base64.b64encode(b"GET / HTTP/1.1\r\nHost: small\r\n\r\n").decode()
    assert outsider.attempt("throw", times=6, data=http) == {"reached": 6, "let_in": 0}

    recorder = record(cluster.node(victim.machine_of(0)), str(victim.pod(0)["status"]["podIP"]))
    victim.survive(lambda: victim.kill_process(1, "trainer"))
    recorder.kill()
    said = longest_stream(recorder.communicate()[0].splitlines()[:-1])
    assert len(said) > 1000, "a whole handshake and something after it were to be recorded"
    replayed = base64.b64encode(said).decode()
    assert outsider.attempt("throw", times=6, data=replayed) == {"reached": 6, "let_in": 0}

    began = time.time()
    result = outsider.attempt("throw", times=times)
    took_s = time.time() - began
    assert result["let_in"] == 0 and result["reached"] > 0.9 * times, result
    meanwhile = len({row["round"] for row in victim.lines() if row["unix"] > began})
    assert meanwhile > 0, "the job was to continue"

    logged = refusals(victim, outsider.address)
    print(f"\n{result['reached']} of {times} in {took_s:.1f} s, {meanwhile} rounds meanwhile; logged: {dict(logged)}")
    assert {rank for rank, _ in logged} == {0, 1, 2}
    assert max(logged.values()) == 1 and sum(logged.values()) < 40
    ends_well()


def test_a_network_policy_is_made_for_the_lanes(there: There, reviews: Path) -> None:
    there.do("submit", small_job(there, reviews, more="  suspend: true\n"))
    policy = there.cluster.get("networkpolicy", "small", "-n", there.namespace)["spec"]
    ours = {"app.kubernetes.io/name": "bireme", "app.kubernetes.io/instance": "small"}
    assert policy["policyTypes"] == ["Ingress"]
    assert policy["podSelector"]["matchLabels"].items() <= ours.items()
    (rule,) = policy["ingress"]
    (peer,) = rule["from"]
    assert set(peer) == {"podSelector"}, "only pods of this namespace"
    assert peer["podSelector"]["matchLabels"].items() >= {"app.kubernetes.io/instance": "small"}.items()
    assert [(port["port"], port["endPort"]) for port in rule["ports"]] == [(PORT, PORT + 1)]
