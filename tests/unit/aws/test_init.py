"""A new cluster.yaml reads back as what it was written from, and never replaces a file."""

from __future__ import annotations

import os
import re
from pathlib import Path

import msgspec
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from bireme.aws import init
from bireme.aws.init import render, write_new
from bireme.core.errors import OutputExistsError, StorageError
from bireme.spec import cluster
from bireme.spec.aws_rules import reserved_domain, reserved_tag, why_no_bucket
from bireme.spec.cluster import (
    AccessFile,
    ClusterFile,
    GroupFile,
    NetworkFile,
    StorageFile,
    TrainerGroupFile,
    WorkersFile,
)
from bireme.spec.cluster_load import find_cluster_mistakes, load_cluster
from bireme.spec.mistakes import plain, read_yaml

PLAIN = ClusterFile(name="paddle-cluster", region="eu-central-1", access=AccessFile(api=("203.0.113.7/32",)))


def matching(pattern: str) -> st.SearchStrategy[str]:
    return st.from_regex(pattern, fullmatch=True)


def read_back(text: str) -> ClusterFile:
    data = read_yaml(text, "cluster.yaml")
    assert find_cluster_mistakes(data) == []
    return msgspec.convert(plain(data), ClusterFile)


counts, capacities = st.integers(0, 60), st.sampled_from(["on_demand", "spot"])
types = st.lists(st.sampled_from(["m7i.large", "c5.xlarge", "on.large", "g5.xlarge"]), min_size=1, unique=True).map(
    tuple
)
groups = st.builds(GroupFile, count=counts, types=types, capacity=capacities, disk_gb=st.integers(20, 16384))
trainers = st.builds(TrainerGroupFile, count=counts, types=types, capacity=capacities)
labels = st.dictionaries(matching(cluster.LABEL_KEY), matching(cluster.LABEL_VALUE), max_size=3)
tags = st.dictionaries(matching(cluster.TAG_KEY), matching(cluster.TAG_VALUE), max_size=3)
workers = st.builds(
    WorkersFile, servers=groups, trainers=trainers, max=st.integers(60, 450), labels=labels,
    key_pair=st.none() | matching(cluster.KEY_PAIR),
)  # fmt: skip
storage = st.builds(
    StorageFile, file_system=st.none() | matching(cluster.FILE_SYSTEM), claim=matching(cluster.CLAIM),
    throughput=st.sampled_from(["elastic", "bursting"]),
)  # fmt: skip
made = st.builds(
    NetworkFile, cidr=st.sampled_from(["10.0.0.0/16", "172.16.0.0/20", "192.168.7.0/24"]),
    services=st.sampled_from(["10.100.0.0/16", "172.20.0.0/16"]), egress=st.sampled_from(["nat", "public"]),
)  # fmt: skip
subnets = st.lists(matching(cluster.SUBNET), min_size=2, max_size=4, unique=True).map(tuple)
existing = st.builds(NetworkFile, vpc=matching(cluster.VPC), subnets=subnets)
access = st.builds(
    AccessFile,
    api=st.lists(st.sampled_from(["203.0.113.7/32", "198.51.100.0/24"]), min_size=1, unique=True).map(tuple),
    admins=st.lists(matching(cluster.PRINCIPAL), max_size=2, unique=True).map(tuple),
)  # fmt: skip
files = st.builds(
    ClusterFile, name=matching(cluster.NAME), region=st.just("us-west-2"),
    zones=st.sampled_from([(), ("us-west-2a",), ("us-west-2b", "us-west-2a")]),
    kubernetes=st.integers(31, 99).map("1.{}".format),
    workers=workers, storage=storage, network=made | existing, access=access,
    kms_key=st.none() | st.just("arn:aws:kms:us-west-2:123456789012:key/abc"),
    dns_zone=st.none() | matching(cluster.DNS_NAME).filter(lambda name: len(name) < 254),
    bucket=st.none() | matching(cluster.BUCKET).filter(lambda name: not why_no_bucket(name)), tags=tags,
)  # fmt: skip


@given(files)
def test_what_is_written_reads_back_as_the_same_file(file: ClusterFile) -> None:
    assume(not (file.zones and file.network.vpc))
    assume(not any(map(reserved_tag, file.tags)))
    assume(not any(map(reserved_domain, file.workers.labels)))
    assert read_back(render(file)) == file


def test_a_plain_file_has_every_key_and_reads_well() -> None:
    text = render(PLAIN)
    lines = text.splitlines()
    for struct in (ClusterFile, WorkersFile, GroupFile, StorageFile, NetworkFile, AccessFile):
        for name in struct.__struct_fields__:
            assert any(re.match(rf" *#?{name}:", line) for line in lines), name
    assert max(map(len, lines)) <= 120
    assert "\n# Kubernetes version, such as" in text and '\nkubernetes: "1.34"\n' in text
    assert "\n#zones: [eu-central-1a, eu-central-1b]\n" in text
    assert "\n    #disk_gb: 50\n" in text


def test_each_commented_key_is_right_once_its_mark_is_removed() -> None:
    lines = render(PLAIN).splitlines()
    marked = [i for i, line in enumerate(lines) if re.match(r" *#[a-z_]+: ", line)]
    assert len(marked) > 12
    for i in marked:
        if "vpc" not in lines[i] and "subnets" not in lines[i]:  # these two go together
            read_back("\n".join([*lines[:i], lines[i].replace("#", "", 1), *lines[i + 1 :]]))


@pytest.mark.parametrize("value", ["1.34", "no", "Null", "1e3", "a: b", "x y", "é", "", "#x", "~"])
def test_text_that_yaml_would_read_as_something_else_is_quoted(value: str) -> None:
    assert plain(read_yaml(f"a: [{init.flow(value)}]", "x")) == {"a": [value]}
    assert init.flow(value).startswith('"')


def test_a_new_file_is_for_its_owner_alone(tmp_path: Path) -> None:
    path = tmp_path / "cluster.yaml"
    write_new(path, render(PLAIN))
    assert path.stat().st_mode & 0o777 == 0o600
    assert load_cluster(path) == PLAIN


def test_a_file_that_is_there_is_not_replaced(tmp_path: Path) -> None:
    path = tmp_path / "cluster.yaml"
    path.write_text("mine")
    with pytest.raises(OutputExistsError, match="exists") as caught:
        write_new(path, "new")
    assert caught.value.fix == "name another file with `-f`"
    assert path.read_text() == "mine"
    (tmp_path / "link.yaml").symlink_to(tmp_path / "nowhere")
    with pytest.raises(OutputExistsError):
        write_new(tmp_path / "link.yaml", "new")


def test_a_directory_that_is_missing_is_named(tmp_path: Path) -> None:
    with pytest.raises(StorageError, match=r"cannot write .*none/cluster\.yaml: No such file"):
        write_new(tmp_path / "none" / "cluster.yaml", "new")


def test_a_failed_write_leaves_no_half_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(fd: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(StorageError, match="the disk is full"):
        write_new(tmp_path / "cluster.yaml", "new")
    assert list(tmp_path.iterdir()) == []
