"""`bireme cluster init`: write a cluster.yaml. Uses no network."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from bireme.core.errors import OutputExistsError, UsageError

if TYPE_CHECKING:
    from bireme.spec.cluster import ClusterFile

FLAGS = {
    "name": "NAME",
    "region": "--region",
    "zones": "--zone",
    "kubernetes": "--kubernetes",
    "workers.trainers.count": "--workers",
    "workers.servers.count": "--servers",
    "workers.trainers.types": "--types",
    "workers.servers.types": "--types",
    "workers.trainers.capacity": "--spot",
    "workers.key_pair": "--key-pair",
    "network.egress": "--egress",
    "network.vpc": "--vpc",
    "network.subnets": "--subnet",
    "access.api": "--api-cidr",
    "kms_key": "--kms-key",
    "dns_zone": "--dns-zone",
    "bucket": "--bucket",
}
"""The flag of each key that has one."""
KUBE_AWS_FLAGS = {
    "--cluster-name": "name",
    "--external-dns-name": "dns_zone",
    "--availability-zone": "zones",
    "--key-name": "workers.key_pair",
    "--kms-key-arn": "kms_key",
}
"""Flags of `kube-aws init`, by the key that they set."""


def _is_terminal() -> bool:
    return sys.stdin.isatty() and sys.stderr.isatty()


def _kube_aws_options(command: Callable[..., Any]) -> Callable[..., Any]:
    for flag in (*KUBE_AWS_FLAGS, "--s3-uri"):
        command = click.option(flag, hidden=True)(command)
    return command


@click.command(epilog="\b\nExample: bireme cluster init paddle-cluster --region us-west-2 --api-cidr 203.0.113.7/32")
@click.argument("name", required=False)
@click.option("--region", help="AWS region. Left out: AWS_REGION or AWS_DEFAULT_REGION.")
@click.option("--zone", multiple=True, help="Availability zone; the workers' first. Left out: chosen by `up`.")
@click.option("--workers", type=int, help="Machines for trainers. Left out: 3.")
@click.option("--servers", type=int, help="Machines for pservers. Left out: 1.")
@click.option("--types", metavar="TYPE,…", help="Instance types of both groups, the best first.")
@click.option("--spot/--on-demand", default=None, help="Capacity of trainers. Left out: spot.")
@click.option("--egress", type=click.Choice(["nat", "public"]), help="The workers' way out. Left out: nat.")
@click.option("--api-cidr", metavar="ADDRESS", multiple=True, help="Address or range that may reach the API server.")
@click.option("--kms-key", metavar="ARN", help="KMS key for the file system and Kubernetes' secrets.")
@click.option("--key-pair", metavar="KEY", help="Existing EC2 key pair for the machines.")
@click.option("--dns-zone", metavar="ZONE", help="Private DNS zone to make in the VPC.")
@click.option("--bucket", help="Existing S3 bucket that jobs may read.")
@click.option("--vpc", metavar="ID", help="Existing VPC; needs two --subnet.")
@click.option("--subnet", metavar="ID", multiple=True, help="Subnet of that VPC; the workers' first.")
@click.option("--kubernetes", metavar="VERSION", help="Version of Kubernetes.")
@click.option("-f", "--file", "path", type=Path, default=Path("cluster.yaml"), show_default=True, help="File to write.")
@_kube_aws_options
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object; ask nothing.")
def init(path: Path, as_json: bool, **flags: Any) -> None:
    """Write a cluster.yaml for the cluster NAME, with every key explained.

    On a terminal it asks for what is missing. Nothing is made on AWS before `bireme cluster up`, and an existing file
    is never replaced. Flags of `kube-aws init` work as well.
    """
    from bireme.aws.init import render, write_new

    if path.exists():
        raise OutputExistsError(f"{path} exists", fix="name another file with `-f`")
    values = _keys(flags)
    _complete(values, asks=not as_json and _is_terminal())
    file = _checked(path, values)
    write_new(path, render(file))
    servers, trainers = file.workers.servers, file.workers.trainers
    if as_json:
        counts = {"servers": servers.count, "trainers": trainers.count}
        click.echo(json.dumps({"file": str(path), "cluster": file.name, "region": file.region, **counts}))
        return
    _print_next(path, file)


def _print_next(path: Path, file: ClusterFile) -> None:
    from bireme.spec.load import command_name
    from bireme.view.plain import count

    servers, trainers = file.workers.servers, file.workers.trainers
    machines = f"{count(servers.count, 'machine')} for pservers, {trainers.count:,} for trainers"
    click.echo(f"wrote {path}: {file.name} in {file.region}, {machines} ({trainers.capacity.replace('_', ' ')})")
    named = "" if path == Path("cluster.yaml") else f" -f {path}"
    click.echo(f"next: `{command_name()} cluster plan{named}` shows what would be made, and what it costs")


def _keys(flags: dict[str, Any]) -> dict[str, Any]:
    """The flags' values by dotted key."""
    if flags["s3_uri"] is not None:
        raise UsageError(
            "--s3-uri is a flag of kube-aws that bireme does not use",
            why="the templates are small enough to be sent without a bucket",
            fix="leave it out; `--bucket` names a bucket that jobs may read data from",
        )
    values = {key: value for key, flag in FLAGS.items() if (value := flags[_parameter(flag)]) not in (None, ())}
    for old, key in KUBE_AWS_FLAGS.items():
        value = flags[_parameter(old)]
        if value is not None and key in values:
            raise UsageError(f"{FLAGS[key]} and {old}, its name in kube-aws, are both given", fix=f"leave {old} out")
        if value is not None:
            values[key] = (value,) if key == "zones" else value
    return {key: _value(key, value) for key, value in values.items()}


def _parameter(flag: str) -> str:
    """The name by which click passes a flag's value."""
    return flag.strip("-").replace("-", "_").lower()


def _value(key: str, value: Any) -> Any:
    """A flag's value as the file holds it."""
    if key.endswith(".types"):
        return [part.strip() for part in value.split(",") if part.strip()]
    if key.endswith(".capacity"):
        return "spot" if value else "on_demand"
    if key == "access.api":
        return [_as_range(address) for address in value]
    return list(value) if isinstance(value, tuple) else value


def _as_range(address: str) -> str:
    return f"{address}/32" if re.fullmatch(r"[0-9.]+", address) else address


def _complete(values: dict[str, Any], *, asks: bool) -> None:
    """Prompt for required values, or refuse if they are missing."""
    from bireme.spec.load import aws_region, command_name

    if asks:
        _ask(values, "name", "Name of the cluster")
        _ask(values, "region", "AWS region", default=aws_region())
        _ask(values, "workers.trainers.count", "Machines for trainers", default=3, convert=int)
        what = "Your public address, which may reach the API server"
        _ask(values, "access.api", what, convert=lambda text: [_as_range(part) for part in re.split(r"[\s,]+", text)])
        return
    if (region := aws_region()) is not None:
        values.setdefault("region", region)
    needed = {"name": "NAME", "region": "--region REGION", "access.api": "--api-cidr YOUR.ADDRESS/32"}
    if missing := [flag for key, flag in needed.items() if key not in values]:
        why = "`cluster up` never opens the API server to all addresses" if "access.api" not in values else ""
        fix = f"`{command_name()} cluster init {' '.join(needed.values())}`"
        raise UsageError(f"missing: {', '.join(missing)}", why=why, fix=fix)


def _ask(
    values: dict[str, Any], key: str, question: str, *, default: Any = None, convert: Callable[[str], Any] = str
) -> None:
    """Prompt until the answer is valid."""
    from bireme.spec.cluster import MAX_WORKERS
    from bireme.spec.cluster_load import find_cluster_mistakes, key_of

    def check(answer: Any) -> Any:
        try:
            value = convert(str(answer).strip())
        except ValueError as e:
            raise click.UsageError(f"{answer!r} is not a number") from e
        for mistake in find_cluster_mistakes(_nested({key: value, "workers.max": MAX_WORKERS})):
            if key_of(mistake).partition("[")[0] == key:
                raise click.UsageError("; ".join(filter(None, (mistake.text.split("`: ", 1)[-1], mistake.fix))))
        return value

    if key not in values:
        values[key] = click.prompt(question, default=default, value_proc=check, err=True)


def _checked(path: Path, values: dict[str, Any]) -> ClusterFile:
    """Build the cluster file from the flags; mistakes name the flags."""
    import msgspec

    from bireme.spec.cluster import MAX_WORKERS, ClusterFile, WorkersFile
    from bireme.spec.cluster_load import REFERENCE, find_cluster_mistakes
    from bireme.spec.mistakes import Mistake, refusal

    counts = [values.get(f"workers.{group}.count", 0) for group in ("servers", "trainers")]
    data = _nested({**values, "workers.max": min(max(*counts, WorkersFile().max), MAX_WORKERS)})
    # One flag may set two keys, which yields the same text twice.
    mistakes = {(_with_flags(m.text), m.why, _with_flags(m.fix)): None for m in find_cluster_mistakes(data)}
    if mistakes:
        raise refusal(path, [Mistake(0, *parts) for parts in mistakes], REFERENCE)
    return msgspec.convert(data, ClusterFile)


def _with_flags(text: str) -> str:
    """A text with each key replaced by its flag; the flag has no index."""
    for key, flag in FLAGS.items():
        text = re.sub(rf"`{re.escape(key)}(\[[0-9]+\])?`", flag, text)
    return text


def _nested(values: dict[str, Any]) -> dict[str, Any]:
    """Dotted keys as the sections of a file."""
    data: dict[str, Any] = {}
    for key, value in values.items():
        *sections, last = key.split(".")
        inner = data
        for section in sections:
            inner = inner.setdefault(section, {})
        inner[last] = value
    return data
