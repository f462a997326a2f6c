"""Shared by the commands of `bireme cluster`: the target cluster, progress, and a connection to its API server."""

from __future__ import annotations

import functools
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from bireme.cli.output import note
from bireme.core.errors import Cancelled, SpecError, UsageError
from bireme.spec.load import aws_region, command_name

if TYPE_CHECKING:
    from bireme.aws.client import Aws
    from bireme.aws.cloudformation.causes import Event
    from bireme.kube.api.client import Cluster
    from bireme.spec.cluster import ClusterFile

DEFAULT_FILE = Path("cluster.yaml")
json_option = click.option("--json", "as_json", is_flag=True, help="Print one JSON object on stdout.")
file_option = click.option(
    "-f", "--file", "path", type=Path, default=DEFAULT_FILE, show_default=True, help="The cluster's file."
)


@dataclass(frozen=True, slots=True)
class Target:
    """The cluster that a command works on."""

    name: str
    region: str
    file: ClusterFile | None = None

    def aws(self) -> Aws:
        from bireme.aws.client import Aws

        return Aws(self.region)

    @property
    def as_arguments(self) -> str:
        """The arguments that select it, for hints."""
        return f"{self.name} --region {self.region}"


def target_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add `[NAME] [--region R] [-f FILE]` to a command and pass them as one value `target`."""

    @functools.wraps(command)
    def located(*args: Any, name: str | None, region: str | None, path: Path, **rest: Any) -> Any:
        return command(*args, target=find_target(name, region, path), **rest)

    for option in (
        file_option,
        click.option("--region", help="AWS region, if no file gives it. Left out: AWS_REGION."),
        click.argument("name", required=False),
    ):
        located = option(located)
    return located


def find_target(name: str | None, region: str | None, path: Path) -> Target:
    from bireme.spec.cluster_load import load_cluster

    if name is None and not path.exists():
        fix = "name the cluster, `NAME --region REGION`, or its file with -f"
        raise UsageError(f"which cluster? there is no file {path}", fix=fix)
    try:
        file = load_cluster(path) if path.exists() else None
    except SpecError:
        if name is None or region is None:
            raise
        file = None  # name and region suffice, for example to take down a cluster whose file is broken
    if file is not None and name in (None, file.name):
        return Target(file.name, region or file.region, file)
    where = region or aws_region()
    if name is None or where is None:
        raise UsageError(f"in which region is {name}?", fix="name it with --region, or its file with -f")
    return Target(name, where)


class Watcher:
    """Prints stacks' events; on a terminal also a live line with the resources in work."""

    def __init__(self, now: Callable[[], float]) -> None:
        from bireme.aws.cloudformation.progress import StackProgress

        self._progress, self._now = StackProgress(), now
        self._live: Any = None

    def __call__(self, stack: str, events: list[Event]) -> None:
        for line in self._progress.take(stack, events):
            self.note(f"  {line}")

    def note(self, text: str) -> None:
        """Print a line above the live line."""
        if self._live is not None:
            self._live.console.print(text, markup=False, highlight=False)
        else:
            note(text)

    def __rich__(self) -> str:
        waiting = self._progress.waiting(self._now())
        return f"waiting for {waiting}" if waiting else "asking AWS"

    @contextmanager
    def shown(self) -> Iterator[Watcher]:
        """Show the live line on a terminal."""
        if not sys.stderr.isatty():
            yield self
            return
        from rich.console import Console
        from rich.live import Live

        with Live(self, console=Console(stderr=True), refresh_per_second=2, transient=True) as live:
            self._live = live
            try:
                yield self
            finally:
                self._live = None


@contextmanager
def interruptible(command: str) -> Iterator[None]:
    """Turn Ctrl-C into a message: it stops the watching, not AWS."""
    try:
        yield
    except KeyboardInterrupt as e:
        raise Cancelled(
            "stopped watching; what AWS has begun continues there",
            fix=f"`{command_name()} cluster {command}` continues it",
        ) from e


def confirm(question: str, *, is_sure: bool) -> None:
    """Ask before anything is created that costs money, or deleted."""
    if is_sure:
        return
    if not sys.stdin.isatty():
        raise UsageError("this needs a yes, and there is no terminal to ask on", fix="add --yes")
    if not click.confirm(question, err=True):
        raise Cancelled("nothing was changed")


def own_command() -> list[str]:
    """The command line of this bireme; absolute, because kubectl runs it from any directory."""
    return [sys.executable, "-m", "bireme"]


@contextmanager
def api_server(aws: Aws, cluster: str, *, timeout_s: float = 20.0) -> Iterator[Cluster]:
    """A connection to a cluster's API server that leaves the user's own kubeconfig alone."""
    from bireme.aws.access import context_name, kubeconfig, write_kubeconfig
    from bireme.aws.layout import NAMESPACE
    from bireme.kube.api.client import Cluster
    from bireme.kube.api.kubeconfig import KubeTarget

    with tempfile.TemporaryDirectory() as place:
        path = Path(place) / "kubeconfig"
        write_kubeconfig(path, kubeconfig(aws, cluster, own_command()))
        to = KubeTarget([path], context_name(cluster, aws.region), NAMESPACE)
        with Cluster(to, timeout_s=timeout_s) as connected:
            yield connected
