"""From cluster.yaml to a checked ClusterFile: every mistake at once, each with its line and a fix.

All checks are made on the file alone, before any call to AWS. Files of kube-aws are read too (kube_aws.py).
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from ipaddress import AddressValueError, IPv4Address, IPv4Network, collapse_addresses
from pathlib import Path
from typing import Any

import msgspec

from bireme.core.errors import SpecError, UsageError
from bireme.spec.aws_rules import other_partition, reserved_domain, reserved_tag, why_no_bucket
from bireme.spec.cluster import (
    BUCKET,
    CIDR,
    DEFAULT_VERSION,
    KMS_KEY,
    MAX_WORKERS,
    NAME,
    OLDEST_VERSION,
    REGION,
    VERSION,
    ClusterFile,
    GroupFile,
    NetworkFile,
    TrainerGroupFile,
    WorkersFile,
)
from bireme.spec.kube_aws import move_keys
from bireme.spec.mistakes import Mistake, find_mistakes, in_plain_terms, item_lines, lines_of, plain, read_yaml, refusal

REFERENCE = "docs/reference/cluster.md"
PRIVATE = tuple(map(IPv4Network, ("10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16")))
"""Private addresses, where EKS wants the range of Services and where a VPC belongs."""
UNSEEN = (*PRIVATE, *map(IPv4Network, ("100.64.0.0/10", "127.0.0.0/8", "169.254.0.0/16")))
"""Addresses from which no packet arrives over the internet."""
MIN_API_PREFIX = 8
MAX_API_ADDRESSES = 1 << (32 - MIN_API_PREFIX)
"""All ranges together may open no more than the largest single one: many small ranges are a large one too."""
MIN_RANGE = 24
"""A VPC of /24 has room for four subnets of 59 addresses, a useful minimum; EKS accepts no smaller `services`."""


def load_cluster(path: Path) -> ClusterFile:
    """Read a cluster.yaml; a directory means the cluster.yaml in it."""
    path = path / "cluster.yaml" if path.is_dir() else path
    data = read_cluster_file(path)
    wrong = move_keys(data)
    if wrong := wrong + find_cluster_mistakes(data):
        raise refusal(path, wrong, REFERENCE)
    return msgspec.convert(plain(data), ClusterFile)


def set_counts(path: Path, *, trainers: int, servers: int | None = None) -> tuple[str, ClusterFile]:
    """The file's text with other numbers of machines, comments kept, and its parsed form; nothing is written."""
    from io import StringIO

    from ruamel.yaml import YAML

    data = read_cluster_file(path)
    wrong = move_keys(data)
    workers = data.setdefault("workers", {})
    for group, count in (("trainers", trainers), ("servers", servers)):
        if count is not None:
            workers.setdefault(group, {})["count"] = count
    if wrong := wrong + find_cluster_mistakes(data):
        raise refusal(path, wrong, REFERENCE)
    text = StringIO()
    writer = YAML(typ="rt", pure=True)
    writer.width = 120
    writer.dump(data, text)
    return text.getvalue(), msgspec.convert(plain(data), ClusterFile)


def read_cluster_file(path: Path) -> Any:
    """Parse a cluster.yaml, with the lines of its keys."""
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError as e:
        raise SpecError(f"there is no file {path}", fix="`bireme cluster init` writes one") from e
    except (OSError, UnicodeDecodeError) as e:
        raise SpecError(f"cannot read {path}: {e}") from e
    data = read_yaml(text, str(path))
    return data if data is not None else {}


def find_cluster_mistakes(data: Any) -> list[Mistake]:
    """All mistakes of a parsed file; a key with a conflict is not also checked against its struct."""
    clashes = find_cluster_file_clashes(data)
    known = {key_of(mistake) for mistake in clashes}
    found = [mistake for mistake in find_mistakes(ClusterFile, data) if key_of(mistake) not in known]
    return clashes + [replace(mistake, text=in_plain_terms(mistake.text)) for mistake in found]


def key_of(mistake: Mistake) -> str:
    """The dotted key that a mistake is about, with the index of an item; empty if it is about the whole file."""
    found = re.match(r"`([^`]+)`", mistake.text)
    return found[1] if found else ""


def find_cluster_file_clashes(data: Any) -> list[Mistake]:
    """Rules beyond the structs: values that AWS would refuse, and keys that conflict."""
    if not isinstance(data, Mapping):
        return []
    parsed = _Parsed(data)
    return [mistake for check in _CHECKS for mistake in check(parsed)]


@dataclass(frozen=True, slots=True)
class _Parsed:
    """A parsed file whose values may still be of any type; keys are dotted paths."""

    data: Mapping[str, Any]

    def find(self, path: str) -> tuple[Any, int]:
        """A value and its line; None, and the line of the section, where the key is missing."""
        value, line = self.data, 1
        for key in path.split("."):
            if not isinstance(value, Mapping) or key not in value:
                return None, line
            value, line = value[key], lines_of(value, line)[key]
        return plain(value) if not isinstance(value, list | Mapping) else value, line

    def has(self, path: str) -> bool:
        """Whether a key is given, with something in it."""
        return self.find(path)[0] is not None

    def text(self, path: str, pattern: str = "") -> str | None:
        """A value that is text and has the form; the structs refuse others."""
        value = self.find(path)[0]
        return value if isinstance(value, str) and re.search(pattern, value) else None

    def number(self, path: str, default: int) -> int | None:
        """A whole number or the key's default; None for a value of another type."""
        value = self.find(path)[0]
        if value is None:
            return default
        return value if isinstance(value, int) and not isinstance(value, bool) else None

    def items(self, path: str) -> list[tuple[str, str, int]]:
        """The texts in a list, each with its key (`zones[0]`) and its line."""
        value, line = self.find(path)
        if not isinstance(value, list):
            return []
        numbered = enumerate(zip(value, item_lines(value, line), strict=True))
        return [(f"{path}[{i}]", item, at) for i, (item, at) in numbered if isinstance(item, str)]

    def pairs(self, path: str) -> list[tuple[str, int]]:
        """The keys of a mapping that are text, each with its line."""
        value, line = self.find(path)
        if not isinstance(value, Mapping):
            return []
        return [(key, at) for key, at in lines_of(value, line).items() if isinstance(key, str)]


def _name(parsed: _Parsed) -> Iterator[Mistake]:
    name, line = parsed.find("name")
    if isinstance(name, str) and not re.search(NAME, name):
        text = f"`name`: {name!r} must be 2 to 32 lower-case letters, digits and dashes, a letter first, no dash last"
        close = propose_name(name)
        yield Mistake(line, text, "it becomes part of the stacks' names", f"use `{close}`" if close else "")


def check_name(name: str) -> None:
    """Refuse a command-line argument that cannot be a cluster's name."""
    if not re.search(NAME, name):
        close = propose_name(name)
        text = f"{name!r} cannot be a cluster's name: 2 to 32 lower-case letters, digits and dashes, a letter first"
        raise UsageError(text, fix=f"did you mean `{close}`?" if close else "name the cluster as cluster.yaml does")


def propose_name(text: str) -> str:
    """The closest name that is allowed, or nothing."""
    close = re.sub(r"[^a-z0-9]+", "-", text.lower())
    close = re.sub(r"^[^a-z]+", "", close)[:32].rstrip("-")
    return close if re.search(NAME, close) else ""


def _version(parsed: _Parsed) -> Iterator[Mistake]:
    version, line = parsed.find("kubernetes")
    if isinstance(version, int | float) and not isinstance(version, bool):
        text = f"`kubernetes`: without quotes {version:g} is a number"
        why, fix = "a number loses its last zero: 1.30 is 1.3", f'write `kubernetes: "{DEFAULT_VERSION}"`'
        yield Mistake(line, text, why, fix)
    elif (older := parsed.text("kubernetes", VERSION)) and _minor(older) < _minor(OLDEST_VERSION):
        fix = f'write `kubernetes: "{DEFAULT_VERSION}"`; `bireme cluster plan` asks EKS which versions it supports'
        yield Mistake(line, f"`kubernetes`: EKS no longer runs {older}", f"{OLDEST_VERSION} is the oldest", fix)


def _minor(version: str) -> int:
    return int(version.partition(".")[2])


def _region(parsed: _Parsed) -> Iterator[Mistake]:
    region, line = parsed.find("region")
    if isinstance(region, str) and (partition := other_partition(region)):
        why = f"{partition} is a partition of AWS of its own, and bireme's policies and registry names do not cover it"
        yield Mistake(line, f"`region`: {region} is not supported", why, "choose a region such as `us-west-2`")


def _zones(parsed: _Parsed) -> Iterator[Mistake]:
    region, seen = parsed.text("region", REGION), set[str]()
    for key, zone, line in parsed.items("zones"):
        if region and not re.fullmatch(f"{region}[a-z]", zone):
            yield Mistake(line, f"`{key}`: {zone} is not a zone of {region}", fix=f"name one such as `{region}a`")
        elif zone in seen:
            text, why = f"`{key}`: {zone} is listed twice", "EKS wants two zones"
            yield Mistake(line, text, why, "list it once; the second zone is then chosen for you")
        seen.add(zone)


def _kms_key(parsed: _Parsed) -> Iterator[Mistake]:
    key, region = parsed.text("kms_key", KMS_KEY), parsed.text("region", REGION)
    if key and region and (there := key.split(":")[3]) != region:
        text = f"`kms_key`: the key is in {there}, the cluster in {region}"
        fix = f"use a key of {region}, or leave `kms_key` out"
        yield Mistake(parsed.find("kms_key")[1], text, "keys work in their own region only", fix)


def _range(key: str, text: str, line: int) -> tuple[IPv4Network | None, list[Mistake]]:
    try:
        found = IPv4Network(text, strict=False)
    except ValueError:
        fix = "write four numbers from 0 to 255 without leading zeros, and 0 to 32 after the slash"
        return None, [Mistake(line, f"`{key}`: {text} is not a range of addresses", fix=fix)]
    if text != str(found):
        text = f"`{key}`: {text} is not the start of a range of /{found.prefixlen}"
        return None, [Mistake(line, text, fix=f"write `{found}`")]
    return found, []


def _ranges(parsed: _Parsed) -> Iterator[Mistake]:
    found = {}
    for name, default, widest in (("cidr", NetworkFile().cidr, 16), ("services", NetworkFile().services, 12)):
        key = f"network.{name}"
        line = parsed.find(key)[1]
        network, wrong = _range(key, parsed.text(key, CIDR) or default, line)
        yield from wrong
        if network is None:
            continue
        found[name] = network
        if not any(network.subnet_of(private) for private in PRIVATE):
            text = f"`{key}`: {network} is not within the private addresses"
            yield Mistake(line, text, fix=f"choose a range in {', '.join(map(str, PRIVATE))}")
        if not widest <= network.prefixlen <= MIN_RANGE:
            text = f"`{key}`: {network} is too {'small' if network.prefixlen > MIN_RANGE else 'large'}"
            yield Mistake(line, text, fix=f"choose a range from /{widest} to /{MIN_RANGE}")
    if len(found) == 2 and not parsed.has("network.vpc") and found["cidr"].overlaps(found["services"]):
        yield _overlap(parsed, found["cidr"], found["services"])


def _overlap(parsed: _Parsed, cidr: IPv4Network, services: IPv4Network) -> Mistake:
    text = f"`network.services` ({services}) overlaps `network.cidr` ({cidr})"
    choices = map(IPv4Network, (NetworkFile().services, "172.20.0.0/16"))
    free = next(choice for choice in choices if not choice.overlaps(cidr))
    key = "network.services" if parsed.has("network.services") else "network.cidr"
    why = "an address would mean a machine and a Service"
    return Mistake(parsed.find(key)[1], text, why, f"write `services: {free}`")


def _api(parsed: _Parsed) -> Iterator[Mistake]:
    public = []
    for key, text, line in parsed.items("access.api"):
        if not re.search(CIDR, text):
            yield from _bare_address(key, text, line)
            continue
        network, wrong = _range(key, text, line)
        yield from wrong
        if network is None:
            continue
        if network.prefixlen < MIN_API_PREFIX:
            text = f"`{key}`: {network} opens the API server to {_share(network)}"
            yield Mistake(line, text, _WHY_FEW, "name your own address, such as `203.0.113.7/32`")
        elif any(network.overlaps(hidden) for hidden in UNSEEN):
            text = f"`{key}`: {network} is not an address on the internet"
            why = "the API server sees the public address of your network"
            yield Mistake(line, text, why, "name the public address, such as `203.0.113.7/32`")
        else:
            public.append(network)
    total = sum(network.num_addresses for network in collapse_addresses(public))
    if total > MAX_API_ADDRESSES:
        text = f"`access.api` opens the API server to {total:,} addresses together"
        fix = f"name fewer, smaller ranges: {MAX_API_ADDRESSES:,} addresses at most"
        yield Mistake(parsed.find("access.api")[1], text, _WHY_FEW, fix)


_WHY_FEW = "a stolen credential would then be enough to enter"


def _bare_address(key: str, text: str, line: int) -> Iterator[Mistake]:
    try:
        address = IPv4Address(text)
    except AddressValueError:
        return  # the struct's own check reports it
    yield Mistake(line, f"`{key}`: {address} is an address without its size", fix=f"write `{address}/32`")


def _share(network: IPv4Network) -> str:
    return "the whole world" if network.prefixlen == 0 else f"{network.num_addresses:,} addresses"


def _existing_network(parsed: _Parsed) -> Iterator[Mistake]:
    subnets, line = parsed.find("network.subnets")
    if not parsed.has("network.vpc"):
        if subnets:
            text = "`network.subnets` is for an existing VPC, and `network.vpc` names none"
            yield Mistake(line, text, fix="name the VPC in `network.vpc`, or leave `network.subnets` out")
        return
    if not isinstance(subnets, list | None) or len(set(map(str, subnets or ()))) < 2:
        text = "`network.subnets` must name at least two subnets of `network.vpc`, in two zones"
        at = line if subnets else parsed.find("network.vpc")[1]
        yield Mistake(at, text, "EKS wants two zones", "name two or more in `network.subnets`, the workers' first")
    for key in ("network.cidr", "network.egress", "zones"):
        if parsed.find(key)[0]:
            text = f"`{key}` is for a VPC that is made, and `network.vpc` names one"
            yield Mistake(parsed.find(key)[1], text, fix=f"leave `{key}` or `network.vpc` out")


def _counts(parsed: _Parsed) -> Iterator[Mistake]:
    most = parsed.number("workers.max", WorkersFile().max)
    for group, default in (("servers", GroupFile().count), ("trainers", TrainerGroupFile().count)):
        key = f"workers.{group}.count"
        count = parsed.number(key, default)
        if count is not None and most is not None and most < count <= MAX_WORKERS:
            line = parsed.find(key if parsed.has(key) else "workers.max")[1]
            text = f"`{key}` is {count}, and `workers.max` is {most}"
            yield Mistake(line, text, fix=f"set `workers.max: {count}` or more, or fewer {group}")


def _duplicates(parsed: _Parsed) -> Iterator[Mistake]:
    """Find duplicates in lists where AWS refuses them."""
    for path in ("access.api", "access.admins", "network.subnets", "workers.servers.types", "workers.trainers.types"):
        seen = set[str]()
        for key, item, line in parsed.items(path):
            if item in seen:
                yield Mistake(line, f"`{key}`: {item} is listed twice", fix="list it once")
            seen.add(item)


def _bucket(parsed: _Parsed) -> Iterator[Mistake]:
    name = parsed.text("bucket", BUCKET)
    if name and (why := why_no_bucket(name)):
        yield Mistake(
            parsed.find("bucket")[1], f"`bucket`: S3 has no bucket {name}", why, "correct it, or leave `bucket` out"
        )


def _types(parsed: _Parsed) -> Iterator[Mistake]:
    for group in ("servers", "trainers"):
        for key, name, line in parsed.items(f"workers.{group}.types"):
            if is_arm(name):
                text, why = f"`{key}`: {name} has an ARM processor", "the image is built for x86-64"
                yield Mistake(line, text, why, "choose an Intel or AMD type, such as `m7i.large` or `m7a.large`")


def is_arm(instance_type: str) -> bool:
    """Whether a type is one of AWS's own processors (Graviton): a `g` after the generation, as in m7g or c6gn."""
    family = re.match(r"[a-z-]+[0-9]+([a-z]*)", instance_type)
    return instance_type.startswith("a1.") or (family is not None and "g" in family[1])


def _labels(parsed: _Parsed) -> Iterator[Mistake]:
    for label, line in parsed.pairs("workers.labels"):
        if domain := reserved_domain(label):
            text = f"`workers.labels.{label}`: labels of {domain} are reserved"
            yield Mistake(line, text, "EKS or bireme sets them", "choose a key without that domain")


def _tags(parsed: _Parsed) -> Iterator[Mistake]:
    for tag, line in parsed.pairs("tags"):
        if start := reserved_tag(tag):
            text = f"`tags.{tag}`: tags that begin with `{start}` are reserved"
            yield Mistake(line, text, "AWS, Kubernetes or bireme sets them", "choose another key")


_CHECKS = (
    _name, _region, _version, _zones, _kms_key, _ranges, _api, _existing_network, _counts, _types, _duplicates, _bucket,
    _labels, _tags,
)  # fmt: skip
