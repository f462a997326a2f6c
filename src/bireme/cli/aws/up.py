"""`bireme cluster up` and `scale`: create a cluster, or apply its changed file."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING

import click

from bireme.cli.aws.common import (
    Target,
    Watcher,
    api_server,
    confirm,
    file_option,
    interruptible,
    json_option,
    own_command,
)
from bireme.cli.output import emit, note
from bireme.core.errors import CloudError, ClusterError, SpecError, UsageError
from bireme.core.files import write_atomic
from bireme.spec.load import command_name, kubeconfig_files

if TYPE_CHECKING:
    from bireme.aws.client import Aws
    from bireme.aws.layout import ClusterLayout
    from bireme.aws.plan import ClusterPlan
    from bireme.aws.preflight import Caller
    from bireme.kube.api.client import Cluster
    from bireme.spec.cluster import ClusterFile


MAX_TTL_DAYS = 366
"""The longest `--ttl`: a reminder after more than a year is of no use."""


@click.command(epilog="\b\nExample: bireme cluster up --yes --max-hourly 1.00 --ttl 8h")
@file_option
@click.option("--yes", "is_sure", is_flag=True, help="Do not ask.")
@click.option("--max-hourly", type=float, metavar="USD", help="Refuse to make anything that costs more an hour.")
@click.option(
    "--ttl", metavar="8h", help="When to take it down again; `status` reminds you (it is not deleted by itself)."
)
@click.option("--accept-unknown-cost", is_flag=True, help="Continue where our table has no price.")
@json_option
def up(
    path: Path, is_sure: bool, max_hourly: float | None, ttl: str | None, accept_unknown_cost: bool, as_json: bool
) -> None:
    """Make the cluster of cluster.yaml, or apply what has changed in the file.

    Shows the plan and its price, asks, and follows CloudFormation; 12 to 20 minutes are usual for a new one. Ctrl-C
    stops the watching, not AWS: run the same command again, also after a failure. It ends with machines that are
    Ready, a kubeconfig, and the shared volume.
    """
    from bireme.aws.client import Aws
    from bireme.aws.cloudformation.stacks import Stacks
    from bireme.aws.up import DesiredCluster, bring_up, execution_role
    from bireme.cli.aws.commands import print_plan
    from bireme.spec.cluster_load import load_cluster

    check_limit(max_hourly)
    file = load_cluster(path)
    aws = Aws(file.region)
    expires = expires_at(ttl, aws.clock.now()) if ttl is not None else ""
    found, identity, layout = ask_aws(aws, file)
    if not as_json:
        print_plan(found)
    _refuse(found, max_hourly, accepts_unknown=accept_unknown_cost)
    confirm(f"make this in account {identity.account}?", is_sure=is_sure)
    wanted = DesiredCluster(layout, identity.principal, expires)
    watcher = Watcher(aws.clock.now)
    with interruptible(f"up{'' if path == Path('cluster.yaml') else f' -f {path}'}"), watcher.shown():
        stacks = Stacks(aws, watcher, execution_role(aws))
        outputs = bring_up(stacks, wanted, watcher.note)
        config, context = write_access(aws, layout.name, None)
        nodes = make_ready(aws, layout, outputs, watcher)
    result = {"cluster": layout.name, "region": file.region, "context": context, "nodes": nodes, **outputs}
    emit(result, _next(layout, str(config), context, nodes), as_json=as_json)


def ask_aws(aws: Aws, file: ClusterFile) -> tuple[ClusterPlan, Caller, ClusterLayout]:
    """Query everything that can be known before anything is created."""
    import dataclasses

    from bireme.aws.cloudformation.causes import AwsError, to_error
    from bireme.aws.cloudformation.stacks import Stacks
    from bireme.aws.plan import offline, proposed
    from bireme.aws.preflight import CheckResult, can_administer, choose_layout, examine, identify
    from bireme.aws.up import DesiredCluster, execution_role, replaced

    try:
        identity = identify(aws)
        layout = choose_layout(aws, file)
        findings = tuple(examine(aws, layout, identity))
        if not file.access.admins:
            findings = (can_administer(identity), *findings)
        stacks = Stacks(aws, role=execution_role(aws))
    except AwsError as e:
        raise to_error(e, "query AWS about this cluster") from e
    found = dataclasses.replace(offline(layout), findings=findings)
    changes = proposed(stacks, DesiredCluster(layout, identity.principal))
    moved = [name for each in changes.values() if each is not None for name in replaced(each)]
    if moved:
        text = f"{', '.join(moved)} would be replaced, which cannot be done while the cluster is up"
        fix = "undo the change in cluster.yaml, or `bireme cluster down` and `up`: the data stays"
        findings = (*findings, CheckResult("changes", "wrong", text, fix))
    return dataclasses.replace(found, changes=changes, findings=findings), identity, layout


def _refuse(found: ClusterPlan, max_hourly: float | None, *, accepts_unknown: bool) -> None:
    if found.wrong:
        lines = "; ".join(f"{each.name}: {each.text}" for each in found.wrong)
        fixes = "; ".join(each.fix for each in found.wrong if each.fix)
        raise CloudError(f"AWS would refuse this: {lines}", why="nothing was made", fix=fixes)
    if found.estimate.unknown and not accepts_unknown:
        what = ", ".join(found.estimate.unknown)
        raise SpecError(f"our table has no price for {what}", fix="look it up, then add --accept-unknown-cost")
    if max_hourly is not None and found.estimate.unknown:
        what = ", ".join(found.estimate.unknown)
        raise SpecError(f"--max-hourly cannot be kept: our table has no price for {what}", fix="leave it out")
    if max_hourly is not None and found.estimate.usd_h > max_hourly:
        raise SpecError(
            f"this would cost about ${found.estimate.usd_h:.2f} an hour, more than --max-hourly {max_hourly:.2f}",
            fix="choose fewer or smaller machines, or `network.egress: public`",
        )


def check_limit(max_hourly: float | None) -> None:
    """Refuse a limit without effect: no price is above `nan`."""
    if max_hourly is not None and not 0 < max_hourly < math.inf:
        fix = "name a number of dollars above 0, such as `--max-hourly 1.00`"
        raise UsageError(f"--max-hourly {max_hourly:g} is not a limit", fix=fix)


def expires_at(ttl: str, now: float) -> str:
    """The time at which a duration such as `8h` or `2d` ends."""
    found = re.fullmatch(r"([1-9][0-9]*)\s*([mhd])", ttl)
    if found is None:
        raise UsageError(f"--ttl {ttl}: expected a number with m, h or d, such as `8h`")
    unit = {"m": "minutes", "h": "hours", "d": "days"}[found[2]]
    try:
        length = timedelta(**{unit: int(found[1])})
    except (OverflowError, ValueError):  # also for a number with more digits than Python parses
        length = timedelta.max
    if length > timedelta(days=MAX_TTL_DAYS):
        raise UsageError(f"--ttl {ttl[:20]} is longer than a year", fix="leave --ttl out, or name at most `366d`")
    until = datetime.fromtimestamp(now, UTC) + length
    return until.isoformat(timespec="seconds")


def write_access(aws: Aws, cluster: str, out: Path | None) -> tuple[Path, str]:
    """Add a cluster to the user's kubeconfig; return the file and the context's name."""
    from bireme.aws.access import context_name, kubeconfig, merge, read_kubeconfig, write_kubeconfig
    from bireme.spec.load import kubeconfig_target

    path = out or kubeconfig_target()
    write_kubeconfig(path, merge(read_kubeconfig(path), kubeconfig(aws, cluster, own_command())))
    return path, context_name(cluster, aws.region)


def make_ready(aws: Aws, layout: ClusterLayout, outputs: dict[str, str], watcher: Watcher) -> int:
    """Apply the objects that jobs need, and wait for the machines; return how many are Ready."""
    from bireme.aws.objects import facts, objects
    from bireme.kube.api.cluster_facts import read_facts
    from bireme.kube.api.platform import apply_all

    with api_server(aws, layout.name) as cluster:
        made = objects(layout, outputs)
        apply_all(cluster, made[:-1], watcher.note)
        try:
            before = read_facts(cluster)
        except ClusterError:
            before = None  # malformed: write it anew
        # Keep the image that was pushed earlier.
        apply_all(cluster, [facts(layout, outputs, before.image if before else "")], watcher.note)
        return _wait_for_nodes(aws, layout, cluster, watcher)


def _ready(nodes: int) -> str:
    return "1 machine is Ready" if nodes == 1 else f"{nodes} machines are Ready"


def _next(layout: ClusterLayout, config: str, context: str, nodes: int) -> Iterator[str]:
    me = command_name()
    is_default = not kubeconfig_files() or str(kubeconfig_files()[0]) == config
    yield f"\n{layout.name} is up: {_ready(nodes)}; the current context of {config} is {context}"
    if not is_default:
        yield f"  export KUBECONFIG={config}"
    yield "the demo on it:"
    yield f"  {me} demo --prepare first-job"
    yield f"  {me} image build --cpu x86-64-v3 --output bireme.tar && {me} image push bireme.tar"
    yield f"  {me} data push first-job/job.yaml"
    yield f"  {me} submit first-job/job.yaml --wait"
    yield "and back to nothing:"
    yield f"  {me} cluster down"


@click.command(epilog="\b\nExample: bireme cluster scale 5")
@click.argument("count", metavar="N", type=click.IntRange(0))
@click.option("--servers", type=click.IntRange(0), help="Machines for pservers too.")
@file_option
@click.option("--yes", "is_sure", is_flag=True, help="Do not ask.")
@json_option
def scale(count: int, servers: int | None, path: Path, is_sure: bool, as_json: bool) -> None:
    """Change the number of machines for trainers to N, in cluster.yaml and at AWS.

    With 0 and `--servers 0` only control plane and data are left; the file system keeps everything.
    """
    from bireme.aws.cloudformation.causes import AwsError, to_error
    from bireme.aws.cloudformation.stacks import Stacks
    from bireme.aws.layout import ClusterLayout, choose_zones
    from bireme.aws.prices import estimate
    from bireme.aws.up import DesiredCluster, execution_role
    from bireme.aws.up import scale as change
    from bireme.spec.cluster_load import load_cluster, set_counts

    file = load_cluster(path)
    text, wanted_file = set_counts(path, trainers=count, servers=servers)
    aws = Target(file.name, file.region, file).aws()
    layout = ClusterLayout(wanted_file, choose_zones(wanted_file))
    before = estimate(ClusterLayout(file, layout.zones))
    note(f"about ${estimate(layout).usd_h:.2f} an hour instead of ${before.usd_h:.2f}")
    confirm(f"scale {file.name} to {count} machines for trainers?", is_sure=is_sure)
    watcher = Watcher(aws.clock.now)
    again = f"scale {count}{'' if servers is None else f' --servers {servers}'} -f {path}"
    with interruptible(again), watcher.shown():
        try:
            change(Stacks(aws, watcher, execution_role(aws)), DesiredCluster(layout, ""))
        except AwsError as e:
            raise to_error(e, f"scale {file.name}") from e
        write_atomic(path, text.encode())
        path.chmod(0o600)
        with api_server(aws, layout.name) as cluster:
            nodes = _wait_for_nodes(aws, layout, cluster, watcher)
    result = {"cluster": file.name, "trainers": count, "servers": wanted_file.workers.servers.count, "nodes": nodes}
    emit(result, f"{file.name}: {_ready(nodes)}", as_json=as_json)


def _wait_for_nodes(aws: Aws, layout: ClusterLayout, cluster: Cluster, watcher: Watcher) -> int:
    """Wait until all machines of the file are Ready; return how many are. Ctrl-C ends the wait sooner."""
    from bireme.aws.status import shortages
    from bireme.kube.api.platform import wait_for_nodes

    count = layout.file.workers.servers.count + layout.file.workers.trainers.count
    return len(wait_for_nodes(cluster, count, watcher.note, lambda: shortages(aws, layout.name)))
