"""What follows from a cluster.yaml: names, zones, address ranges and tags. No I/O.

Three stacks with lifetimes of their own: `storage` holds the data and outlives the cluster, `platform` is the network
and the control plane, `workers` is what costs most and changes most. Values go from one to the next as parameters,
never as CloudFormation exports, which would lock the stack that exports them.
"""

from __future__ import annotations

import ipaddress
import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from bireme.spec.cluster import ClusterFile

StackKind = Literal["storage", "platform", "workers"]
STACKS: tuple[StackKind, ...] = ("storage", "platform", "workers")
"""In creation order; they are deleted in reverse order."""
CLUSTER_TAG = "bireme:cluster"
"""The tag that marks a resource as bireme's and names its cluster."""
EXPIRY_TAG = "bireme:expires"
NAMESPACE = "bireme"
JOB_ACCOUNT = "bireme-job"
"""The service account of jobs that read from S3."""
GROUP_LABEL = "bireme.dev/group"
OPERATOR_STACK = "bireme-operator"
EXECUTION_ROLE = "bireme-cloudformation"
"""The role that CloudFormation uses, where an administrator has created it."""


def stack_name(cluster: str, kind: StackKind) -> str:
    """The name of one of a cluster's stacks."""
    return f"bireme-{cluster}-{kind}"


def repository_name(cluster: str) -> str:
    """The name of a cluster's image repository."""
    return f"bireme-{cluster}"


def log_group(cluster: str) -> str:
    """The log group of a cluster's control plane; EKS chooses the name."""
    return f"/aws/eks/{cluster}/cluster"


def role_path(cluster: str) -> str:
    """The IAM path of a cluster's roles, for listing them."""
    return f"/bireme/{cluster}/"


@dataclass(frozen=True, slots=True)
class ClusterLayout:
    """A cluster file with the values resolved that it leaves open."""

    file: ClusterFile
    zones: tuple[str, ...]
    """Two zones; workers run in the first, because traffic between zones is billed."""

    @property
    def name(self) -> str:
        """The cluster's name."""
        return self.file.name

    @property
    def stacks(self) -> tuple[StackKind, ...]:
        """The stacks of this cluster; without `storage` where the user names a file system."""
        return STACKS if self.file.storage.file_system is None else STACKS[1:]

    @property
    def makes_network(self) -> bool:
        """Whether bireme creates the VPC."""
        return self.file.network.vpc is None

    @property
    def has_nat(self) -> bool:
        """Whether workers reach the internet through a NAT gateway that bireme creates."""
        return self.makes_network and self.file.network.egress == "nat"

    @property
    def public_ranges(self) -> tuple[str, ...]:
        """A range for each zone's public subnet."""
        return self._ranges()[0]

    @property
    def private_ranges(self) -> tuple[str, ...]:
        """A range for each zone's private subnet, from which pods get their addresses; empty without NAT."""
        return self._ranges()[1]

    def _ranges(self) -> tuple[tuple[str, ...], tuple[str, ...]]:
        network = ipaddress.ip_network(self.file.network.cidr)
        quarters = [str(each) for each in network.subnets(prefixlen_diff=2)]
        return tuple(quarters[:2]), tuple(quarters[2:]) if self.has_nat else ()

    @property
    def tags(self) -> dict[str, str]:
        """The tags of every stack, which CloudFormation copies to its resources."""
        return {**self.file.tags, CLUSTER_TAG: self.name}

    def stack(self, kind: StackKind) -> str:
        """The name of one of the stacks."""
        return stack_name(self.name, kind)


def choose_zones(file: ClusterFile, offered: Sequence[str] = ()) -> tuple[str, ...]:
    """The two zones of a cluster: those that the file names first, then others on offer.

    Without `offered` (no credentials) zones a, b and c are assumed: such a layout is only shown, never created.
    """
    others = offered or [f"{file.region}{letter}" for letter in "abc"]
    return tuple(itertools.islice(dict.fromkeys([*file.zones, *others]), 2))
