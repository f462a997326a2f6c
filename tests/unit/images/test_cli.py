from __future__ import annotations

import base64
import json
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from tests.unit.images.making import write_layer
from tests.unit.images.registry_stand_in import registry
from tests.unit.kube.standing import Standing

from bireme.api.images import login_to
from bireme.api.where import Where
from bireme.cli.main import main
from bireme.images.archive import make_image, write_archive
from bireme.images.credentials import RegistryLogin
from bireme.kube.api.client import CONFIG_MAP


@pytest.fixture
def archive(tmp_path: Path) -> Path:
    (tmp_path / "tree").mkdir()
    (tmp_path / "tree" / "file").write_text("x")
    layer = write_layer("x", tmp_path / "tree", tmp_path / "layer.tar")
    write_archive(make_image("localhost/x:1", (layer,), {}, {}), tmp_path / "image.tar")
    return tmp_path / "image.tar"


def run(*arguments: str) -> int:
    with pytest.raises(SystemExit) as ended:
        main(["image", *arguments])
    return int(ended.value.code or 0)


@pytest.mark.parametrize("command", ["build", "push", "load"])
def test_help_teaches_with_an_example(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(command, "--help") == 0
    assert f"Example:\n    bireme image {command} " in capsys.readouterr().out


@pytest.mark.parametrize("given", ["none", "{here}:relative", "{here}:/../up"])
def test_an_unaddable_program_is_refused_first(
    given: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    assert run("build", "--with", given.format(here=tmp_path)) == 2
    assert "--with" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


def test_a_name_that_no_registry_takes_is_refused_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    assert run("build", "--tag", "Not A Name") == 2
    assert list(tmp_path.iterdir()) == []


def test_pushing_says_what_was_sent(
    archive: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    with registry() as (address, state):
        assert run("push", str(archive), f"{address}/x:1", "--plain-http", "--json") == 0
        first = json.loads(capsys.readouterr().out)
        assert run("push", str(archive), f"{address}/x:1", "--plain-http") == 0
    assert first["sent"] > 0 == first["skipped"]
    assert f"{address}/x@{first['digest']}" in capsys.readouterr().out
    assert list(state.manifests) == ["1"]


@pytest.fixture
def cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Standing:
    """The cluster of the current context, which has no repository yet."""
    made = Standing()

    def connect(self: Where, namespace: str | None = None) -> Standing:
        assert self.context in (None, made.context)
        return made

    monkeypatch.setattr(Where, "connect", connect)
    monkeypatch.setattr("bireme.api.images.has_cluster", lambda: True)
    monkeypatch.setenv("HOME", str(tmp_path))
    return made


def patched(cluster: Standing, repository: str) -> dict[str, Any]:
    """Give a cluster a repository; returns what will be changed in its facts."""
    facts = {"name": "paddle", "region": "us-west-2", "repository": repository, "image": "", "claim": "efsvol"}
    cluster.put(CONFIG_MAP, "bireme-cluster", data={"cluster.json": json.dumps(facts)})
    changed: dict[str, Any] = {}

    def patch(kind: Any, name: str, change: Any) -> None:
        changed.update(json.loads(change["data"]["cluster.json"]))

    cluster.patch = patch  # type: ignore[assignment, method-assign]  # what is sent is what counts
    return changed


def test_an_unnamed_image_goes_to_the_clusters_repository(
    archive: Path, cluster: Standing, capsys: pytest.CaptureFixture[str]
) -> None:
    with registry() as (address, state):
        changed = patched(cluster, f"{address}/bireme-paddle")
        assert run("push", str(archive), "--plain-http", "--json") == 0
        pushed = json.loads(capsys.readouterr().out)
        assert run("push", str(archive), "--plain-http") == 0
    short = pushed["digest"].removeprefix("sha256:")[:12]
    assert pushed["image"] == f"{address}/bireme-paddle:1-{short}" and pushed["context"] == "near"
    assert list(state.manifests) == [f"1-{short}"]
    assert changed["image"] == f"{address}/bireme-paddle@{pushed['digest']}" and changed["claim"] == "efsvol"
    assert capsys.readouterr().out.endswith("`bireme submit` uses it on the cluster of context near\n")


def test_without_a_repository_an_image_needs_a_name(
    archive: Path, cluster: Standing, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run("push", str(archive)) == 2
    assert "no ConfigMap bireme-cluster names one in the namespace ns of context near" in capsys.readouterr().err
    monkeypatch.setattr("bireme.api.images.has_cluster", lambda: False)
    assert run("push", str(archive)) == 2
    assert "`bireme image push IMAGE.tar REGISTRY/NAME:TAG`" in capsys.readouterr().err
    assert run("push", str(archive), "registry.example/x:1", "--context", "near") == 2


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, str]]:
    """What AWS was asked for a login with."""
    found: list[tuple[str, str]] = []

    def registry_login(region: str, host: str) -> tuple[str, str]:
        found.append((region, host))
        return "AWS", "token"

    access = ModuleType("bireme.aws.access")
    access.registry_login = registry_login  # type: ignore[attr-defined]  # a stand-in for the real one
    monkeypatch.setitem(sys.modules, "bireme.aws.access", access)
    return found


ECR = "123456789012.dkr.ecr.us-west-2.amazonaws.com"


def test_aws_logs_in_to_its_registries_unless_docker_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, asked: list[tuple[str, str]]
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    for name in ("XDG_RUNTIME_DIR", "XDG_CONFIG_HOME", "DOCKER_CONFIG"):
        monkeypatch.delenv(name, raising=False)
    assert login_to(ECR, prefers_aws=False) == RegistryLogin("AWS", "token")
    assert asked == [("us-west-2", ECR)]
    assert login_to("registry.example", prefers_aws=True) is None
    assert login_to(f"{ECR}.example", prefers_aws=True) is None
    (tmp_path / ".docker").mkdir()
    kept = base64.b64encode(b"me:secret").decode()
    (tmp_path / ".docker/config.json").write_text(json.dumps({"auths": {ECR: {"auth": kept}}}))
    assert login_to(ECR, prefers_aws=False) == RegistryLogin("me", "secret")
    assert len(asked) == 1
    assert login_to(ECR, prefers_aws=True) == RegistryLogin("AWS", "token")


def test_what_is_no_image_is_not_pushed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "x.tar").write_text("nothing")
    assert run("push", str(tmp_path / "x.tar"), "registry.example/x:1", "--json") == 17
    assert json.loads(capsys.readouterr().out)["error"] == "ImageError"


def test_loading_without_containerd_says_where_it_was_looked_for(
    archive: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    ctr = tmp_path / "ctr"
    ctr.write_text("#!/bin/sh\nexit 1\n")
    ctr.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    assert run("load", str(archive), "--address", str(tmp_path / "none.sock")) == 17
    assert f"there is no containerd at {tmp_path / 'none.sock'}" in capsys.readouterr().err
