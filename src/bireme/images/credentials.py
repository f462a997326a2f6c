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


def find_login(host: str, config: Path) -> Login | None:
    """Look a registry up in docker's config file; None where nobody has logged in to it."""
    try:
        told: dict[str, Any] = json.loads(config.read_text("utf-8"))
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as e:
        raise ImageError(f"cannot read {config}: {e}", fix="mend it, or log in again") from e
    names = [_HUB_KEY] if host == "docker.io" else [host, f"https://{host}", f"https://{host}/v1/", f"http://{host}"]
    helper = told.get("credHelpers", {}).get(host) or told.get("credsStore", "")
    for name in names:
        entry = told.get("auths", {}).get(name, {})
        if entry.get("identitytoken"):
            return Login(refresh=entry["identitytoken"])
        if entry.get("auth"):
            user, _, password = base64.b64decode(entry["auth"]).decode().partition(":")
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
