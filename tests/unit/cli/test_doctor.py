"""`bireme doctor` tells what is missing, and for what that is needed."""

from __future__ import annotations

import importlib.util
import shutil
from pathlib import Path

import pytest
from click.testing import CliRunner

from bireme.cli.doctor import doctor, findings


def test_what_only_clusters_need_is_no_fault_where_it_is_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "none"))
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    monkeypatch.setattr(shutil, "which", lambda name: None)
    found = {finding.name: finding for finding in findings()}
    for name in ("lightkube", "cryptography", "kubeconfig", "debootstrap"):
        assert found[name].state == "optional" and found[name].fix.startswith("only for ")


def test_the_kubeconfig_in_use_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "config").write_text("{}")
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "config"))
    done = CliRunner().invoke(doctor, [])
    assert done.exit_code == 0 and str(tmp_path / "config") in done.output
