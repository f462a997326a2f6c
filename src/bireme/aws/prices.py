"""The price of a cluster from a built-in table of list prices, so that no account is needed. No I/O.

The table is an estimate with a date. Machines of one family cost in proportion to their size; regions differ by a
factor. A type or region outside the table has no price, which is reported and never counted as zero.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from bireme.aws.layout import ClusterLayout
from bireme.spec.cluster import GroupFile

DATE = "2026-11"
"""When the table was compiled, by hand and without a check against an account."""
MONTH_H = 730
SPOT_SHARE = 0.4
"""Spot prices vary; this share of the list price is assumed."""
LARGE_USD_H = {
    "m5": 0.096, "m5a": 0.086, "m6i": 0.096, "m6a": 0.0864, "m7i": 0.1008, "m7a": 0.1159,
    "c5": 0.085, "c5a": 0.077, "c6i": 0.085, "c6a": 0.0765, "c7i": 0.0893, "c7a": 0.1026,
    "r5": 0.126, "r5a": 0.113, "r6i": 0.126, "r6a": 0.1134, "r7i": 0.1323, "r7a": 0.1522,
    "t3": 0.0832, "t3a": 0.0752,
}  # fmt: skip
"""An hour of the size `large`, on demand, in us-east-1."""
REGION_FACTOR = {
    "us-east-1": 1.0, "us-east-2": 1.0, "us-west-2": 1.0, "us-west-1": 1.17, "ca-central-1": 1.12,
    "eu-west-1": 1.12, "eu-west-2": 1.16, "eu-west-3": 1.17, "eu-central-1": 1.2, "eu-north-1": 1.06,
    "ap-northeast-1": 1.29, "ap-northeast-2": 1.23, "ap-southeast-1": 1.25, "ap-southeast-2": 1.25, "ap-south-1": 1.05,
}  # fmt: skip
CONTROL_PLANE_USD_H = 0.10
NAT_USD_H, NAT_USD_GB, ADDRESS_USD_H = 0.045, 0.045, 0.005
DISK_USD_GB_MONTH, FILE_USD_GB_MONTH, IMAGE_USD_GB_MONTH = 0.08, 0.30, 0.10
BALANCER_USD_H, ZONE_USD_MONTH = 0.0225, 0.50
_SIZES = {"large": 1.0, "xlarge": 2.0, "medium": 0.5, "small": 0.25}


@dataclass(frozen=True, slots=True)
class Item:
    """One line of a bill."""

    name: str
    usd_h: float | None
    """None where the table has no price."""
    note: str = ""


@dataclass(frozen=True, slots=True)
class Estimate:
    """The price of a running cluster, without what is billed by use (bytes stored, read and sent)."""

    items: tuple[Item, ...]

    @property
    def unknown(self) -> tuple[str, ...]:
        """The items without a price in the table."""
        return tuple(item.name for item in self.items if item.usd_h is None)

    @property
    def usd_h(self) -> float:
        """Dollars an hour of the items that have a price."""
        return sum(item.usd_h or 0.0 for item in self.items)


def machine_usd_h(type_: str, region: str, capacity: str = "on_demand") -> float | None:
    """The price of one machine for an hour; None outside the table."""
    family, _, size = type_.partition(".")
    factor, large = REGION_FACTOR.get(region), LARGE_USD_H.get(family)
    multiple = re.fullmatch(r"(\d+)xlarge", size)
    scale = 2.0 * int(multiple[1]) if multiple else _SIZES.get(size)
    if factor is None or large is None or scale is None:
        return None
    return large * scale * factor * (SPOT_SHARE if capacity == "spot" else 1.0)


def estimate(layout: ClusterLayout) -> Estimate:
    """The hourly price of a cluster, item by item."""
    region, workers = layout.file.region, layout.file.workers
    items = [Item("control plane", CONTROL_PLANE_USD_H, "EKS, standard support")]
    items += _group(region, "servers", workers.servers)
    items += _group(region, "trainers", workers.trainers)
    if layout.makes_network:
        items += way_out(region, has_nat=layout.has_nat, machines=workers.servers.count + workers.trainers.count)
    if layout.file.dns_zone is not None:
        items.append(Item("DNS zone", ZONE_USD_MONTH / MONTH_H))
    return Estimate(tuple(items))


def way_out(region: str, *, has_nat: bool, machines: int) -> list[Item]:
    """The price of egress from a network that bireme creates: a NAT gateway, or the machines' public addresses."""
    if not has_nat:
        return [Item("public addresses", ADDRESS_USD_H * machines, f"of {machines} machines")]
    factor = REGION_FACTOR.get(region)
    return [
        Item("NAT gateway", factor and NAT_USD_H * factor, f"and ${NAT_USD_GB}/GB that goes through it"),
        Item("public address", ADDRESS_USD_H, "of the NAT gateway"),
    ]


def _group(region: str, name: str, group: GroupFile) -> list[Item]:
    if not group.count:
        return []
    each = machine_usd_h(group.types[0], region, group.capacity)
    factor = REGION_FACTOR.get(region)
    how = f"spot, taken as {SPOT_SHARE:.0%} of the list price" if group.capacity == "spot" else "on demand"
    disk = factor and DISK_USD_GB_MONTH * factor * group.disk_gb * group.count / MONTH_H
    return [
        Item(f"{name}: {group.count} x {group.types[0]}", None if each is None else each * group.count, how),
        Item(f"{name}: disks of {group.disk_gb} GB", disk),
    ]


def usage_notes() -> list[str]:
    """What is billed by use and therefore not in the estimate."""
    return [
        f"files held in EFS: ${FILE_USD_GB_MONTH}/GB a month; elastic reads $0.03/GB, writes $0.06/GB",
        f"images in ECR: ${IMAGE_USD_GB_MONTH}/GB a month",
    ]
