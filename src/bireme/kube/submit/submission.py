"""A submission as one value: the job, its settings, its program and its certificates; reading the program."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec

from bireme.core.errors import SpecError
from bireme.kube.api import naming
from bireme.kube.api.naming import Object
from bireme.spec.job import Job
from bireme.spec.kubernetes import KubernetesFile
from bireme.spec.load import is_shard_name

LEFT_OUT = ("data", "__pycache__", "output")
"""Names that are skipped: `bireme data push` sends data."""
MAX_NBYTES = 900_000
"""A ConfigMap holds at most 1 MiB, and the job itself needs some of that."""


@dataclass(frozen=True, slots=True)
class Submission:
    """All that a job's objects are built from."""

    job: Job
    """As its pods see it."""
    settings: KubernetesFile
    namespace: str
    image: str
    program: Mapping[str, bytes] = field(default_factory=dict)
    """Files of the program by their path below its directory; empty where it is in the image."""
    certificates: Mapping[str, bytes] = field(default_factory=dict)
    """ca.crt, tls.crt and tls.key; empty without TLS."""

    @property
    def roles(self) -> tuple[naming.Role, ...]:
        return naming.roles_of(self.job, is_apart=self.settings.is_apart)

    @property
    def main_job(self) -> str:
        return naming.main_job(self.job, is_apart=self.settings.is_apart)

    @property
    def digest(self) -> str:
        """A hash of all that identifies the job; certificates and resuming do not change it."""
        job = msgspec.structs.replace(self.job, is_resumed=False, accepts_changes=False)
        settings = msgspec.structs.replace(self.settings, suspend=False)
        parts = {
            "job": _non_defaults(job),
            "settings": {**_non_defaults(settings), "image": self.image, "namespace": self.namespace},
            "program": {path: hashlib.sha256(content).hexdigest() for path, content in self.program.items()},
        }
        return hashlib.sha256(msgspec.json.encode(parts, order="deterministic")).hexdigest()


def _non_defaults(value: Any) -> Any:
    """A struct without its defaults, so that a new key of a later version changes no digest."""
    if not isinstance(value, msgspec.Struct):
        return [_non_defaults(each) for each in value] if isinstance(value, tuple) else value
    fields = msgspec.structs.fields(value)
    defaults = {f.name: f.default if f.default_factory is msgspec.NODEFAULT else f.default_factory() for f in fields}
    own = {name: getattr(value, name) for name in defaults}
    return {name: _non_defaults(setting) for name, setting in own.items() if setting != defaults[name]}


def settings_of(submission: Submission) -> Object:
    """What the objects depend on besides the job."""
    plain: Object = msgspec.to_builtins(submission.settings)
    if not submission.settings.groups:
        del plain["groups"]  # an older bireme reads the job back too, and refuses keys that it does not know
    return plain | {"image": submission.image, "namespace": submission.namespace}


def program_key(path: str) -> str:
    if re.fullmatch(r"[-._a-zA-Z0-9]+", path):
        return f"program.{path}"
    escaped = re.sub(r"[^-.a-zA-Z0-9]", lambda match: "".join(f"_{b:02x}" for b in match[0].encode()), path)
    return f"program-path.{escaped}"


def pods_of(job: Job, role: naming.Role) -> int:
    return {"": job.nodes, "pserver": job.pservers, "trainer": job.trainers}[role]


def read_program(directory: Path, *, without: Path) -> dict[str, bytes]:
    """All files of a program by their path below its directory; `without` is where the job's output goes.

    A directory that is too large is refused before anything of it is read.
    """
    try:
        files = {str(path.relative_to(directory)): path for path in _files(directory, without)}
        sizes = {name: path.stat().st_size for name, path in files.items()}
        nbytes = sum(sizes.values())
        if nbytes > MAX_NBYTES:
            large = sorted(sizes, key=lambda path: sizes[path], reverse=True)[:3]
            fix = "put it into the image with `bireme image build --with DIR` and say where with `kubernetes.program`"
            raise SpecError(
                f"the program's directory holds {nbytes:,} bytes, at most {MAX_NBYTES:,} can be sent along",
                why=f"the largest files are {', '.join(large)}",
                fix=fix,
            )
        return {name: path.read_bytes() for name, path in files.items()}
    except OSError as e:
        raise SpecError(f"cannot read the program: {e.filename}: {e.strerror}") from e


def _files(directory: Path, without: Path) -> Iterator[Path]:
    for path in sorted(directory.iterdir()):
        name = path.name
        if name.startswith(".") or name in LEFT_OUT or is_shard_name(name) or path == without:
            continue
        if path.is_dir():
            yield from _files(path, without)
        elif path.is_file() and path.suffix not in (".pyc", ".nbi", ".nbc"):
            yield path
