"""`bireme image`: container images without a container engine.

Results go to stdout (one JSON object with --json); what is being done goes to stderr.
"""

from __future__ import annotations

import json
import os
import re
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from bireme import __version__
from bireme.api.where import Where, has_cluster
from bireme.cli.options import cluster_options
from bireme.core.errors import UsageError

if TYPE_CHECKING:
    from bireme.images.archive import Image
    from bireme.images.build import Step
    from bireme.images.credentials import Login
    from bireme.images.reference import Reference

_json_option = click.option("--json", "as_json", is_flag=True, help="Print one JSON object on stdout.")
_archive = click.argument("archive", metavar="IMAGE.tar", type=click.Path(path_type=Path))
_ECR = re.compile(r"\d+\.dkr\.ecr(?:-fips)?\.([a-z0-9-]+)\.amazonaws\.com(?:\.cn)?")
"""The host of a registry on AWS, and its region."""


@click.group()
def image() -> None:
    """Build container images, push them to a registry, load them into containerd."""


@image.command()
@click.option(
    "--base",
    default="debootstrap",
    show_default=True,
    metavar="DIR|ARCHIVE|debootstrap",
    help="Root file system to stand on, with Python 3.11 or newer.",
)
@click.option("--with", "programs", multiple=True, metavar="DIR[:/PATH]", help="Add a directory, at /opt/program.")
@click.option("--tag", default=f"localhost/bireme:{__version__}", show_default=True, help="Name of the image.")
@click.option("--output", type=click.Path(path_type=Path), help="The archive to write.  [default: by the name]")
@click.option(
    "--role",
    type=click.Choice(["job", "data"]),
    default="job",
    show_default=True,
    help="What a container does by itself: bireme, or preparing the tutorial's data.",
)
@click.option("--user", type=click.IntRange(0), default=1000, show_default=True, help="User id of containers.")
@click.option(
    "--cpu",
    type=click.Choice(["host", "generic", "x86-64-v2", "x86-64-v3", "x86-64-v4"]),
    default="host",
    show_default=True,
    help="Processor that kernels are compiled for.",
)
@click.option("--gzip", "is_compressed", is_flag=True, help="Compress layers: smaller to push, slower to make.")
@click.option("--fresh", "is_fresh", is_flag=True, help="Make the base anew, with today's packages.")
@_json_option
def build(output: Path | None, programs: tuple[str, ...], as_json: bool, **given: Any) -> None:
    """Make an OCI image of a base, bireme with all that it needs, and your program.

    The same inputs give the same digest. Byte code and compiled kernels are inside, so that pods start fast, also
    on a read-only root. Layers are kept in the cache: only what has changed is made again.

    \b
    Example:
      bireme image build --with quick_start --tag registry.example/ml/bireme:1 --output bireme.tar
    """
    from bireme.images.archive import write_archive
    from bireme.images.build import Builder, Recipe
    from bireme.images.cache import Cache
    from bireme.images.reference import parse_reference
    from bireme.spec.load import places

    begun = time.monotonic()
    given["tag"] = str(parse_reference(given["tag"]))  # as the kubelet will look for it
    recipe = Recipe(programs=tuple(_program(text) for text in programs), **given)
    builder = Builder(recipe, Cache(places().cache / "images"), lambda text: click.echo(text, err=True))
    made = builder.build()
    target = output or Path(recipe.tag.rpartition("/")[2].replace(":", "-") + ".tar")
    write_archive(made, target)
    told: dict[str, Any] = {"image": made.name, "digest": made.digest, "file": str(target)}
    told |= {"nbytes": target.stat().st_size, "seconds": round(time.monotonic() - begun, 1)}
    _tell_build(told, builder.steps, as_json)


def _tell_build(told: dict[str, Any], steps: list[Step], as_json: bool) -> None:
    if as_json:
        import msgspec

        click.echo(json.dumps({**told, "layers": msgspec.to_builtins(steps)}))
        return
    for step in steps:
        how = "kept" if step.is_cached else f"made in {step.seconds:.1f} s"
        click.echo(f"{step.name:<13}{step.nbytes / 1e6:8.1f} MB  {how}")
    click.echo(f"{told['image']} is in {told['file']} ({told['nbytes'] / 1e6:.0f} MB, {told['seconds']} s)")
    click.echo(f"digest: {told['digest']}")


def _program(text: str) -> tuple[Path, str]:
    folder, colon, place = text.partition(":")
    place = place.rstrip("/") if colon else "/opt/program"
    if not place.startswith("/") or ".." in place.split("/"):
        fix = "e.g. `--with quick_start:/opt/program`"
        raise UsageError(f"--with {text}: the place in the image must be a path that begins with /", fix=fix)
    if not Path(folder).is_dir():
        raise UsageError(f"--with {text}: there is no directory {folder}", fix="name your program's directory")
    return Path(folder).absolute(), place


@image.command()
@_archive
@click.argument("name", metavar="[REGISTRY/NAME:TAG]", required=False)
@click.option(
    "--plain-http", "is_plain", is_flag=True, help="Without TLS, for a registry on this machine or in a test."
)
@click.option("--ca", type=click.Path(path_type=Path), help="Certificates (PEM) that sign the registry's own.")
@cluster_options
@_json_option
def push(archive: Path, name: str | None, is_plain: bool, ca: Path | None, where: Where, as_json: bool) -> None:
    """Send an image to a registry.

    Without a name it goes to the repository of the current cluster, as `bireme cluster up` made it, and `bireme
    submit` uses it there from then on. Layers that the registry has are skipped, and an upload that breaks off is
    taken up again. Logins are those of podman and docker: containers/auth.json, ~/.docker/config.json and its
    helpers; for a registry on AWS also those of AWS.

    \b
    Example:
      bireme image push bireme.tar registry.example/ml/bireme:1
    """
    from bireme.images.archive import read_archive
    from bireme.images.reference import parse_reference
    from bireme.images.registry import Registry
    from bireme.images.transport import Transport

    if name is not None and where.is_asked:
        raise UsageError("--context and --namespace are for an image without a name")
    given = parse_reference(name) if name is not None else None
    repository, where = _cluster_repository(where) if given is None else ("", where)
    found = read_archive(archive)
    reference = given or _tagged(repository, found)
    login = _login(reference.host, prefers_aws=given is None)
    registry = Registry(reference, Transport(reference, login=login, is_plain=is_plain, ca=ca))
    with _progress(as_json) as on_progress:
        done = registry.push(found, on_progress)
    by_digest = f"{reference.host}/{reference.repository}@{done.digest}"
    context = _record(where, by_digest) if given is None else ""
    if as_json:
        told = {"image": str(reference), "digest": done.digest, "sent": done.sent, "skipped": done.skipped}
        click.echo(json.dumps({**told, "context": context} if context else told))
        return
    click.echo(f"{reference}: {done.sent / 1e6:.1f} MB sent, {done.skipped / 1e6:.1f} MB were there\n{by_digest}")
    if context:
        click.echo(f"`bireme submit` uses it on the cluster of context {context}")


def _cluster_repository(where: Where) -> tuple[str, Where]:
    """The repository of the current cluster, and that cluster by name: a push is long, and the context may change."""
    named = "`bireme image push IMAGE.tar REGISTRY/NAME:TAG`"
    if not (where.is_asked or has_cluster()):
        raise UsageError("which registry?", why="no cluster is configured here that has one", fix=named)
    from bireme.kube.api.cluster_facts import NAME, read_facts

    with where.connect() as cluster:
        facts = read_facts(cluster)
        if facts is None or not facts.repository:
            raise UsageError(
                "which registry?",
                why=f"no ConfigMap {NAME} names one in the namespace {cluster.namespace} of context {cluster.context}",
                fix=f"{named}; a cluster of `bireme cluster up` has a repository",
            )
        return facts.repository, Where(is_asked=True, context=cluster.context, namespace=cluster.namespace)


def _record(where: Where, by_digest: str) -> str:
    """Make an image that was pushed the one of jobs on the current cluster; returns its context."""
    from bireme.kube.api.cluster_facts import record_image

    with where.connect() as cluster:  # anew: a push may outlast a connection
        record_image(cluster, by_digest)
        return str(cluster.context)


def _tagged(repository: str, image: Image) -> Reference:
    """Where an image goes in a repository: its own tag and a short digest, so that no push replaces another image."""
    from bireme.images.reference import parse_reference

    tag = parse_reference(image.name).tag if image.name else "latest"
    short = image.digest.removeprefix("sha256:")[:12]
    return parse_reference(f"{repository}:{tag[:115]}-{short}")


def _login(host: str, *, prefers_aws: bool) -> Login | None:
    """Who we are to a registry. A login that docker keeps for AWS is good for 12 hours, so AWS may be asked first."""
    from bireme.images.credentials import Login, config_files, find_login

    aws = _ECR.fullmatch(host)
    found = None if aws and prefers_aws else find_login(host, config_files(os.environ, Path.home()))
    if found is not None or aws is None:
        return found
    from bireme.aws.access import registry_login

    return Login(*registry_login(aws[1], host))


@image.command()
@_archive
@click.option("--address", default="/run/containerd/containerd.sock", show_default=True, help="containerd's socket.")
@click.option("--namespace", default="k8s.io", show_default=True, help="k8s.io is where the kubelet looks.")
@_json_option
def load(archive: Path, address: str, namespace: str, as_json: bool) -> None:
    """Import an image into the containerd of this machine.

    \b
    Example:
      bireme image load bireme.tar
    """
    from bireme.images import containerd
    from bireme.images.archive import read_archive

    found = read_archive(archive)
    containerd.load(archive, address, namespace)
    told = {"image": found.name, "digest": found.digest, "namespace": namespace}
    click.echo(json.dumps(told) if as_json else f"{found.name} is in containerd's namespace {namespace}")


@contextmanager
def _progress(as_json: bool) -> Iterator[Callable[[int, int], None]]:
    """Lend a function to tell (bytes done, bytes in all) to; only a terminal sees a bar."""
    if as_json or not sys.stderr.isatty():
        yield lambda done, total: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TransferSpeedColumn

    columns = ("pushing", BarColumn(), DownloadColumn(), TransferSpeedColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("pushing", total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)
