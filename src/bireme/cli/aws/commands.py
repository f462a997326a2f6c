"""`bireme cluster`: a Kubernetes cluster on AWS, from one file to a running cluster and back to nothing."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from bireme.cli.aws.common import DEFAULT_FILE, Target, file_option, json_option, target_options
from bireme.cli.aws.down import down, status
from bireme.cli.aws.init_command import init
from bireme.cli.aws.up import scale, up
from bireme.cli.output import emit, note
from bireme.spec.load import command_name

if TYPE_CHECKING:
    from bireme.aws.plan import ClusterPlan
    from bireme.aws.prices import Estimate


@click.group(
    epilog="\b\nFrom nothing to a trained model and back:\n"
    "  bireme cluster init paddle --region us-west-2 --api-cidr 203.0.113.7/32\n"
    "  bireme cluster plan\n"
    "  bireme cluster up\n"
    "  bireme submit job.yaml --wait\n"
    "  bireme cluster down",
)
def cluster() -> None:
    """Make a Kubernetes cluster on AWS, scale it, and take it down again.

    One file, cluster.yaml, describes it; CloudFormation makes it. There is no state file: every command reads the
    state at AWS and continues from there, so each may be interrupted and run again.
    """


for command in (init, up, status, scale, down):
    cluster.add_command(command)


@cluster.command()
@file_option
@click.option("--render", type=Path, metavar="DIR", help="Write the CloudFormation templates there.")
@click.option("--offline", is_flag=True, help="Do not query AWS, even with credentials.")
@json_option
def plan(path: Path, render: Path | None, offline: bool, as_json: bool) -> None:
    """Show what `up` would make and what it costs; change nothing.

    Without credentials: the checked file, the resources of each stack, address ranges and the price. With credentials
    it checks AWS too: your identity, zones, versions, quotas, free names, and what a change would replace.
    """
    from bireme.aws import plan as planning
    from bireme.aws.client import Aws
    from bireme.aws.cloudformation.causes import AwsError, to_error
    from bireme.aws.layout import ClusterLayout, choose_zones
    from bireme.core.errors import CloudError, MissingError
    from bireme.spec.cluster_load import load_cluster

    file = load_cluster(path)
    found = planning.offline(ClusterLayout(file, choose_zones(file)))
    if render is not None:
        _render(found, render)
    try:
        aws = None if offline else Aws(file.region)
        has_credentials = aws is not None and aws.has_credentials
    except MissingError:
        aws, has_credentials = None, False
    except AwsError as e:
        raise to_error(e, "use your AWS credentials") from e
    if aws is not None and has_credentials:
        from bireme.cli.aws.up import ask_aws

        found, identity, _ = ask_aws(aws, file)
        note(f"account {identity.account} as {identity.arn}")
    if as_json:
        click.echo(json.dumps(found.as_dict()))
    else:
        print_plan(found)
        if not has_credentials:
            why = "as requested" if offline else "there are no AWS credentials here"
            click.echo(f"\nAWS was not queried ({why}): quotas, zones and free names are not checked")
        if not found.wrong:
            click.echo(f"next: `{command_name()} cluster up{'' if path == DEFAULT_FILE else f' -f {path}'}`")
    if found.wrong:
        raise SystemExit(CloudError.exit_code)


def _render(found: ClusterPlan, folder: Path) -> None:
    from bireme.aws.templates import template_of
    from bireme.core.errors import StorageError

    try:
        folder.mkdir(parents=True, exist_ok=True)
        for kind in found.layout.stacks:
            path = folder / f"{found.layout.stack(kind)}.json"
            path.write_text(json.dumps(template_of(found.layout, kind), indent=2) + "\n", encoding="utf-8")
            note(f"wrote {path}")
    except OSError as e:
        fix = "name a directory that you may write to, or one that is not there yet"
        raise StorageError(f"cannot write templates into {folder}: {e.strerror or e}", fix=fix) from e


def print_plan(found: ClusterPlan) -> None:
    layout, file = found.layout, found.layout.file
    click.echo(f"cluster {layout.name} in {file.region} ({', '.join(layout.zones)}), Kubernetes {file.kubernetes}")
    if layout.makes_network:
        private = f", private {' '.join(layout.private_ranges)}" if layout.private_ranges else ""
        ranges = f"public {' '.join(layout.public_ranges)}{private}"
        click.echo(
            f"network {file.network.cidr}: {ranges}; services {file.network.services}; egress {file.network.egress}"
        )
    else:
        click.echo(f"network {file.network.vpc} of your own: {', '.join(file.network.subnets)}")
    click.echo(f"the API server answers to {', '.join(file.access.api)}")
    for kind in layout.stacks:
        _print_stack(found, kind)
    click.echo("")
    print_price(found.estimate)
    for finding in found.findings:
        mark = {"ok": "✓", "warning": "!", "wrong": "✗"}[finding.state]
        click.echo(f"{mark} {finding.name:<11} {finding.text}{f'  ->  {finding.fix}' if finding.fix else ''}")


def _print_stack(found: ClusterPlan, kind: Any) -> None:
    from collections import Counter

    from bireme.view.plain import count

    name = found.layout.stack(kind)
    if kind in found.changes:
        changes = found.changes[kind]
        click.echo(f"\n{name}: {'nothing to change' if changes is None else 'would change'}")
        for change in changes.changes if changes else ():
            remark = "  REPLACED" if change.replaces else "  may be replaced" if change.may_replace else ""
            click.echo(f"  {change.action:<8} {change.resource:<26} {change.kind}{remark}")
        return
    resources = found.resources(kind)
    counted = Counter(type_.removeprefix("AWS::") for type_ in resources.values())
    click.echo(f"\n{name}: {count(len(resources), 'resource')}")
    for type_, number in sorted(counted.items()):
        click.echo(f"  {number:>2} {type_}")


def print_price(estimate: Estimate) -> None:
    from bireme.aws import prices

    for item in estimate.items:
        price = "unknown" if item.usd_h is None else f"${item.usd_h:.4f}/h"
        click.echo(f"  {price:>12}  {item.name}{f' ({item.note})' if item.note else ''}")
    total, month = estimate.usd_h, estimate.usd_h * prices.MONTH_H
    about = (
        f"at least ${total:.2f} an hour, and what has no price" if estimate.unknown else f"about ${total:.2f} an hour"
    )
    click.echo(f"{about}, ${month:,.0f} a month (list prices of {prices.DATE}, an estimate)")
    for text in prices.usage_notes():
        click.echo(f"  and by use: {text}")


@cluster.command()
@file_option
@json_option
def cost(path: Path, as_json: bool) -> None:
    """Show what the cluster costs: by the hour, by the month, and idle. AWS is not queried."""
    import msgspec

    from bireme.aws import prices
    from bireme.aws.layout import ClusterLayout, choose_zones
    from bireme.spec.cluster_load import load_cluster

    file = load_cluster(path)
    idle_workers = msgspec.structs.replace(
        file.workers,
        servers=msgspec.structs.replace(file.workers.servers, count=0),
        trainers=msgspec.structs.replace(file.workers.trainers, count=0),
    )
    zones = choose_zones(file)
    full = prices.estimate(ClusterLayout(file, zones))
    idle = prices.estimate(ClusterLayout(msgspec.structs.replace(file, workers=idle_workers), zones))
    if as_json:
        price = {
            "date": prices.DATE,
            "usd_hour": full.usd_h,
            "idle_usd_hour": idle.usd_h,
            "unknown": list(full.unknown),
        }
        click.echo(json.dumps(price | {"items": [msgspec.to_builtins(item) for item in full.items]}))
        return
    print_price(full)
    month = idle.usd_h * prices.MONTH_H
    click.echo(
        f"idle (`{command_name()} cluster scale 0 --servers 0`): ${idle.usd_h:.2f} an hour, ${month:,.0f} a month"
    )


@cluster.command()
@click.argument("name", required=False)
@click.option("--execution", is_flag=True, help="The policy of CloudFormation's own role instead.")
@click.option("--template", is_flag=True, help="A CloudFormation template with both, for an administrator.")
def policy(name: str | None, execution: bool, template: bool) -> None:
    """Print the minimal IAM policy for `bireme cluster`; with NAME, for that cluster only.

    It is generated from bireme's AWS calls and the resources in its templates. An administrator deploys the template
    once (`--template`): it makes the role with which CloudFormation works, and the policy for operators.
    """
    from bireme.aws.policy import execution_policy, operator_policy
    from bireme.aws.templates.operator import operator
    from bireme.spec.cluster_load import check_name

    if name is not None:
        check_name(name)
    found = operator() if template else execution_policy() if execution else operator_policy(name)
    click.echo(json.dumps(found, indent=2))


@cluster.command()
@target_options
@click.option("--file-out", "out", type=Path, help="Write it there instead of adding it to your kubeconfig.")
@json_option
def kubeconfig(target: Target, out: Path | None, as_json: bool) -> None:
    """Add the cluster to your kubeconfig and make it the current context; kubectl works with it too."""
    from bireme.cli.aws.up import write_access

    path, context = write_access(target.aws(), target.name, out)
    emit({"file": str(path), "context": context}, f"{path}: the current context is {context}", as_json=as_json)


@cluster.command(hidden=True)
@click.argument("name")
@click.option("--region", required=True)
def token(name: str, region: str) -> None:
    """Print a token for the cluster's API server, in the format that kubectl expects."""
    from bireme.aws.access import credential
    from bireme.aws.client import Aws

    click.echo(json.dumps(credential(Aws(region), name)))
