from __future__ import annotations

import json
from pathlib import Path

import pytest
from tests.unit.images.registry_stand_in import registry

from bireme.cli.main import main
from bireme.images.archive import make_image, write_archive
from bireme.images.layers import write_layer


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
def test_a_program_that_cannot_be_added_is_refused_before_anything_is_made(
    given: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    assert run("build", "--with", given.format(here=tmp_path)) == 2
    assert "--with" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


def test_a_name_that_no_registry_takes_is_refused_before_anything_is_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
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
