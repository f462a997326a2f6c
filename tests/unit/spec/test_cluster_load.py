"""What cluster.yaml may say, which keys of kube-aws are read, and what the message on each mistake says."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bireme.core.errors import SpecError
from bireme.spec import cluster
from bireme.spec.cluster import AccessFile, ClusterFile, GroupFile, NetworkFile, TrainerGroupFile, WorkersFile
from bireme.spec.cluster_load import (
    find_cluster_file_clashes,
    find_cluster_mistakes,
    is_arm,
    load_cluster,
    propose_name,
)
from bireme.spec.kube_aws import KUBE_AWS, move_keys
from bireme.spec.load import aws_region

HEAD = "name: paddle-cluster\nregion: us-west-2\naccess: {api: [203.0.113.7/32]}\n"
VPC = "vpc: vpc-0123456789abcdef0"
TWO = "subnets: [subnet-0123456789abcdef0, subnet-0123456789abcdef1]"


def write(folder: Path, text: str) -> Path:
    path = folder / "cluster.yaml"
    path.write_text(text, encoding="utf-8")
    return path


def message(folder: Path, text: str) -> str:
    with pytest.raises(SpecError) as caught:
        load_cluster(write(folder, text))
    return str(caught.value).replace(f"{folder}/", "")


def test_a_short_file_is_enough(tmp_path: Path) -> None:
    expected = ClusterFile(name="paddle-cluster", region="us-west-2", access=AccessFile(api=("203.0.113.7/32",)))
    assert load_cluster(write(tmp_path, HEAD)) == expected
    assert load_cluster(tmp_path) == expected


# What follows HEAD (its first line is line 4), and parts of the message.
MISTAKES: dict[str, tuple[str, tuple[str, ...]]] = {
    "an unknown key": ("zone: us-west-2a", (":4: `zone` is not a known key; did you mean `zones`?",)),
    "an empty section": ("workers:", (":4: `workers` must hold keys", "fix: remove the line `workers:`, or set one")),
    "an empty inner section": ("workers:\n  servers:", (":5: `workers.servers` must", "remove the line `servers:`")),
    "text for a list": ("zones: us-west-2a", (":4: `zones`: expected a list, got 'us-west-2a'",)),
    "nothing for a list": ("zones:", (":4: `zones`: expected a list, got nothing",)),
    "yes for a number": ("workers: {max: yes}", (":4: `workers.max`: expected a whole number, got",)),
    "less than the least": (
        "workers: {trainers: {disk_gb: 1}}",
        ("disk_gb`: expected a whole number, at least 20, got 1",),
    ),
    "a type twice": (
        "workers:\n  servers:\n    types: [m5.large, m5.large]",
        (":6: `workers.servers.types[1]`: m5.large is listed",),
    ),
    "a version that EKS has given up": (
        'kubernetes: "1.10"',
        (":4: `kubernetes`: EKS no longer runs 1.10", "why: 1.31 is the oldest", '"1.34"'),
    ),
    "a bucket with two dots": ("bucket: my..bucket", (":4: `bucket`: S3 has no bucket my..bucket", "two dots side")),
    "a bucket like an address": ("bucket: 192.168.5.4", ("S3 has no bucket", "it looks like an address")),
    "a bucket with a reserved name": ("bucket: xn--data", ("names that begin with `xn--` are reserved",)),
    "a tag of Kubernetes": (
        "tags: {kubernetes.io/cluster/x: owned}",
        ("`tags.kubernetes.io/cluster/x`: tags that begin", "are reserved"),
    ),
    "a tag of a controller": ("tags: {elbv2.k8s.aws/cluster: x}", ("begin with `elbv2.k8s.aws/` are reserved",)),
    "a tag of EKS": ("tags: {'eks:cluster-name': x}", ("tags that begin with `eks:` are reserved",)),
    "an unknown inner key": ("workers: {trainers: {cout: 3}}", (":4: `workers.trainers.cout`", "`count`?")),
    "no types": (
        "workers: {trainers: {types: []}}",
        (":4: `workers.trainers.types`: expected at least 1 item, got an empty list",),
    ),
    "a version without quotes": (
        "kubernetes: 1.34",
        (":4: `kubernetes`: without quotes 1.34 is a number", 'fix: write `kubernetes: "1.34"`'),
    ),
    "a version that lost its zero": ("kubernetes: 1.30", ("1.3 is a number", "why: a number loses its last zero")),
    "a version of kube-aws": ('kubernetes: "v1.4.6"', (':4: `kubernetes`: kubernetes version, such as `"1.34"`',)),
    "numbers above 255": (
        "network: {cidr: 10.300.0.0/16}",
        (":4: `network.cidr`: 10.300.0.0/16 is not a range of addresses", "fix: write four numbers from 0 to 255"),
    ),
    "a mask above 32": ("network: {cidr: 10.0.0.0/40}", ("10.0.0.0/40 is not a range", "0 to 32 after the slash")),
    "host bits": (
        "network: {cidr: 10.0.3.1/16}",
        ("`network.cidr`: 10.0.3.1/16 is not the start of a range of /16", "fix: write `10.0.0.0/16`"),
    ),
    "a VPC that is too small": ("network: {cidr: 10.0.0.0/25}", ("10.0.0.0/25 is too small", "from /16 to /24")),
    "a VPC that is too large": ("network: {cidr: 10.0.0.0/12}", ("10.0.0.0/12 is too large", "from /16 to /24")),
    "a public VPC": ("network: {cidr: 54.0.0.0/16}", ("54.0.0.0/16 is not within the private addresses",)),
    "public Services": ("network: {services: 100.64.0.0/16}", ("`network.services`: 100.64.0.0/16 is not within",)),
    "Services that are too many": ("network: {services: 10.0.0.0/8}", ("is too large", "from /12 to /24")),
    "both ranges wrong": (
        "network:\n  cidr: 10.0.0.1/16\n  services: 10.100.0.0/30",
        (":5: `network.cidr`: 10.0.0.1/16", ":6: `network.services`: 10.100.0.0/30 is too small"),
    ),
    "Services in the VPC": (
        "network:\n  cidr: 10.3.0.0/16\n  services: 10.3.0.0/24",
        (":6: `network.services` (10.3.0.0/24) overlaps `network.cidr` (10.3.0.0/16)", "`services: 10.100.0.0/16`"),
    ),
    "a VPC over the default of Services": (
        "network: {cidr: 10.100.0.0/16}",
        (":4: `network.services` (10.100.0.0/16) overlaps", "fix: write `services: 172.20.0.0/16`"),
    ),
    "a zone of another region": ("zones: [us-west-1a]", (":4: `zones[0]`: us-west-1a is not a zone of us-west-2",)),
    "a zone twice": ("zones:\n  - us-west-2a\n  - us-west-2a", (":6: `zones[1]`: us-west-2a is listed twice",)),
    "three zones": ("zones: [us-west-2a, us-west-2b, us-west-2c]", (":4: `zones`: expected at most 2 items, got",)),
    "a key of another region": (
        "kms_key: arn:aws:kms:us-east-1:123456789012:key/abc",
        ("`kms_key`: the key is in us-east-1, the cluster in us-west-2", "fix: use a key of us-west-2"),
    ),
    "a key that is a placeholder": (
        "kms_key: arn:aws:kms:us-west-2:xxxxxxxxxx:key/xxx",
        (":4: `kms_key`: ARN of the KMS key for the file system and Kubernetes' secrets, got 'arn:",),
    ),
    "a VPC without subnets": (f"network: {{{VPC}}}", ("`network.subnets` must name at least two subnets",)),
    "a VPC with one subnet twice": (
        f"network: {{{VPC}, subnets: [subnet-0123456789abcdef0, subnet-0123456789abcdef0]}}",
        (":4: `network.subnets` must name at least two subnets",),
    ),
    "subnets without a VPC": (f"network: {{{TWO}}}", ("`network.subnets` is for an existing VPC",)),
    "a VPC and a range for it": (
        f"network:\n  {VPC}\n  {TWO}\n  cidr: 10.0.0.0/16\n  egress: public",
        (":7: `network.cidr` is for a VPC that is made", ":8: `network.egress` is for a VPC that is made"),
    ),
    "a VPC and zones": (f"zones: [us-west-2a]\nnetwork: {{{VPC}, {TWO}}}", (":4: `zones` is for a VPC that is made",)),
    "more than at most": (
        "workers:\n  trainers: {count: 30}",
        (":5: `workers.trainers.count` is 30, and `workers.max` is 20", "fix: set `workers.max: 30` or more"),
    ),
    "at most less than the default": ("workers: {max: 2}", (":4: `workers.trainers.count` is 3, and `workers.max`",)),
    "more than EKS takes": (
        "workers: {servers: {count: 451}}",
        ("`workers.servers.count`: expected a whole number, at most 450",),
    ),
    "an ARM type": (
        "workers: {servers: {types: [m7i.large, m7g.large]}}",
        ("`workers.servers.types[1]`: m7g.large has an ARM processor", "why: the image is built for x86-64"),
    ),
    "a label of Kubernetes": (
        "workers:\n  labels:\n    node-role.kubernetes.io/trainer: yes-it-is",
        (":6: `workers.labels.node-role.kubernetes.io/trainer`: labels of node-role.kubernetes.io are reserved",),
    ),
    "a label of ours": ("workers: {labels: {bireme.dev/group: x}}", ("labels of bireme.dev are reserved",)),
    "a label that is none": ("workers: {labels: {'aws:x': y}}", ("`workers.labels`: a label's key: at most 63",)),
    "a label's value that is none": ("workers: {labels: {a: 'b c'}}", ("`workers.labels.a`: a label's value",)),
    "a label's value that is a number": (
        "workers: {labels: {a: 3}}",
        ("`workers.labels.a`: expected text, got 3 (put it in quotes)",),
    ),
    "a tag of AWS": ("tags: {'AWS:x': y}", (":4: `tags.AWS:x`: tags that begin with `aws:` are reserved",)),
    "a tag of ours": ("tags: {'bireme:cluster': y}", ("tags that begin with `bireme:` are reserved",)),
    "a tag with other characters": ("tags: {a: 'b*c'}", ("`tags.a`: a tag's value: at most 256",)),
    "too many tags": (
        f"tags: {{{', '.join(f'a{i}: b' for i in range(41))}}}",
        ("`tags`: expected at most 40 keys",),
    ),
    "a name with two dots": ("dns_zone: a..b", ("`dns_zone`: name of a private DNS zone",)),
    "text for a section": ("workers: 3", (":4: `workers` must hold keys and values, not 3",)),
    "an old key": (
        "controllerCount: 1",
        (":4: `controllerCount` is a key of kube-aws that bireme does not use: EKS runs the", "fix: leave it out"),
    ),
    "an old version": ("kubernetesVersion: v1.4.6_coreos.0", ("EKS has its own list", '`kubernetes: "1.34"`')),
    "a price": ('workerSpotPrice: "0.05"', ("spot machines cost the market price, and no bid limits it",)),
    "an old and a new key": (
        "clusterName: other",
        (":4: `clusterName`, a key of kube-aws, and `name` are both given", "fix: leave `clusterName` out"),
    ),
    "an old key and a section that is none": ("workers: 3\nworkerCount: 3", (":4: `workers` must hold keys and",)),
    "a wrong value of an old key": (
        "x: 1\nworkerCount: many",
        (":5: `workers.trainers.count`: expected a whole number",),
    ),
    "an old zone of another region": ("availabilityZone: us-west-1a", (":4: `zones[0]`: us-west-1a is not a zone",)),
}


@pytest.mark.parametrize("name", MISTAKES)
def test_a_mistake_is_reported_with_its_line(tmp_path: Path, name: str) -> None:
    text, parts = MISTAKES[name]
    found = message(tmp_path, f"{HEAD}{text}\n")
    for part in parts:
        assert part in found


API = {
    "0.0.0.0/0": "opens the API server to the whole world",
    "128.0.0.0/1": "opens the API server to 2,147,483,648 addresses",
    "192.168.1.7/32": "is not an address on the internet",
    "203.0.113.7/24": "is not the start of a range of /24",
    "YOUR.IP/32": "a public address as `203.0.113.7/32`",
}


@pytest.mark.parametrize("address", API)
def test_addresses_of_the_api_server_are_few_and_public(tmp_path: Path, address: str) -> None:
    found = message(tmp_path, f"name: a1\nregion: us-west-2\naccess:\n  api:\n    - 198.51.100.0/24\n    - {address}\n")
    assert f"cluster.yaml:6: `access.api[1]`: {API[address]}" in found.replace(f" {address} ", " ")


def with_api(*ranges: str) -> str:
    return f"name: a1\nregion: us-west-2\naccess: {{api: [{', '.join(ranges)}]}}\n"


def test_an_empty_section_that_is_needed_names_its_key(tmp_path: Path) -> None:
    assert "fix: set `access.api`" in message(tmp_path, "name: paddle\nregion: us-west-2\naccess:\n")


def test_many_ranges_together_may_not_open_the_server(tmp_path: Path) -> None:
    found = message(tmp_path, with_api(*(f"{first}.0.0.0/8" for first in (3, 4, 8, 9))))
    assert "`access.api` opens the API server to 67,108,864 addresses together" in found
    assert "fix: name fewer, smaller ranges: 16,777,216 addresses at most" in found
    load_cluster(write(tmp_path, with_api("3.0.0.0/8")))


def test_an_address_without_its_size_comes_with_it(tmp_path: Path) -> None:
    found = message(tmp_path, with_api("203.0.113.7"))
    assert "`access.api[0]`: 203.0.113.7 is an address without its size" in found
    assert "fix: write `203.0.113.7/32`" in found


def test_an_address_that_is_listed_twice_is_refused(tmp_path: Path) -> None:
    assert "`access.api[1]`: 203.0.113.7/32 is listed twice" in message(tmp_path, with_api(*2 * ["203.0.113.7/32"]))


@pytest.mark.parametrize("region", ["cn-north-1", "us-gov-west-1", "us-iso-east-1", "us-isob-east-1", "eusc-de-east-1"])
def test_regions_of_other_partitions_are_refused_by_name(tmp_path: Path, region: str) -> None:
    found = message(tmp_path, HEAD.replace("us-west-2", region))
    assert found.startswith(f"cluster.yaml:2: `region`: {region} is not supported")
    assert "is a partition of AWS of its own" in found


PATTERNS = [value for key, value in vars(cluster).items() if key.isupper() and str(value).startswith("^")]


@pytest.mark.parametrize("pattern", PATTERNS)
def test_no_pattern_takes_a_newline_at_the_end(pattern: str) -> None:
    assert pattern.endswith(r"\Z")


def test_a_newline_after_a_name_is_refused(tmp_path: Path) -> None:
    assert r"'paddle\n' must be" in message(tmp_path, HEAD.replace("paddle-cluster", r'"paddle\n"'))
    assert "`region`: AWS region" in message(tmp_path, HEAD.replace("us-west-2", r'"us-west-2\n"'))


NAMES = {
    "Paddle_Cluster": "paddle-cluster",
    "3-trainers": "trainers",
    "ends-": "ends",
    "a" * 40: "a" * 32,
    "my cluster!": "my-cluster",
    "x": "",
    "数据": "",
}


@pytest.mark.parametrize("name", NAMES)
def test_a_name_that_is_refused_comes_with_a_proposal(tmp_path: Path, name: str) -> None:
    found = message(tmp_path, HEAD.replace("paddle-cluster", f'"{name}"'))
    assert found.startswith(f"cluster.yaml:1: `name`: {name!r} must be 2 to 32 lower-case letters")
    assert propose_name(name) == NAMES[name]
    assert (f"fix: use `{NAMES[name]}`" in found) == bool(NAMES[name])


def test_all_mistakes_are_reported_at_once(tmp_path: Path) -> None:
    found = message(tmp_path, "clusterName: My_Cluster\nregion: us-west-2\npodCIDR: x\nzones: [eu-west-1a]\nmx: 1\n")
    lines = found.splitlines()
    assert [line.split(":")[1] for line in lines[:-1]] == ["1", "1", "3", "4", "5"]
    assert lines[-1] == "  fix: docs/reference/cluster.md lists every key"


def test_a_file_of_the_paddlepaddle_tutorial_needs_access_alone(tmp_path: Path) -> None:
    old = (
        "clusterName: paddle-cluster\nexternalDNSName: paddle\nkeyName: my-key\nregion: us-west-2\n"
        'availabilityZone: us-west-2a\nkmsKeyArn: "arn:aws:kms:us-west-2:123456789012:key/abc"\nworkerCount: 3\n'
    )
    found = message(tmp_path, old)
    assert found.startswith("cluster.yaml:1: `access` is missing: which addresses may reach the API server")
    assert "`access: {api: [203.0.113.7/32]}`" in found
    file = load_cluster(write(tmp_path, old + "access: {api: [203.0.113.7/32]}\n"))
    assert (file.name, file.dns_zone, file.zones) == ("paddle-cluster", "paddle", ("us-west-2a",))
    assert file.kms_key == "arn:aws:kms:us-west-2:123456789012:key/abc"
    assert file.workers == WorkersFile(key_pair="my-key", trainers=TrainerGroupFile(count=3))


def test_old_keys_join_sections_that_are_there(tmp_path: Path) -> None:
    old = "workers: {max: 50, trainers: {capacity: on_demand}}\nworkerCount: 40\nworkerInstanceType: m3.large\n"
    old += "vpcCIDR: 10.0.0.0/16\nserviceCIDR: 10.3.0.0/24\nstackTags: {Environment: Production}\n"
    file = load_cluster(write(tmp_path, HEAD + old))
    trainers = TrainerGroupFile(count=40, types=("m3.large",), capacity="on_demand")
    assert file.workers == WorkersFile(max=50, servers=GroupFile(), trainers=trainers)
    assert file.network == NetworkFile(services="10.3.0.0/24")
    assert file.tags == {"Environment": "Production"}


@pytest.mark.parametrize("name", KUBE_AWS)
def test_every_key_of_kube_aws_is_moved_or_refused_with_a_reason(name: str) -> None:
    old, data = KUBE_AWS[name], {name: "x"}
    wrong = move_keys(data)
    assert name not in data
    if old.key:
        assert wrong == [] and list(data) == [old.key.split(".")[0]]
    else:
        assert old.why in wrong[0].text and wrong[0].fix and data == {}


def test_an_old_key_that_comes_by_a_merge_is_moved_too(tmp_path: Path) -> None:
    text = message(tmp_path, f"{HEAD}base: &base {{workerCount: x}}\n<<: *base\n")
    assert "`base` is not a known key" in text and "`workers.trainers.count`: expected a whole number, got 'x'" in text


def test_merges_of_yaml_are_read(tmp_path: Path) -> None:
    text = f"{HEAD}workers:\n  trainers: &group {{count: 2}}\n  servers:\n    <<: *group\n    disk_gb: 60\n"
    assert load_cluster(write(tmp_path, text)).workers.servers == GroupFile(count=2, disk_gb=60)


@pytest.mark.parametrize("name", ["m7g.large", "c6gn.xlarge", "t4g.micro", "a1.large", "im4gn.large", "is4gen.large"])
def test_graviton_types_are_known(name: str) -> None:
    assert is_arm(name)


@pytest.mark.parametrize(
    "name", ["m7i.large", "g5.xlarge", "g4dn.xlarge", "gr6.4xlarge", "c7i-flex.large", "p4d.24xlarge"]
)
def test_types_with_a_gpu_are_not_taken_for_arm(name: str) -> None:
    assert not is_arm(name)


def test_a_file_that_is_missing_or_unreadable_is_named(tmp_path: Path) -> None:
    with pytest.raises(SpecError, match="there is no file") as caught:
        load_cluster(tmp_path / "none.yaml")
    assert caught.value.fix == "`bireme cluster init` writes one"
    (tmp_path / "cluster.yaml").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(SpecError, match="cannot read"):
        load_cluster(tmp_path)


@pytest.mark.parametrize("text", ["", "# nothing\n", "- a\n", "hello\n"])
def test_a_file_without_keys_is_refused(tmp_path: Path, text: str) -> None:
    assert message(tmp_path, text).startswith("cluster.yaml:1: ")


KEYS = [
    "name",
    "region",
    "zones",
    "kubernetes",
    "workers",
    "network",
    "access",
    "kms_key",
    "tags",
    "servers",
    "trainers",
]
KEYS += ["count", "types", "max", "labels", "cidr", "services", "vpc", "subnets", "api"]
WORDS = st.sampled_from(["us-west-2", "10.0.0.0/16", "10.0.0.0/99", "m7g.large", "x"]) | st.integers() | st.none()
JUNK = st.recursive(
    WORDS | st.floats() | st.booleans(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(KEYS) | st.integers(), inner),
)


@given(JUNK)
def test_no_content_breaks_the_checks(data: object) -> None:
    find_cluster_file_clashes(data)
    find_cluster_mistakes(data)


def test_the_region_comes_from_the_variables_of_aws_tools() -> None:
    assert aws_region({}) is None
    assert aws_region({"AWS_DEFAULT_REGION": "eu-west-1"}) == "eu-west-1"
    assert aws_region({"AWS_DEFAULT_REGION": "eu-west-1", "AWS_REGION": "us-west-2"}) == "us-west-2"
