from __future__ import annotations

import base64
import json
from pathlib import Path
from typing import Any

import pytest

from bireme.core.errors import ImageError
from bireme.images.credentials import RegistryLogin, config_files, find_login


def config(tmp_path: Path, value: dict[str, Any]) -> Path:
    path = tmp_path / "config.json"
    path.write_text(json.dumps(value))
    return path


def encoded(user: str, password: str) -> dict[str, str]:
    return {"auth": base64.b64encode(f"{user}:{password}".encode()).decode()}


def test_a_login_is_found_by_the_registry_s_name(tmp_path: Path) -> None:
    path = config(tmp_path, {"auths": {"registry.example:5000": encoded("me", "se:cret")}})
    assert find_login("registry.example:5000", [path]) == RegistryLogin("me", "se:cret")
    assert find_login("registry.example", [path]) is None


def test_docker_hub_has_a_name_of_its_own(tmp_path: Path) -> None:
    path = config(tmp_path, {"auths": {"https://index.docker.io/v1/": encoded("me", "x")}})
    assert find_login("docker.io", [path]) == RegistryLogin("me", "x")


def test_without_a_file_there_is_no_login(tmp_path: Path) -> None:
    assert find_login("x.example", [tmp_path / "none.json"]) is None


def test_a_file_that_is_no_json_is_named(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{")
    with pytest.raises(ImageError, match=r"cannot read the login to x\.example from .*config\.json"):
        find_login("x.example", [tmp_path / "config.json"])


def test_a_helper_is_asked_where_one_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    helper = tmp_path / "docker-credential-test"
    helper.write_text('#!/bin/sh\nread host\necho "{\\"Username\\": \\"for $host\\", \\"Secret\\": \\"s\\"}"\n')
    helper.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    path = config(tmp_path, {"credHelpers": {"x.example": "test"}})
    assert find_login("x.example", [path]) == RegistryLogin("for x.example", "s")
    assert find_login("y.example", [path]) is None


def test_a_token_in_place_of_a_password_is_kept_apart(tmp_path: Path) -> None:
    path = config(tmp_path, {"auths": {"x.example": {"identitytoken": "t"}}})
    assert find_login("x.example", [path]) == RegistryLogin(refresh="t")


def test_secrets_are_not_printed() -> None:
    assert "se" not in repr(RegistryLogin("me", "se", "se"))[len("Login(") :]


def test_podman_s_login_is_looked_for_before_docker_s(tmp_path: Path) -> None:
    podman, docker = config_files({}, tmp_path)
    for path, user in ((podman, "p"), (docker, "d")):
        path.parent.mkdir(parents=True)
        path.write_text(json.dumps({"auths": {"x.example": encoded(user, "s")}}))
    assert find_login("x.example", [podman, docker]) == RegistryLogin("p", "s")
    podman.unlink()
    assert find_login("x.example", [podman, docker]) == RegistryLogin("d", "s")
    moved = {"XDG_RUNTIME_DIR": "/run/user/1", "DOCKER_CONFIG": "/etc/d", "XDG_CONFIG_HOME": "/etc/c"}
    wanted = ["/run/user/1/containers/auth.json", "/etc/c/containers/auth.json", "/etc/d/config.json"]
    assert config_files(moved, tmp_path) == [Path(each) for each in wanted]


@pytest.mark.parametrize("content", [{"auths": {"x.example": {"auth": "%"}}}, {"auths": []}, []])
def test_a_login_that_makes_no_sense_is_named(tmp_path: Path, content: Any) -> None:
    with pytest.raises(ImageError, match="cannot read the login"):
        find_login("x.example", [config(tmp_path, content)])
