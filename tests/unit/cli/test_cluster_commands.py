"""What the commands of `bireme cluster` say without an account: mistakes, plans and prices."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from bireme.aws.teardown.audit import LeftResource
from bireme.aws.teardown.down import Teardown
from bireme.cli.aws.commands import cluster
from bireme.cli.aws.common import Target, find_target
from bireme.cli.aws.down import _forget_access, _report
from bireme.cli.aws.up import expires_at
from bireme.core.errors import BiremeError, CloudError, LeftoversError, SpecError, StorageError, UsageError


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("AWS_PROFILE", "AWS_ACCESS_KEY_ID", "AWS_REGION", "AWS_DEFAULT_REGION"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")


def run(*words: str) -> Result:
    return CliRunner().invoke(cluster, list(words))


def error_of(*words: str) -> BiremeError:
    found = run(*words).exception
    assert isinstance(found, BiremeError), found
    return found


def init(region: str = "us-west-2", *more: str) -> None:
    assert run("init", "paddle", "--region", region, "--api-cidr", "203.0.113.7", *more).exit_code == 0


def test_a_plan_without_credentials_shows_stacks_and_price() -> None:
    init()
    output = run("plan").output
    assert "bireme-paddle-platform: 34 resources" in output
    assert "private 10.0.128.0/18 10.0.192.0/18" in output
    assert "about $0.39 an hour" in output
    assert "AWS was not queried (there are no AWS credentials here)" in output
    assert output.splitlines()[-1] == "next: `bireme cluster up`"


def test_a_plan_is_rendered_as_templates() -> None:
    init()
    assert run("plan", "--render", "out").exit_code == 0
    assert sorted(path.name for path in Path("out").iterdir()) == [
        "bireme-paddle-platform.json", "bireme-paddle-storage.json", "bireme-paddle-workers.json",
    ]  # fmt: skip


@pytest.mark.parametrize("place", ["taken", "taken/deeper"])
def test_templates_onto_a_file_are_refused_with_a_fix(place: str) -> None:
    init()
    Path("taken").write_text("mine")
    found = error_of("plan", "--render", place)
    assert isinstance(found, StorageError)
    assert f"cannot write templates into {place}" in found.what and "name a directory" in found.fix


def test_a_policy_for_a_name_that_is_none_is_refused() -> None:
    found = error_of("policy", "Bad *Name")
    assert isinstance(found, UsageError)
    assert found.fix == "did you mean `bad-name`?"
    assert error_of("policy", "*").fix == "name the cluster as cluster.yaml does"


def test_what_has_no_price_is_never_counted_as_nothing() -> None:
    init("us-west-2", "--types", "m99.large")
    assert "at least $0.17 an hour, and what has no price" in run("plan").output
    assert json.loads(run("cost", "--json").output)["unknown"] == ["servers: 1 x m99.large", "trainers: 3 x m99.large"]


def test_a_profile_that_is_not_there_is_reported_as_such(monkeypatch: pytest.MonkeyPatch) -> None:
    init()
    monkeypatch.setenv("AWS_PROFILE", "nosuch")
    for words in (("plan",), ("status",), ("kubeconfig",), ("down", "--yes"), ("up", "--yes")):
        found = error_of(*words)
        assert isinstance(found, CloudError)
        assert "AWS_PROFILE names a profile that ~/.aws/config does not have" in found.what


def test_credentials_that_are_missing_are_reported_as_such() -> None:
    init()
    assert "there are no AWS credentials here" in error_of("up", "--yes").what


@pytest.mark.parametrize("command", ["status", "down", "kubeconfig"])
def test_a_command_without_a_file_asks_for_the_cluster(command: str) -> None:
    found = error_of(command)
    assert isinstance(found, UsageError)
    assert "NAME --region REGION" in found.fix


def test_data_goes_only_with_the_clusters_own_name() -> None:
    init()
    assert "the cluster is called paddle" in error_of("down", "--delete-data", "padle").what


@pytest.mark.parametrize("ttl", ["banana", "0h", "-1h", "8"])
def test_a_ttl_that_is_none_is_refused(ttl: str) -> None:
    with pytest.raises(UsageError, match="such as `8h`"):
        expires_at(ttl, 0)
    assert expires_at("8h", 0) == "1970-01-01T08:00:00+00:00"


@pytest.mark.parametrize("ttl", ["99999999999h", "367d", "9" * 5000 + "m"])
def test_a_ttl_beyond_a_year_is_refused(ttl: str) -> None:
    with pytest.raises(UsageError, match="longer than a year"):
        expires_at(ttl, 1_800_000_000)


@pytest.mark.parametrize("usd", ["nan", "inf", "-1", "0"])
def test_a_limit_that_limits_nothing_is_refused(usd: str) -> None:
    init()
    found = error_of("up", "--yes", f"--max-hourly={usd}")
    assert isinstance(found, UsageError)
    assert f"--max-hourly {usd} is not a limit" in found.what


def test_scale_keeps_the_comments_of_the_file() -> None:
    from bireme.spec.cluster_load import load_cluster, set_counts

    init()
    text, file = set_counts(Path("cluster.yaml"), trainers=7, servers=2)
    assert (file.workers.trainers.count, file.workers.servers.count) == (7, 2)
    before = [line for line in Path("cluster.yaml").read_text().splitlines() if line.strip().startswith("#")]
    assert all(line in text for line in before)
    assert load_cluster(Path("cluster.yaml")).workers.trainers.count == 3


def test_the_policies_are_printed_as_json() -> None:
    assert json.loads(run("policy").output)["Version"] == "2012-10-17"
    assert json.loads(run("policy", "--template").output)["Resources"]["ExecutionRole"]["Type"] == "AWS::IAM::Role"


DATA = LeftResource("file system", "fs-1", 0.3, "1.0 GiB of data", is_data=True)
TARGET = Target("paddle", "us-west-2")


def test_data_that_could_not_be_deleted_is_an_error() -> None:
    with pytest.raises(LeftoversError, match=r"file system fs-1 \(1.0 GiB of data, \$0.30 a month\)"):
        _report(TARGET, Teardown([DATA]), deletes_data=True, as_json=False)


def test_a_stack_that_cannot_go_is_reported_with_the_list(capsys: pytest.CaptureFixture[str]) -> None:
    held = Teardown(
        [LeftResource("network interface", "eni-1")], CloudError("paddle-platform cannot be deleted", fix="look")
    )
    with pytest.raises(LeftoversError, match=r"cannot be deleted; this is left:\n  network interface eni-1") as caught:
        _report(TARGET, held, deletes_data=False, as_json=False)
    assert caught.value.fix == "look"
    with pytest.raises(SystemExit):
        _report(TARGET, held, deletes_data=False, as_json=True)
    assert json.loads(capsys.readouterr().out)["failure"]["what"] == "paddle-platform cannot be deleted"


def test_a_broken_file_does_not_hide_a_named_cluster() -> None:
    Path("cluster.yaml").write_text("nonsense: [")
    assert find_target("paddle", "us-west-2", Path("cluster.yaml")) == TARGET
    with pytest.raises(SpecError):
        find_target("paddle", None, Path("cluster.yaml"))


def test_a_broken_kubeconfig_does_not_hide_the_outcome(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("config").write_text("- a list\n")
    monkeypatch.setenv("KUBECONFIG", str(Path("config").resolve()))
    _forget_access(TARGET)
    assert "could not be taken out of" in capsys.readouterr().err
