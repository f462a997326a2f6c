"""`bireme doctor` lists what is missing, and for what that is needed."""

from __future__ import annotations

import importlib.util
import json
import shutil
from pathlib import Path

import pytest
from click.testing import CliRunner
from tests.unit.kube.making import PLAIN, write_job
from tests.unit.kube.volume.test_helper_pod import Memory

from bireme.api.where import Where
from bireme.cli.doctor import doctor, findings, on_volume
from bireme.core.errors import UsageError
from bireme.job.output import volume_probe
from bireme.kube.api.client import CLAIM


def test_what_only_clusters_need_is_no_fault_where_it_is_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "none"))
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    monkeypatch.setattr(shutil, "which", lambda name: None)
    found = {finding.name: finding for finding in findings()}
    for name in ("lightkube", "websockets", "cryptography", "kubeconfig", "boto3", "debootstrap"):
        assert found[name].state == "optional" and found[name].fix.startswith("only for ")


def test_the_kubeconfig_in_use_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "config").write_text("{}")
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "config"))
    done = CliRunner().invoke(doctor, [])
    assert done.exit_code == 0 and str(tmp_path / "config") in done.output


def test_a_directory_is_tried_out_and_left_as_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert on_volume(tmp_path).state == "ok"
    monkeypatch.setitem(volume_probe.ABILITIES, "append to a file", lambda place: False)
    done = CliRunner().invoke(doctor, ["--volume", str(tmp_path)])
    assert done.exit_code == 14
    last = done.output.splitlines()[-1]
    assert last.startswith(f"✗ volume            {tmp_path} is on ")
    assert last.endswith(", which cannot append to a file  ->  use a volume on EFS or NFS")
    assert list(tmp_path.iterdir()) == []
    absent = CliRunner().invoke(doctor, ["--volume", str(tmp_path / "none")]).exception
    assert isinstance(absent, UsageError) and absent.what.startswith("there is no directory")


def test_a_jobs_volume_is_tried_out_by_a_pod_on_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    memory = Memory()
    memory.put(CLAIM, "reviews")
    monkeypatch.setattr(Where, "connect", lambda self, namespace=None: memory)
    words = "/job is on Mountpoint for S3 (fuse.mountpoint-s3), which cannot append to a file"
    memory.answers = [(0, json.dumps({"words": words, "lacks": ["append to a file"]}).encode(), "")]
    file = str(write_job(tmp_path, PLAIN))
    done = CliRunner().invoke(doctor, ["--job", file, "--image", "bireme:1", "--json"])
    found = json.loads(done.output)["findings"][-1]
    assert done.exit_code == 14 and found["state"] == "missing"
    assert (found["found"], found["fix"]) == (f"the volume reviews: {words}", "use a volume on EFS or NFS")
    assert memory.pods() == [], "the pod is gone"
    refused = CliRunner().invoke(doctor, ["--image", "bireme:1"]).exception
    assert isinstance(refused, UsageError)
