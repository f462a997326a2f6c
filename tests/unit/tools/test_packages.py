"""Debian packages of the test cluster. The stand-in for apt-get refuses to run twice at a time, as apt-get does."""

from __future__ import annotations

import os
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from tools.kube import build

APT_GET = """#!/bin/sh
mkdir {home}/busy 2>/dev/null || {{ echo 'E: Could not get lock' >&2; exit 100; }}
sleep 0.05
echo "$1" >> {home}/calls
[ "$1" = update ] || touch {home}/runc && chmod +x {home}/runc 2>/dev/null
rmdir {home}/busy
"""


def test_workers_that_start_together_install_packages_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "apt-get").write_text(APT_GET.format(home=tmp_path))
    (tmp_path / "apt-get").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.setattr(build, "PROGRAMS", {str(tmp_path / "runc"): "runc"})
    monkeypatch.setattr(tempfile, "gettempdir", lambda: str(tmp_path))
    with ThreadPoolExecutor(3) as workers:
        list(workers.map(lambda _: build.require_packages(lambda line: None), range(3)))
    assert (tmp_path / "calls").read_text().split() == ["update", "install"]
