"""What a submission consists of, in one value: the job, how it is placed, its program and its certificates. No I/O."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import msgspec

from bireme.kube.api import naming
from bireme.spec.job import Job
from bireme.spec.kubernetes import KubernetesFile

Object = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Submission:
    """What is to be run, in full."""

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
        """The Jobs that it is made of, the one with the status first."""
        return naming.roles_of(self.job, is_apart=self.settings.is_apart)

    @property
    def main_job(self) -> str:
        """The name of the Job with the status."""
        return naming.main_job(self.job, is_apart=self.settings.is_apart)

    @property
    def digest(self) -> str:
        """One hash for all that makes it another job; certificates do not, nor that it was resumed."""
        job = msgspec.structs.replace(self.job, is_resumed=False, accepts_changes=False)
        settings = msgspec.structs.replace(self.settings, suspend=False)
        parts = {
            "job": _said(job),
            "settings": {**_said(settings), "image": self.image, "namespace": self.namespace},
            "program": {path: hashlib.sha256(content).hexdigest() for path, content in self.program.items()},
        }
        return hashlib.sha256(msgspec.json.encode(parts, order="deterministic")).hexdigest()


def _said(value: Any) -> Any:
    """What a struct says beyond its defaults, so that a key that is new in a later version changes no digest."""
    if not isinstance(value, msgspec.Struct):
        return [_said(each) for each in value] if isinstance(value, tuple) else value
    fields = msgspec.structs.fields(value)
    return {f.name: _said(given) for f in fields if (given := getattr(value, f.name)) != _default_of(f)}


def _default_of(field: msgspec.structs.FieldInfo) -> Any:
    made = field.default_factory
    return field.default if made is msgspec.NODEFAULT else made()


def settings_of(told: Submission) -> Object:
    """What else than the job decides how its objects look."""
    plain: Object = msgspec.to_builtins(told.settings)
    if not told.settings.groups:
        del plain["groups"]  # an older bireme reads the job back too, and refuses keys that it does not know
    return plain | {"image": told.image, "namespace": told.namespace}


def program_key(path: str) -> str:
    """The key of a program's file in the ConfigMap, where only plain names are allowed."""
    if re.fullmatch(r"[-._a-zA-Z0-9]+", path):
        return f"program.{path}"
    escaped = re.sub(r"[^-.a-zA-Z0-9]", lambda found: "".join(f"_{b:02x}" for b in found[0].encode()), path)
    return f"program-path.{escaped}"


def pods_of(job: Job, role: naming.Role) -> int:
    """How many pods a Job has."""
    return {"": job.nodes, "pserver": job.pservers, "trainer": job.trainers}[role]
