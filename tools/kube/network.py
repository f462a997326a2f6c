"""The wires between the machines: one bridge in the control plane's namespace, one cable to each node.

    cp  br0 10.250.0.1/24 ─┬─ n1 eth0 10.250.0.11, pods 10.244.1.0/24
                           └─ n2 eth0 10.250.0.12, pods 10.244.2.0/24 …

Nodes route each other's pods through each other's address; service addresses (10.96.0.0/16) get a route only so
that kube-proxy's rules see them. There is no way out: everything else is unreachable at once instead of hanging.
A cable ends in the namespaces of two processes, so it is gone when one of them is.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence

from bireme.core.errors import ProcessError

from .machine import Machine

CONTROL = "10.250.0.1"
SERVICES = "10.96.0.0/16"
API_SERVICE = "10.96.0.1"
DNS_SERVICE = "10.96.0.10"
PODS = "10.244.0.0/16"
CUT_CHAIN = "bireme-CUT"


def node_address(number: int) -> str:
    """The address of node `number` (from 1)."""
    return f"10.250.0.{10 + number}"


def pod_range(number: int) -> str:
    """The addresses of the pods of node `number`."""
    return f"10.244.{number}.0/24"


def wire_control(control: Machine) -> None:
    """Make the bridge that all cables end in."""
    _ip(control, "link set lo up", "link add br0 type bridge", f"addr add {CONTROL}/24 dev br0", "link set br0 up")


def wire_node(control: Machine, node: Machine, number: int, count: int) -> None:
    """Plug a node in, and set routes to pods on it and on the control plane."""
    with contextlib.suppress(ProcessError):
        _ip(control, f"link del {node.name}")  # a lost node's cable may take a moment to vanish
    _ip(
        control,
        f"link add {node.name} type veth peer name eth0 netns {node.pid()}",
        f"link set {node.name} master br0 up",
        f"route replace {pod_range(number)} via {node.address}",
    )
    others = [n for n in range(1, count + 1) if n != number]
    _ip(
        node,
        "link set lo up",
        f"addr add {node.address}/24 dev eth0",
        "link set eth0 up",
        f"route add {SERVICES} via {CONTROL}",
        "route add unreachable default",
        *(f"route add {pod_range(n)} via {node_address(n)}" for n in others),
    )


def cut(here: Machine, peer: Sequence[str]) -> None:
    """Drop, without a word, every packet between this machine and the addresses of another one."""
    for table, hook in (("raw", "PREROUTING"), ("mangle", "POSTROUTING")):
        _chain(here, table, hook)
        match = ("-i", "eth0", "-s") if table == "raw" else ("-o", "eth0", "-d")
        for address in peer:
            here.run("iptables", "-w", "-t", table, "-A", CUT_CHAIN, *match, address, "-j", "DROP", only_net=True)


def heal(here: Machine) -> None:
    """Undo every cut made on this machine."""
    for table, hook in (("raw", "PREROUTING"), ("mangle", "POSTROUTING")):
        _chain(here, table, hook)
        here.run("iptables", "-w", "-t", table, "-F", CUT_CHAIN, only_net=True)


def _chain(here: Machine, table: str, hook: str) -> None:
    rules = here.run("iptables", "-w", "-t", table, "-S", only_net=True)
    if f"-N {CUT_CHAIN}" not in rules:
        here.run("iptables", "-w", "-t", table, "-N", CUT_CHAIN, only_net=True)
        here.run("iptables", "-w", "-t", table, "-I", hook, "-j", CUT_CHAIN, only_net=True)


def _ip(machine: Machine, *commands: str) -> None:
    machine.run("ip", "-batch", "-", stdin="\n".join(commands) + "\n", only_net=True)
