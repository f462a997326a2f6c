"""`bireme cluster init`: what it writes, what it asks, and how its mistakes name the flags."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from bireme.cli.aws import init_command
from bireme.cli.aws.init_command import init
from bireme.core.errors import BiremeError, OutputExistsError, SpecError, UsageError
from bireme.spec.cluster import ClusterFile
from bireme.spec.cluster_load import load_cluster

ENOUGH = ("paddle-cluster", "--region", "us-west-2", "--api-cidr", "203.0.113.7")


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty directory, in an environment without a region."""
    monkeypatch.chdir(tmp_path)
    for name in ("AWS_REGION", "AWS_DEFAULT_REGION"):
        monkeypatch.delenv(name, raising=False)
    return tmp_path


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(init_command, "_is_terminal", lambda: True)


def run(*arguments: str, answers: str | None = None) -> Any:
    return CliRunner().invoke(init, arguments, input=answers)


def written(*arguments: str) -> ClusterFile:
    done = run(*arguments)
    assert done.exception is None, done.exception
    return load_cluster(Path("cluster.yaml"))


def error(*arguments: str) -> BiremeError:
    found = run(*arguments).exception
    assert isinstance(found, BiremeError)
    assert not Path("cluster.yaml").exists()
    return found


def test_name_region_and_address_are_enough() -> None:
    done = run(*ENOUGH)
    file = load_cluster(Path("cluster.yaml"))
    assert (file.name, file.region, file.access.api) == ("paddle-cluster", "us-west-2", ("203.0.113.7/32",))
    first, second = done.output.splitlines()
    assert first == "wrote cluster.yaml: paddle-cluster in us-west-2, 1 machine for pservers, 3 for trainers (spot)"
    assert second == "next: `bireme cluster plan` shows what would be made, and what it costs"


def test_every_flag_has_its_key() -> None:
    flags: tuple[str, ...] = (
        "--workers",
        "30",
        "--servers",
        "2",
        "--types",
        "c7i.large, c6i.large",
        "--on-demand",
        "--kubernetes",
        "1.33",
    )
    flags += ("--kms-key", "arn:aws:kms:us-west-2:123456789012:key/abc", "--key-pair", "k", "--dns-zone", "paddle")
    flags += ("--bucket", "my-data", "--egress", "public", "--zone", "us-west-2b", "--zone", "us-west-2a")
    file = written(*ENOUGH, *flags)
    trainers, servers = file.workers.trainers, file.workers.servers
    assert (trainers.count, trainers.capacity, servers.count, servers.capacity) == (30, "on_demand", 2, "on_demand")
    assert trainers.types == servers.types == ("c7i.large", "c6i.large")
    assert (file.workers.max, file.workers.key_pair, file.kubernetes) == (30, "k", "1.33")
    assert (file.network.egress, file.zones, file.bucket) == ("public", ("us-west-2b", "us-west-2a"), "my-data")
    assert (file.dns_zone, file.kms_key) == ("paddle", "arn:aws:kms:us-west-2:123456789012:key/abc")


def test_an_existing_vpc_comes_with_its_subnets() -> None:
    ids = ("subnet-0123456789abcdef0", "subnet-0123456789abcdef1")
    file = written(*ENOUGH, "--vpc", "vpc-0123456789abcdef0", "--subnet", ids[0], "--subnet", ids[1])
    assert (file.network.vpc, file.network.subnets) == ("vpc-0123456789abcdef0", ids)


def test_the_tutorials_command_needs_the_address_alone() -> None:
    tutorial = (
        "--cluster-name=paddle-cluster", "--external-dns-name=paddle", "--region=us-west-2",
        "--availability-zone=us-west-2a", "--key-name=my-key", "--kms-key-arn=arn:aws:kms:us-west-2:123456789012:key/a",
    )  # fmt: skip
    problem = error(*tutorial)
    assert isinstance(problem, UsageError)
    assert problem.what == "missing: --api-cidr YOUR.ADDRESS/32"
    assert problem.why == "`cluster up` never opens the API server to all addresses"
    file = written(*tutorial, "--api-cidr", "203.0.113.7/32")
    assert (file.name, file.dns_zone, file.zones) == ("paddle-cluster", "paddle", ("us-west-2a",))
    assert (file.workers.key_pair, file.kms_key) == ("my-key", "arn:aws:kms:us-west-2:123456789012:key/a")


def test_a_flag_and_its_name_in_kube_aws_exclude_each_other() -> None:
    problem = error(*ENOUGH, "--cluster-name", "other")
    assert problem.what == "NAME and --cluster-name, its name in kube-aws, are both given"
    assert (
        error(*ENOUGH, "--zone", "us-west-2a", "--availability-zone", "us-west-2a").fix
        == "leave --availability-zone out"
    )


def test_the_bucket_for_templates_is_refused_by_name() -> None:
    problem = error(*ENOUGH, "--s3-uri", "s3://bucket/prefix")
    assert problem.what.startswith("--s3-uri is a flag of kube-aws") and "`--bucket`" in problem.fix


def test_without_a_terminal_everything_missing_is_named_at_once() -> None:
    problem = error()
    assert problem.what == "missing: NAME, --region REGION, --api-cidr YOUR.ADDRESS/32"
    assert problem.fix == "`bireme cluster init NAME --region REGION --api-cidr YOUR.ADDRESS/32`"


def test_the_region_may_come_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_DEFAULT_REGION", "eu-central-1")
    assert written("abc", "--api-cidr", "203.0.113.7").region == "eu-central-1"


def test_mistakes_name_the_flags_and_come_together() -> None:
    problem = error(
        "Paddle_Cluster", "--region", "us-west-2", "--api-cidr", "0.0.0.0/0", "--zone", "us-west-1a", "--types",
        "m7g.large", "--servers", "1000", "--kms-key", "x", "--subnet", "subnet-0123456789abcdef0",
    )  # fmt: skip
    assert isinstance(problem, SpecError)
    lines = problem.what.splitlines()
    flags = ["NAME:", "--zone:", "--api-cidr:", "--subnet", "--types:", "--servers:", "--kms-key:"]
    assert [line.split(" ")[0] for line in lines] == flags
    assert lines[0].endswith("use `paddle-cluster`")
    assert lines[3].endswith("name the VPC in --vpc, or leave --subnet out")
    assert problem.fix == "docs/reference/cluster.md lists every key"


def test_a_single_mistake_has_its_reason() -> None:
    problem = error("abc", "--region", "us-west-2", "--api-cidr", "192.168.1.7")
    assert problem.what == "--api-cidr: 192.168.1.7/32 is not an address on the internet"
    assert problem.why == "the API server sees the public address of your network"


def test_a_file_that_is_there_stays() -> None:
    Path("cluster.yaml").write_text("mine")
    assert isinstance(run(*ENOUGH).exception, OutputExistsError)
    assert Path("cluster.yaml").read_text() == "mine"
    done = run(*ENOUGH, "-f", "other.yaml")
    assert load_cluster(Path("other.yaml")).name == "paddle-cluster"
    assert "`bireme cluster plan -f other.yaml`" in done.output


def test_json_is_one_object() -> None:
    result = json.loads(run(*ENOUGH, "--json").stdout)
    assert result == {
        "file": "cluster.yaml", "cluster": "paddle-cluster", "region": "us-west-2", "servers": 1, "trainers": 3,
    }  # fmt: skip


def test_on_a_terminal_it_asks_for_what_is_missing(terminal: None) -> None:
    done = run(answers="paddle-cluster\nus-west-2\n\n203.0.113.7\n")
    file = load_cluster(Path("cluster.yaml"))
    assert (file.name, file.region, file.access.api) == ("paddle-cluster", "us-west-2", ("203.0.113.7/32",))
    assert file.workers.trainers.count == 3
    for question in ("Name of the cluster: ", "AWS region: ", "Machines for trainers [3]: ", "Your public address"):
        assert question in done.stderr


def test_it_asks_again_after_an_answer_that_cannot_be(terminal: None) -> None:
    answers = "My_Cluster\nmy-cluster\nnowhere\n\nmany\n500\n40\n0.0.0.0/0\n203.0.113.7, 198.51.100.0/24\n"
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("AWS_REGION", "us-west-2")
        done = run(answers=answers)
    for part in ("use `my-cluster`", "AWS region, such as", "'many' is not a number", "at most 450", "the whole world"):
        assert part in done.stderr
    file = load_cluster(Path("cluster.yaml"))
    assert (file.name, file.region, file.workers.trainers.count) == ("my-cluster", "us-west-2", 40)
    assert file.access.api == ("203.0.113.7/32", "198.51.100.0/24")


def test_on_a_terminal_what_is_given_is_not_asked_for(terminal: None) -> None:
    assert run(*ENOUGH, "--workers", "2").stderr == ""


def test_with_json_nothing_is_asked(terminal: None) -> None:
    assert isinstance(run("--json").exception, UsageError)
