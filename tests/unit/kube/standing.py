"""A namespace that jobs can be submitted to, and what may become of them there, without a cluster."""

from __future__ import annotations

import json
from typing import Any

from tests.unit.kube.volume.test_helper_pod import Json, Memory

from bireme.core.errors import BiremeError
from bireme.kube.api import naming
from bireme.kube.api.client import ConflictError, Kind, refusal


class Standing(Memory):
    """Takes objects and keeps them, or refuses: `error` is the answer to every question."""

    server = "https://near:6443"

    def __init__(self, *, error: BiremeError | None = None, has_namespace: bool = True) -> None:
        super().__init__()
        self.error = error
        self.has_namespace = has_namespace

    def find(self, kind: Kind, name: str) -> Json | None:
        if self.error is not None:
            raise self.error
        return super().find(kind, name)

    def create(self, made: Json) -> Json:
        if not self.has_namespace:
            raise refusal(f"{made['kind']} x", 404, "NotFound", f'namespaces "{self.namespace}" not found')
        if (made["kind"], made["metadata"]["name"]) in self.things:
            raise ConflictError(f"there is a {made['kind']} {made['metadata']['name']} already")
        return super().create(made)

    def apply(self, made: Json, *, is_trial: bool = False) -> Json:
        self.things.pop((made["kind"], made["metadata"]["name"]), None)
        return self.create(made)

    def patch(self, kind: Kind, name: str, change: Json) -> Json:
        thing = self.get(kind, name)
        thing["metadata"] |= change.get("metadata", {})
        return thing

    # What becomes of a job

    def job(self, name: str = "reviews") -> Json:
        return self.things["Job", name]

    def say(self, **status: Any) -> None:
        """Let the coordinator say how the job is doing."""
        self.job()["metadata"].setdefault("annotations", {})[naming.STATUS] = json.dumps(status)

    def fail(self) -> None:
        """Let the job fail with an error of its own."""
        error = {"kind": "DataError", "what": "shard 0 of 3 is missing", "why": "", "fix": "push it"}
        self.say(phase="failed", error=error)
        self.job()["status"] = {"conditions": [{"type": "Failed", "status": "True", "message": "too long"}]}

    def suspend(self) -> None:
        """Cancel the job in the middle of its training."""
        self.say(phase="training", trainers=[{"trainer": 0}], passes_done=[])
        self.job()["spec"]["suspend"] = True
