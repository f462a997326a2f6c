"""`bireme cluster status` and `down`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from bireme.cli.aws.common import Target, Watcher, api_server, confirm, interruptible, json_option, target_options
from bireme.cli.output import note
from bireme.core.errors import BiremeError, CloudError, LeftoversError, UsageError
from bireme.spec.load import command_name

if TYPE_CHECKING:
    from bireme.aws.client import Aws
    from bireme.aws.status import ClusterStatus
    from bireme.aws.teardown.audit import LeftResource
    from bireme.aws.teardown.down import ExistingStacks, Note, Teardown


@click.command(epilog="\b\nExample: bireme cluster status --drift")
@target_options
@click.option("--drift", "with_drift", is_flag=True, help="Have CloudFormation look for changes made by hand.")
@json_option
def status(target: Target, with_drift: bool, as_json: bool) -> None:
    """Show a cluster's stacks, control plane, machines, add-ons, jobs, age and cost so far."""
    from bireme.aws.cloudformation.causes import AwsError, to_error
    from bireme.aws.status import status as ask

    aws = target.aws()
    try:
        found = ask(aws, target.name, with_drift=with_drift)
    except AwsError as e:
        raise to_error(e, f"ask about {target.name}") from e
    if not found.stacks:
        raise _nowhere(aws, target)
    inside = _inside(aws, found)
    now = aws.clock.now()
    if as_json:
        click.echo(json.dumps(_as_dict(found, inside, now)))
    else:
        _print(found, inside, now)


def _inside(aws: Aws, found: ClusterStatus) -> dict[str, Any]:
    """Machines and jobs from the API server, or the error if it cannot be reached."""
    if found.control_plane != "ACTIVE":
        return {}
    from bireme.kube.api.client import JOB
    from bireme.kube.api.platform import is_ready

    try:
        with api_server(aws, found.name, timeout_s=8.0) as cluster:
            nodes = cluster.nodes()
            jobs = [f"{job['metadata']['namespace']}/{job['metadata']['name']}" for job in cluster.everywhere(JOB)]
            return {"nodes": len(nodes), "ready": sum(is_ready(node) for node in nodes), "jobs": jobs}
    except BiremeError as e:
        return {"error": e.what}


def _as_dict(found: ClusterStatus, inside: dict[str, Any], now: float) -> dict[str, Any]:
    return {
        "cluster": found.name,
        "region": found.region,
        "state": found.state,
        "stacks": {stack.name: stack.status for stack in found.stacks.values()},
        "control_plane": {"status": found.control_plane, "version": found.version, "endpoint": found.endpoint},
        "groups": {
            group.name: {"status": group.status, "wanted": group.wanted, "issues": list(group.issues)}
            for group in found.groups
        },
        "addons": found.addons,
        "drift": found.drift,
        "inside": inside,
        "age_hours": round(found.age_h(now), 2),
        "usd_hour": round(found.usd_h, 4),
        "usd_so_far": round(found.usd_h * found.age_h(now), 2),
        "expires": found.expiry(now),
    }


def _print(found: ClusterStatus, inside: dict[str, Any], now: float) -> None:
    click.echo(f"{found.name} in {found.region}: {found.state}")
    for stack in found.stacks.values():
        drift = f", {found.drift[stack.name]}" if stack.name in found.drift else ""
        click.echo(f"  stack          {stack.name}  {stack.status}{drift}")
    if found.control_plane != "absent":
        click.echo(f"  control plane  {found.control_plane}, Kubernetes {found.version}, {found.endpoint}")
    for group in found.groups:
        capacity = group.capacity.lower().replace("_", " ")
        issues = f"  ! {'; '.join(group.issues)}" if group.issues else ""
        click.echo(f"  {group.name:<14} {group.status}, {group.wanted} x {group.types[0]} ({capacity}){issues}")
    if found.addons:
        click.echo(f"  add-ons        {', '.join(f'{name} {state}' for name, state in found.addons.items())}")
    if "error" in inside:
        click.echo(f"  inside         unreachable: {inside['error']}")
    elif inside:
        jobs = ", ".join(inside["jobs"]) or "no jobs"
        click.echo(f"  inside         {inside['ready']} of {inside['nodes']} machines Ready; {jobs}")
    age = found.age_h(now)
    money = f"about ${found.usd_h:.2f} an hour, ${found.usd_h * age:.2f} so far at today's size (an estimate)"
    click.echo(f"  age            {age:.1f} h, {money}")
    if expiry := found.expiry(now):
        click.echo(f"  to go by       {expiry}")


def _nowhere(aws: Aws, target: Target) -> CloudError:
    """The error for a cluster that is not in this region; it names the region where it is."""
    from bireme.aws.cloudformation.causes import AwsError
    from bireme.aws.teardown.down import other_regions

    try:
        others = other_regions(aws, target.name)
    except AwsError:
        others = []
    if others:
        fix = f"name it: `--region {others[0]}`"
        return CloudError(f"{target.name} is not in {target.region}, but in {', '.join(others)}", fix=fix)
    return CloudError(
        f"there is no cluster {target.name} in {target.region}, nor in another region of this account",
        fix=f"`{command_name()} cluster up` makes it",
    )


class _Jobs:
    """The cluster's workloads, deleted through its API server."""

    def __init__(self, aws: Aws, cluster: str) -> None:
        self._aws, self._cluster = aws, cluster

    def clear(self, note: Note) -> None:
        from bireme.kube.api.platform import clear

        with api_server(self._aws, self._cluster, timeout_s=8.0) as cluster:
            clear(cluster, note)


@click.command(epilog="\b\nExample: bireme cluster down --delete-data paddle-cluster")
@target_options
@click.option(
    "--delete-data", metavar="NAME", help="Delete the file system with all data too; type the cluster's name."
)
@click.option("--yes", "is_sure", is_flag=True, help="Do not ask.")
@json_option
def down(target: Target, delete_data: str | None, is_sure: bool, as_json: bool) -> None:
    """Take the cluster down: jobs, load balancers and volumes, machines, platform. The data stays.

    Works from any state, also after an `up` that failed, and may be run again at any time. It ends with an audit of
    every service that was used: nothing is left, or a list with prices and exit code 3.
    """
    from bireme.aws.cloudformation.causes import AwsError, to_error
    from bireme.aws.cloudformation.stacks import Stacks
    from bireme.aws.preflight import identify
    from bireme.aws.teardown.down import find_stacks, take_down
    from bireme.aws.up import execution_role

    if delete_data not in (None, target.name):
        raise UsageError(f"--delete-data {delete_data}: the cluster is called {target.name}", fix="type its name")
    aws = target.aws()
    try:
        there = find_stacks(aws, target.name)
        if there.is_empty:
            _nothing_here(aws, target, deletes_data=delete_data is not None, is_sure=is_sure, as_json=as_json)
            return
        role = execution_role(aws)
        note(f"{target.name} in {target.region}, account {identify(aws).account}:")
    except AwsError as e:
        raise to_error(e, f"look for {target.name}") from e
    _announce(there, deletes_data=delete_data is not None)
    confirm(f"take {target.name} down?", is_sure=is_sure)
    watcher = Watcher(aws.clock.now)
    data = "" if delete_data is None else f" --delete-data {delete_data}"
    with interruptible(f"down {target.as_arguments}{data}"), watcher.shown():
        stacks = Stacks(aws, watcher, role)
        jobs = _Jobs(aws, target.name)
        outcome = take_down(stacks, target.name, jobs, watcher.note, deletes_data=delete_data is not None)
    _forget_access(target)
    _report(target, outcome, deletes_data=delete_data is not None, as_json=as_json)


def _nothing_here(aws: Aws, target: Target, *, deletes_data: bool, is_sure: bool, as_json: bool) -> None:
    """Handle a cluster without stacks: it is in another region, or only strays and kept data are left."""
    from bireme.aws.cloudformation.stacks import Stacks
    from bireme.aws.teardown.audit import file_systems
    from bireme.aws.teardown.down import other_regions, take_down

    if others := other_regions(aws, target.name):
        fix = f"name it: `--region {others[0]}`"
        raise CloudError(f"{target.name} is not in {target.region}, but in {', '.join(others)}", fix=fix)
    kept = list(file_systems(aws, target.name)) if deletes_data else []
    for resource in kept:
        note(f"the file system {resource.id} ({resource.note}) goes, WITH ALL DATA")
    if kept:
        confirm(f"delete the data of {target.name}?", is_sure=is_sure)
    note(f"there is no stack of a cluster {target.name} in {target.region}; looking for what it may have left")
    outcome = take_down(Stacks(aws), target.name, None, note, deletes_data=deletes_data)
    _forget_access(target)
    _report(target, outcome, deletes_data=deletes_data, as_json=as_json, was_there=bool(kept))


def _announce(there: ExistingStacks, *, deletes_data: bool) -> None:
    for kind, stack in reversed(there.stacks.items()):
        stays = kind == "storage" and not deletes_data
        what = "stays, with all data" if stays else "goes, WITH ALL DATA" if kind == "storage" else "goes"
        by_hand = ", protected by hand" if stack.is_protected and kind != "storage" else ""
        note(f"{stack.name} ({stack.status}{by_hand}) {what}")
    note("jobs, load balancers and volumes that were made on the cluster go with it")


def _forget_access(target: Target) -> None:
    from bireme.aws.access import context_name, read_kubeconfig, without, write_kubeconfig
    from bireme.spec.load import kubeconfig_target

    path, name = kubeconfig_target(), context_name(target.name, target.region)
    if not path.exists():
        return
    try:
        before = read_kubeconfig(path)
        after = without(before, name)
        if after != before:
            write_kubeconfig(Path(path), after)
    except (BiremeError, OSError) as e:
        # The cluster is gone all the same, and what is left of it must still be reported.
        note(f"the context {name} could not be taken out of {path}: {e}")


def _report(target: Target, outcome: Teardown, *, deletes_data: bool, as_json: bool, was_there: bool = True) -> None:
    import msgspec

    kept = [resource for resource in outcome.left if resource.is_data and not deletes_data]
    strays = [resource for resource in outcome.left if resource not in kept]
    failure = outcome.failure
    if as_json:
        message = {
            "cluster": target.name,
            "kept": [msgspec.to_builtins(resource) for resource in kept],
            "left": [msgspec.to_builtins(resource) for resource in strays],
            "failure": failure.as_dict() if failure else None,
        }
        click.echo(json.dumps(message))
        if strays or failure:
            raise SystemExit(LeftoversError.exit_code)
        return
    for resource in kept:
        if resource.kind == "file system":
            me = f"{command_name()} cluster down {target.as_arguments} --delete-data {target.name}"
            money = f"${resource.usd_month or 0:.2f} a month"
            click.echo(f"kept: {resource.kind} {resource.id} ({resource.note}, {money}); `{me}` deletes it")
    lines = "\n".join(f"  {t.kind} {t.id} ({t.note + ', ' if t.note else ''}{_money(t)})" for t in strays)
    if failure:
        raise LeftoversError(f"{failure.what}; this is left:\n{lines}", why=failure.why, fix=failure.fix)
    if strays:
        raise LeftoversError(
            f"{target.name} is down, but this is left:\n{lines}",
            fix="run the same command again; what bireme did not make must be deleted by its owner",
        )
    if not (was_there or kept):
        click.echo(f"there is no cluster {target.name} in {target.region}, and nothing of one; nothing was changed")
        return
    click.echo(f"{target.name} is gone: nothing left" + (" but the data" if kept else ", nothing billed"))


def _money(resource: LeftResource) -> str:
    if resource.usd_month is None:
        return "billed by use"
    return f"${resource.usd_month:.2f} a month" if resource.usd_month else "free"
