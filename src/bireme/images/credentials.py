"""Who we are to a registry: what `docker login` (or podman, or a credential helper) has left in its config file.

Registries ask in one of two ways: `Basic`, a name and password with every request, or `Bearer`, a token that a
server of theirs gives for these. Passwords are never logged, nor sent over a connection that is not encrypted
unless the registry itself was asked for without encryption.
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
class Login:
    """A name and what proves it; neither is shown when this is printed."""

    user: str = field(default="", repr=False)
    password: str = field(default="", repr=False)
    refresh: str = field(default="", repr=False)
    """A token that other tokens are asked with, instead of a password."""

    def header(self) -> str:
        """The `Authorization` of a Basic request."""
        return "Basic " + base64.b64encode(f"{self.user}:{self.password}".encode()).decode()


def config_files(environment: Mapping[str, str], home: Path) -> list[Path]:
    """Where logins are left: podman's two places, then docker's."""
    runtime, docker = environment.get("XDG_RUNTIME_DIR"), environment.get("DOCKER_CONFIG")
    found = [Path(runtime) / "containers" / "auth.json"] if runtime else []
    found.append(Path(environment.get("XDG_CONFIG_HOME") or home / ".config") / "containers" / "auth.json")
    return [*found, (Path(docker) if docker else home / ".docker") / "config.json"]


def find_login(host: str, configs: Iterable[Path]) -> Login | None:
    """Look a registry up in config files; None where nobody has logged in to it."""
    for config in configs:
        try:
            if (found := _login_in(json.loads(config.read_text("utf-8")), host)) is not None:
                return found
        except FileNotFoundError:
            continue
        except (OSError, ValueError, KeyError, AttributeError) as e:
            raise ImageError(f"cannot read the login to {host} from {config}: {e}", fix="log in again") from e
    return None


def _login_in(told: dict[str, Any], host: str) -> Login | None:
    names = [_HUB_KEY] if host == "docker.io" else [host, f"https://{host}", f"https://{host}/v1/", f"http://{host}"]
    helper = told.get("credHelpers", {}).get(host) or told.get("credsStore", "")
    for name in names:
        entry = told.get("auths", {}).get(name, {})
        if entry.get("identitytoken"):
            return Login(refresh=entry["identitytoken"])
        if entry.get("auth"):
            user, _, password = base64.b64decode(entry["auth"], validate=True).decode().partition(":")
            return Login(user, password)
    return _ask_helper(helper, names[0]) if helper else None


def _ask_helper(helper: str, host: str) -> Login | None:
    program = f"docker-credential-{helper}"
    if not re.fullmatch(r"[\w.-]+", helper) or shutil.which(program) is None:
        return None
    done = subprocess.run([program, "get"], input=host, capture_output=True, text=True, check=False)
    if done.returncode:
        return None
    told = json.loads(done.stdout)
    if told.get("Username") == "<token>":
        return Login(refresh=told["Secret"])
    return Login(told.get("Username", ""), told.get("Secret", ""))


@dataclass(frozen=True, slots=True)
class Challenge:
    """How a registry wants to be asked."""

    scheme: str
    parameters: dict[str, str]


def parse_challenge(header: str) -> Challenge:
    """Take a `WWW-Authenticate` header apart."""
    scheme, _, rest = header.strip().partition(" ")
    return Challenge(scheme.lower(), dict(re.findall(r'(\w+)="([^"]*)"', rest)))
