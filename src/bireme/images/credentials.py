"""Logins to registries, from the config files of `docker login`, podman or a credential helper.

Registries use one of two schemes: `Basic`, a name and password with every request, or `Bearer`, a token that a server
of theirs issues for these. Passwords are never logged, nor sent over an unencrypted connection unless the user chose
that for the registry itself.
"""

from __future__ import annotations

import base64
import json
import re
import shutil
import subprocess
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bireme.core.errors import ImageError

_HUB_KEY = "https://index.docker.io/v1/"


@dataclass(frozen=True, slots=True)
class RegistryLogin:
    """A user name with a password or token; `repr` shows none of them."""

    user: str = field(default="", repr=False)
    password: str = field(default="", repr=False)
    refresh: str = field(default="", repr=False)
    """A refresh token, instead of a password."""

    def header(self) -> str:
        return "Basic " + base64.b64encode(f"{self.user}:{self.password}".encode()).decode()


def config_files(environment: Mapping[str, str], home: Path) -> list[Path]:
    """The files that hold logins: podman's two, then docker's."""
    runtime, docker = environment.get("XDG_RUNTIME_DIR"), environment.get("DOCKER_CONFIG")
    files = [Path(runtime) / "containers" / "auth.json"] if runtime else []
    files.append(Path(environment.get("XDG_CONFIG_HOME") or home / ".config") / "containers" / "auth.json")
    return [*files, (Path(docker) if docker else home / ".docker") / "config.json"]


def find_login(host: str, configs: Iterable[Path]) -> RegistryLogin | None:
    """Look a registry up in config files; None where they hold no login to it."""
    for config in configs:
        try:
            if (login := _login_in(json.loads(config.read_text("utf-8")), host)) is not None:
                return login
        except FileNotFoundError:
            continue
        except (OSError, ValueError, KeyError, AttributeError) as e:
            raise ImageError(f"cannot read the login to {host} from {config}: {e}", fix="log in again") from e
    return None


def _login_in(config: dict[str, Any], host: str) -> RegistryLogin | None:
    names = [_HUB_KEY] if host == "docker.io" else [host, f"https://{host}", f"https://{host}/v1/", f"http://{host}"]
    helper = config.get("credHelpers", {}).get(host) or config.get("credsStore", "")
    for name in names:
        entry = config.get("auths", {}).get(name, {})
        if entry.get("identitytoken"):
            return RegistryLogin(refresh=entry["identitytoken"])
        if entry.get("auth"):
            user, _, password = base64.b64decode(entry["auth"], validate=True).decode().partition(":")
            return RegistryLogin(user, password)
    return _ask_helper(helper, names[0]) if helper else None


def _ask_helper(helper: str, host: str) -> RegistryLogin | None:
    program = f"docker-credential-{helper}"
    if not re.fullmatch(r"[\w.-]+", helper) or shutil.which(program) is None:
        return None
    done = subprocess.run([program, "get"], input=host, capture_output=True, text=True, check=False)
    if done.returncode:
        return None
    answer = json.loads(done.stdout)
    if answer.get("Username") == "<token>":
        return RegistryLogin(refresh=answer["Secret"])
    return RegistryLogin(answer.get("Username", ""), answer.get("Secret", ""))
