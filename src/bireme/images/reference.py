"""Names of images in registries: `registry.example:5000/team/bireme:1`, parsed and checked."""

from __future__ import annotations

import re
from dataclasses import dataclass

from bireme.core.errors import UsageError

_HUB = "docker.io"
_REPOSITORY = re.compile(r"[a-z0-9]+(?:(?:[._]|__|-+)[a-z0-9]+)*(?:/[a-z0-9]+(?:(?:[._]|__|-+)[a-z0-9]+)*)*")
_TAG = re.compile(r"\w[\w.-]{0,127}", re.ASCII)
_HOST = re.compile(r"(?:[A-Za-z0-9.-]+|\[[0-9a-fA-F:]+\])(?::\d{1,5})?")


@dataclass(frozen=True, slots=True)
class Reference:
    """The place of an image in a registry."""

    host: str
    repository: str
    tag: str

    @property
    def address(self) -> str:
        """The host to connect to; Docker Hub's registry has another host than its name."""
        return "registry-1.docker.io" if self.host == _HUB else self.host

    def __str__(self) -> str:
        return f"{self.host}/{self.repository}:{self.tag}"


def parse_reference(text: str) -> Reference:
    """Parse a name as docker does: the default registry is Docker Hub, the default tag `latest`."""
    first, slash, rest = text.partition("/")
    has_host = bool(slash) and ("." in first or ":" in first or first == "localhost")
    host, path = (first, rest) if has_host else (_HUB, text)
    repository, colon, tag = path.partition(":")
    if host == _HUB and "/" not in repository:
        repository = f"library/{repository}"
    tag = tag if colon else "latest"
    if not (_HOST.fullmatch(host) and _REPOSITORY.fullmatch(repository) and _TAG.fullmatch(tag)):
        why = "a name is lower case: host[:port]/path/name:tag"
        raise UsageError(f"`{text}` is not the name of an image", why=why, fix="e.g. registry.example/ml/bireme:1")
    return Reference(host, repository, tag)
