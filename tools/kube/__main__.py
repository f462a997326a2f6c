"""`./dev kube`: the test cluster from the command line."""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from pathlib import Path

import click

from bireme.core.errors import BiremeError, UsageError

from .cluster import Cluster
from .running import Places, RunningCluster

SETTINGS = {"help_option_names": ["-h", "--help"], "max_content_width": 100}


class Session:
    """One call of the command: which cluster, and how to talk."""

    def __init__(self, name: str, as_json: bool) -> None:
        self.places = Places.of(os.environ)
        self.name = name
        self.as_json = as_json
        self._begin = time.monotonic()

    @property
    def cluster(self) -> RunningCluster:
        """The cluster, which must be up."""
        cluster = RunningCluster(self.places, self.name)
        cluster.facts  # noqa: B018 - refuses where it is not up
        return cluster

    def progress(self, line: str) -> None:
        """Say what is being done, on standard error."""
        click.echo(f"kube {time.monotonic() - self._begin:5.1f} s  {line}", err=True)

    def say(self, text: str, **facts: object) -> None:
        """The result, for people or as JSON."""
        click.echo(json.dumps(facts) if self.as_json else text)


@click.group(context_settings=SETTINGS, epilog="First time here? `./dev kube up`, then `./dev kube shell`.")
@click.option("--name", default="bireme", show_default=True, help="Several clusters may run; this names one.")
@click.option("--json", "as_json", is_flag=True, help="Print the result as JSON.")
@click.pass_context
def kube(context: click.Context, name: str, as_json: bool) -> None:
    """A real Kubernetes on this machine for the end-to-end tests: control plane and nodes in namespaces."""
    context.obj = Session(name, as_json)


def _json(function: click.decorators.FC) -> click.decorators.FC:
    """Let `--json` also stand behind the command."""

    def note(context: click.Context, _: click.Parameter, value: bool) -> None:
        if value:
            context.find_object(Session).as_json = True  # type: ignore[union-attr]

    help_ = "Print the result as JSON."
    return click.option("--json", is_flag=True, expose_value=False, callback=note, help=help_)(function)


@kube.command()
@click.option("--nodes", default=3, show_default=True, help="How many nodes.")
@click.option("--stock", is_flag=True, help="Kubernetes' own timings; default: a lost node is noticed after 8 s.")
@_json
@click.pass_obj
def up(session: Session, nodes: int, stock: bool) -> None:
    """Build what is missing, start the cluster, wait until it can be used. For example: ./dev kube up --nodes 3"""
    cluster = Cluster(session.places, session.name, nodes=nodes, stock=stock, report=session.progress)
    was_made = cluster.up()
    state = "is up" if was_made else "was up already"
    facts = cluster.facts
    count = f"{facts.nodes} node{'s' if facts.nodes > 1 else ''}"
    text = f"The test cluster {state}: {count}, started in {facts.seconds:g} s.\n"
    text += f"  export KUBECONFIG={cluster.kubeconfig}\n  ./dev kube shell     kubectl and all"
    session.say(text, was_made=was_made, **_facts(cluster))


@kube.command()
@_json
@click.pass_obj
def down(session: Session) -> None:
    """End the cluster and check that nothing of it is left. For example: ./dev kube down"""
    cluster = Cluster(session.places, session.name)
    was_there = cluster.run.exists()
    left = cluster.down()
    lines = ["The test cluster left something behind:", *(f"  {thing}" for thing in left)]
    clean = "The test cluster is gone; nothing is left." if was_there else "No test cluster was there."
    session.say("\n".join(lines) if left else clean, leftovers=left)
    if left:
        raise SystemExit(1)


@kube.command()
@_json
@click.pass_obj
def status(session: Session) -> None:
    """What runs, and where its kubeconfig and logs are. For example: ./dev kube status --json"""
    cluster = RunningCluster(session.places, session.name)
    if not cluster.is_up:
        session.say(f"The test cluster '{session.name}' is not up. Type: ./dev kube up", is_up=False)
        return
    facts = _facts(cluster)
    session.say(_table(facts), **facts)


def _facts(cluster: RunningCluster) -> dict[str, object]:
    facts = cluster.facts
    try:
        ready = cluster.readiness()
    except BiremeError:
        ready = {}
    machines = []
    for machine in [cluster.control, *cluster.nodes]:
        daemons = machine.daemons() if machine.is_on() else {}
        states = {name: "runs" if d["code"] is None else f"ended with {d['code']}" for name, d in daemons.items()}
        shown = {"name": machine.name, "address": machine.address, "is_on": bool(daemons), "daemons": states}
        if machine is not cluster.control:
            shown["ready"] = ready.get(machine.name, False)
        machines.append(shown)
    return {
        "is_up": True,
        "name": cluster.name,
        "kubeconfig": str(cluster.kubeconfig),
        "kubectl": str(cluster.kubectl_path),
        "run": str(cluster.run),
        "logs": str(cluster.run / "logs"),
        "volume": str(cluster.volume),
        "registry": f"127.0.0.1:{facts.registry_port}",
        "timings": "stock" if facts.stock else "short",
        "started_s": facts.seconds,
        "control": machines[0],
        "nodes": machines[1:],
    }


def _table(facts: dict[str, object]) -> str:
    lines = [f"  {key:11} {facts[key]}" for key in ("kubeconfig", "kubectl", "logs", "volume", "timings")]
    machines = [facts["control"], *facts["nodes"]]  # type: ignore[misc]
    for machine in machines:
        assert isinstance(machine, dict)
        word = "control plane" if "ready" not in machine else "Ready" if machine["ready"] else "NotReady"
        dead = [f"{name} {state}" for name, state in machine["daemons"].items() if state != "runs"]
        state = "off" if not machine["is_on"] else "; ".join(dead) or "all daemons run"
        lines.append(f"  {machine['name']:11} {machine['address']:12} {word:13} {state}")
    return f"The test cluster '{facts['name']}' is up.\n" + "\n".join(lines)


@kube.command()
@click.option("-c", "command", help="Run one command instead, and exit with its code.")
@click.pass_obj
def shell(session: Session, command: str | None) -> None:
    """A shell in which kubectl talks to the cluster. For example: ./dev kube shell -c 'kubectl get pods -A'"""
    cluster = session.cluster
    environment = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"}
    environment["KUBECONFIG"] = str(cluster.kubeconfig)
    environment["PATH"] = f"{cluster.kubectl_path.parent}:{environment.get('PATH', '')}"
    program = environment.get("SHELL") or "/bin/bash"
    argv = ["/bin/sh", "-c", command] if command is not None else [program]
    sys.stdout.flush()
    os.execve(argv[0], argv, environment)


@kube.command()
@click.argument("archive", type=click.Path(path_type=Path))
@_json
@click.pass_obj
def load(session: Session, archive: Path) -> None:
    """Import an image archive (OCI or docker) into every node. For example: ./dev kube load bireme.tar"""
    names = session.cluster.load(archive)
    session.say(f"Loaded into every node: {' '.join(names) or archive.name}", images=names)


@kube.command("lose-node")
@click.argument("node")
@_json
@click.pass_obj
def lose_node(session: Session, node: str) -> None:
    """Switch a node off as if its power failed. For example: ./dev kube lose-node n2"""
    session.cluster.lose_node(node)
    session.say(f"{node} is off. Back: ./dev kube restart-node {node}", node=node, is_on=False)


@kube.command("restart-node")
@click.argument("node")
@_json
@click.pass_obj
def restart_node(session: Session, node: str) -> None:
    """Switch a node on again, with the disk it had. For example: ./dev kube restart-node n2"""
    session.cluster.restart_node(node)
    session.say(f"{node} is on.", node=node, is_on=True)


@kube.command("stop-kubelet")
@click.argument("node")
@_json
@click.pass_obj
def stop_kubelet(session: Session, node: str) -> None:
    """Kill a node's kubelet; its containers run on. For example: ./dev kube stop-kubelet n2"""
    session.cluster.stop_kubelet(node)
    session.say(f"{node}'s kubelet is gone. Back: ./dev kube start-kubelet {node}", node=node)


@kube.command("start-kubelet")
@click.argument("node")
@_json
@click.pass_obj
def start_kubelet(session: Session, node: str) -> None:
    """Start a stopped kubelet again. For example: ./dev kube start-kubelet n2"""
    session.cluster.start_kubelet(node)
    session.say(f"{node}'s kubelet runs.", node=node)


@kube.command("restart-apiserver")
@_json
@click.pass_obj
def restart_apiserver(session: Session) -> None:
    """Kill the API server and start it again. For example: ./dev kube restart-apiserver"""
    session.cluster.restart_apiserver()
    session.say("The API server is ready again.")


@kube.command()
@click.argument("one")
@click.argument("other")
@_json
@click.pass_obj
def cut(session: Session, one: str, other: str) -> None:
    """Drop every packet between two machines, pods included. For example: ./dev kube cut n1 n2"""
    session.cluster.cut(one, other)
    session.say(f"{one} and {other} do not hear each other. Back: ./dev kube heal", cut=[one, other])


@kube.command()
@_json
@click.pass_obj
def heal(session: Session) -> None:
    """Undo every cut. For example: ./dev kube heal"""
    session.cluster.heal()
    session.say("Every cut is undone.")


def main() -> None:
    """Run the command; errors are printed as everywhere in this project."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that a start that is ended clears up
    try:
        kube.main(prog_name="./dev kube", standalone_mode=False)
    except click.exceptions.NoArgsIsHelpError as e:
        click.echo(e.format_message())
    except click.ClickException as e:
        _fail(UsageError(e.format_message(), fix="`./dev kube --help` lists the commands"))
    except (click.Abort, KeyboardInterrupt):
        raise SystemExit(130) from None
    except BiremeError as e:
        _fail(e)


def _fail(error: BiremeError) -> None:
    if "--json" in sys.argv:
        click.echo(json.dumps({"error": type(error).__name__, "what": error.what, "why": error.why, "fix": error.fix}))
    else:
        click.echo(f"error: {error}", err=True)
    raise SystemExit(error.exit_code)


if __name__ == "__main__":
    main()
