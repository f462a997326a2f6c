"""Options that many commands have, each declared once."""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click

from bireme.api.where import Where

Command = TypeVar("Command", bound=Callable[..., Any])

shown = functools.partial(click.option, show_default=True)
"""An option whose help names its default."""
json_option = click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
job_argument = click.argument("job", required=False)
job_file_argument = click.argument("job_file", metavar="JOB.yaml", type=Path)
image_option = click.option("--image", help="Image instead of that in the file.")
pod_image_option = click.option("--image", help="Image for the pod on the volume, where the job itself is gone.")
_OVERRIDES = {
    "trainers": "Trainers instead of those in the file.",
    "pservers": "Pservers instead of those in the file.",
    "ports-num": "Dense lanes of each pserver.",
    "passes": "Passes over the data, counted from the first.",
    "seed": "Decides first values and shuffling.",
}


def overrides(command: Command) -> Command:
    """Options that replace keys of the job file."""
    for name, text in reversed(_OVERRIDES.items()):
        command = click.option(f"--{name}", type=int, help=text)(command)
    return command


def cluster_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Options that name a cluster, as one argument `where`."""

    @functools.wraps(command)
    def located(*args: Any, context: str | None, namespace: str | None, kube: bool = False, **rest: Any) -> Any:
        return command(*args, where=Where(context, namespace, kube), **rest)

    located = click.option("--namespace", metavar="NAME", help="Namespace on the cluster.")(located)
    return click.option("--context", metavar="NAME", help="Context of the kubeconfig; the current one if left out.")(
        located
    )


def either_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """As `cluster_options`, for commands that are about jobs on this machine too."""
    return click.option("--kube", is_flag=True, help="The job is on the cluster.")(cluster_options(command))
