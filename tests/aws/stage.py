"""The tool and the double together, in virtual time: `Stage` runs `up`, `scale` and `down` as the commands do."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import boto3
import botocore.loaders
import botocore.session

from bireme.aws.access import kubeconfig
from bireme.aws.client import Aws
from bireme.aws.cloudformation.causes import AwsError, to_error
from bireme.aws.cloudformation.stacks import Stacks
from bireme.aws.layout import ClusterLayout, choose_zones
from bireme.aws.preflight import choose_layout, identify
from bireme.aws.teardown.down import take_down
from bireme.aws.up import DesiredCluster, bring_up, execution_role, scale
from bireme.core.errors import NetworkError
from bireme.spec.cluster import AccessFile, ClusterFile, NetworkFile
from tests.aws.double import VirtualClock, World, attach

NAME = "paddle"
ADDRESS = "203.0.113.7/32"
LOADER = botocore.loaders.Loader()
"""Shared: reading the service models anew for each stage would be most of the work."""


class CrashError(BaseException):
    """The tool dies here; nothing catches it."""


def cluster_file(**more: Any) -> ClusterFile:
    return ClusterFile(name=NAME, region="us-west-2", access=AccessFile(api=(ADDRESS,)), **more)


@dataclass
class Unreachable:
    """A cluster whose API server does not answer; its address is asked for, as the command does."""

    stage: Stage
    asked: int = 0

    def clear(self, note: Callable[[str], None]) -> None:
        self.asked += 1
        kubeconfig(self.stage.aws(), self.stage.file.name, ["bireme"])
        raise NetworkError("the API server does not answer")


@dataclass
class Stage:
    """One account, one file, and as many runs of the tool as a test wants."""

    world: World
    file: ClusterFile = field(default_factory=cluster_file)
    notes: list[str] = field(default_factory=list)
    dies_at: int | None = None
    """The call, counted over all runs, at which the tool dies: before it is sent if odd, after it is done if even."""
    calls: int = 0
    workloads: Any = None

    @classmethod
    def make(cls, seed: int = 0, **more: Any) -> Stage:
        world = World(seed=seed, clock=VirtualClock())
        world.event_page = 12
        return cls(world, **more)

    def aws(self, region: str = "") -> Aws:
        def session() -> Any:
            core = botocore.session.Session()
            core.register_component("data_loader", LOADER)
            made = boto3.Session(aws_access_key_id="test", aws_secret_access_key="test", botocore_session=core)
            made.events.register_first("before-send", self._before)
            made.events.register("before-parse", self._after)
            attach(made, self.world)
            return made

        return Aws(region or self.file.region, self.world.clock, session)

    def _before(self, **_: Any) -> None:
        self.calls += 1
        if self.calls == self.dies_at and self.calls % 2:
            raise CrashError

    def _after(self, **_: Any) -> None:
        if self.calls == self.dies_at and not self.calls % 2:
            raise CrashError

    def stacks(self) -> Stacks:
        aws = self.aws()
        return Stacks(aws, role=execution_role(aws))

    def up(self) -> dict[str, str]:
        """What `bireme cluster up` does at AWS."""
        aws = self.aws()
        try:
            identity = identify(aws)
            layout = choose_layout(aws, self.file)
            stacks = Stacks(aws, role=execution_role(aws))
        except AwsError as e:
            raise to_error(e, "ask AWS") from e
        return bring_up(stacks, DesiredCluster(layout, identity.principal), self.notes.append)

    def scale(self, file: ClusterFile) -> None:
        layout = ClusterLayout(file, choose_zones(file))
        stacks = self.stacks()
        try:
            scale(stacks, DesiredCluster(layout, ""))
        except AwsError as e:
            raise to_error(e, "scale") from e

    def down(self, *, deletes_data: bool = True) -> list[Any]:
        """What `bireme cluster down` does at AWS; what is left."""
        try:
            stacks = self.stacks()
        except AwsError as e:
            raise to_error(e, "look") from e
        workloads = self.workloads or Unreachable(self)
        outcome = take_down(stacks, self.file.name, workloads, self.notes.append, deletes_data=deletes_data)
        if outcome.failure:
            raise outcome.failure
        return outcome.left

    def ours(self) -> list[str]:
        """What exists and was not there before the test: nothing planted counts."""
        return [f"{t.type} {t.id}" for t in self.world.inventory() if t.made_by != "planted"]


def public(file: ClusterFile) -> ClusterFile:
    import msgspec

    return msgspec.structs.replace(file, network=NetworkFile(egress="public"))
