"""Several pytest workers on one cluster: values that are made once, and tests that need the cluster to themselves.

Most tests wait for Kubernetes, so `./dev test --kube` runs a few of them at a time, each in a namespace of its own.
A test marked `alone` changes what all pods share: nodes, wires, the API server, objects of the whole cluster. It begins
when every other worker has ended. The locks are flock(2): the kernel releases them when a worker dies.
"""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest


class FileLock:
    """A lock between processes: shared by many, or exclusive to one."""

    def __init__(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self._file = path.open("w")

    def share(self) -> None:
        """Hold it together with others; waits for a process that holds it alone."""
        fcntl.flock(self._file, fcntl.LOCK_SH)

    def own(self) -> None:
        """Hold it alone; waits for all others.

        A shared hold is given up first: two processes that both kept theirs would wait for each other.
        """
        self.release()
        fcntl.flock(self._file, fcntl.LOCK_EX)

    def release(self) -> None:
        """Hold it no longer."""
        fcntl.flock(self._file, fcntl.LOCK_UN)

    def close(self) -> None:
        """Hold it no longer, and never again."""
        self._file.close()


class Turns:
    """The two locks of a cluster: one for the tests that run on it, one for the workers that need it to be up.

    `tests` is held from a worker's first test to its end, and not test by test: objects of module fixtures are on the
    cluster between tests, too.
    """

    def __init__(self, state: Path, cluster: str) -> None:
        self.tests = FileLock(state / f"{cluster}.tests.lock")
        self.users = FileLock(state / f"{cluster}.users.lock")
        self._is_alone: bool | None = None

    def take(self, *, alone: bool) -> None:
        """Wait until a test may run, beside others or alone."""
        if alone == self._is_alone:
            return
        if alone:
            self.tests.own()
        else:
            self.tests.share()
        self._is_alone = alone

    def end(self) -> None:
        """This worker runs no more tests."""
        self.tests.release()
        self._is_alone = None

    def close(self) -> None:
        """This worker needs the cluster no more."""
        self.tests.close()
        self.users.close()


def once(factory: pytest.TempPathFactory, name: str, make: Callable[[], Any]) -> Any:
    """A JSON value that the first worker makes and all others of this run read."""
    root = factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        root = root.parent
    path = root / f"{name}.json"
    with (root / f"{name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not path.is_file():
            path.write_text(json.dumps(make()))
        return json.loads(path.read_text())
