"""`bireme image`: container images without a container engine."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import click

from bireme import __version__
from bireme.api.where import Where
from bireme.cli.options import cluster_options, json_option, shown
from bireme.cli.output import emit, note, progress
from bireme.core.errors import UsageError

_archive = click.argument("archive", metavar="IMAGE.tar", type=click.Path(path_type=Path))


@click.group()
def image() -> None:
    """Build container images, push them to a registry, load them into containerd."""


@image.command()
@shown(
    "--base",
    default="debootstrap",
    metavar="DIR|ARCHIVE|debootstrap",
    help="Root file system to build on, with Python 3.11 or newer.",
)
@click.option("--with", "programs", multiple=True, metavar="DIR[:/PATH]", help="Add a directory, at /opt/program.")
@shown("--tag", default=f"localhost/bireme:{__version__}", help="Name of the image.")
@click.option("--output", type=click.Path(path_type=Path), help="The archive to write.  [default: by the name]")
@shown(
    "--role",
    type=click.Choice(["job", "data"]),
    default="job",
    help="What a container does by itself: bireme, or preparing the tutorial's data.",
)
@shown("--user", type=click.IntRange(0), default=1000, help="User id of containers.")
@shown(
    "--cpu",
    type=click.Choice(["host", "generic", "x86-64-v2", "x86-64-v3", "x86-64-v4"]),
    default="host",
    help="Processor that kernels are compiled for.",
)
@click.option("--gzip", "is_compressed", is_flag=True, help="Compress layers: smaller to push, slower to make.")
@click.option("--fresh", "is_fresh", is_flag=True, help="Make the base anew, with today's packages.")
@json_option
def build(output: Path | None, programs: tuple[str, ...], as_json: bool, **flags: Any) -> None:
    """Make an OCI image of a base, bireme with all that it needs, and your program.

    The same inputs give the same digest. Byte code and compiled kernels are inside, so that pods start fast, also
    on a read-only root. Layers are kept in the cache: only what has changed is made again.

    \b
    Example:
      bireme image build --with quick_start --tag registry.example/ml/bireme:1 --output bireme.tar
    """
    import msgspec

    from bireme.images.archive import write_archive
    from bireme.images.build import Builder, Recipe
    from bireme.images.layers import Cache
    from bireme.images.registry import parse_reference
    from bireme.spec.load import places

    begun = time.monotonic()
    flags["tag"] = str(parse_reference(flags["tag"]))  # as the kubelet will look for it
    recipe = Recipe(programs=tuple(_program(text) for text in programs), **flags)
    builder = Builder(recipe, Cache(places().cache / "images"), note)
    made = builder.build()
    target = output or Path(recipe.tag.rpartition("/")[2].replace(":", "-") + ".tar")
    write_archive(made, target)
    seconds, nbytes = round(time.monotonic() - begun, 1), target.stat().st_size
    value = {"image": made.name, "digest": made.digest, "file": str(target), "nbytes": nbytes, "seconds": seconds}
    lines = []
    for step in builder.steps:
        how = "kept" if step.is_cached else f"made in {step.seconds:.1f} s"
        lines.append(f"{step.name:<13}{step.nbytes / 1e6:8.1f} MB  {how}")
    lines += [f"{made.name} is in {target} ({nbytes / 1e6:.0f} MB, {seconds} s)", f"digest: {made.digest}"]
    emit({**value, "layers": msgspec.to_builtins(builder.steps)}, lines, as_json=as_json)


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
@json_option
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
    from bireme.api.images import push_image

    with progress("pushing", as_json, is_plain_shown=False) as on_progress:
        done = push_image(
            archive, name, where, is_plain=is_plain, ca=ca, on_progress=on_progress or (lambda done, total: None)
        )
    sent, skipped = done.pushed.sent, done.pushed.skipped
    value = {"image": str(done.reference), "digest": done.pushed.digest, "sent": sent, "skipped": skipped}
    lines = [f"{done.reference}: {sent / 1e6:.1f} MB sent, {skipped / 1e6:.1f} MB were there", done.by_digest]
    if done.context:
        value["context"] = done.context
        lines.append(f"`bireme submit` uses it on the cluster of context {done.context}")
    emit(value, lines, as_json=as_json)


@image.command()
@_archive
@shown("--address", default="/run/containerd/containerd.sock", help="containerd's socket.")
@shown("--namespace", default="k8s.io", help="k8s.io is where the kubelet looks.")
@json_option
def load(archive: Path, address: str, namespace: str, as_json: bool) -> None:
    """Import an image into the containerd of this machine.

    \b
    Example:
      bireme image load bireme.tar
    """
    from bireme.images.archive import load as load_archive
    from bireme.images.archive import read_archive

    made = read_archive(archive)
    load_archive(archive, address, namespace)
    value = {"image": made.name, "digest": made.digest, "namespace": namespace}
    emit(value, f"{made.name} is in containerd's namespace {namespace}", as_json=as_json)
