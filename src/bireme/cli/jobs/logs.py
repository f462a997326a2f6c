"""`bireme logs`: the logs of a job's processes."""

from __future__ import annotations

import json

import click

from bireme.api.where import Where, backend_of
from bireme.cli.options import either_options, job_argument, pod_image_option
from bireme.cli.output import note
from bireme.core.text import parse_duration
from bireme.job.output.logs import LogFilter

LAST_LINES = 20


def _duration(_: click.Context, __: click.Parameter, value: str | None) -> float | None:
    try:
        return None if value is None else parse_duration(value, " s m h d")
    except ValueError as e:
        raise click.BadParameter(f"{value!r} is no time: write 90s, 5m, 2h or 3d") from e


@click.command(epilog="\b\nExample: bireme logs quick-start --node 1 --role trainer -f")
@job_argument
@click.option("--node", type=int, help="Only this node.")
@click.option("--role", type=click.Choice(["trainer", "pserver"]), help="Only this kind of process.")
@click.option("--since", callback=_duration, metavar="5m", help="Only younger lines: 90s, 5m, 2h, 3d.")
@click.option("-f", "--follow", "is_following", is_flag=True, help="Keep printing what comes, until the job is over.")
@click.option("-n", "--lines", type=click.IntRange(0), help="Last lines of each file.  [default: 20; all with --since]")
@click.option("--from-volume", is_flag=True, help="On a cluster: lines of earlier pods too, from the volume.")
@pod_image_option
@either_options
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object per line.")
def logs(  # noqa: PLR0913 - its flags
    job: str | None, node: int | None, role: str | None, since: float | None, is_following: bool, lines: int | None,
    from_volume: bool, image: str | None, where: Where, as_json: bool,
) -> None:  # fmt: skip
    """Print the logs of JOB's processes, in the order of time.

    Of a job on a cluster also when its pods are gone.
    """
    last = lines if lines is not None or since is not None else LAST_LINES
    wanted = LogFilter(node, role, last, since, is_following, from_volume)
    for line in backend_of(job, where, note).logs(job, wanted, image=image, note=note):
        click.echo(json.dumps({"log": line.log, "line": line.text}) if as_json else f"{line.log}: {line.text}")
