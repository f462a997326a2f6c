"""`why` on a real cluster with jobs of bireme itself: failures inside of pods are explained in the job's own words."""

from __future__ import annotations

import base64
import datetime
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from ruamel.yaml import YAML
from tools.kube.machine import wait_for
from tools.kube.running import RunningCluster

from bireme.demo.prepare import prepare
from bireme.diagnose.explain import explain
from tests.kube.why_stage import Json, Stage, record

FEW: Json = {"requests": {"cpu": "50m", "memory": "128Mi"}, "limits": {"cpu": "700m", "memory": "1Gi"}}


ENDLESS = 99_999
"""Passes of a job that is to run until it is ended."""
PACE = "delay:seed=7,max_ms=40"
"""For such a job, which would take the machine from all other tests."""


class Jobs(Stage):
    """Jobs of bireme that share one volume with the shards of a small demo."""

    def __init__(self, running: RunningCluster, directory: Path, image: str) -> None:
        super().__init__(running, "why-jobs")
        self.directory, self.image = directory, image
        prepare(directory / "demo", shards=2, reviews=400)
        self.volume = self.claim("shards")
        shutil.copytree(directory / "demo", self.volume / "demo")

    def claim(self, name: str) -> Path:
        """Make a claim and return where its volume is on this machine."""
        spec = {"accessModes": ["ReadWriteMany"], "resources": {"requests": {"storage": "1Gi"}}}
        self.apply({"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": {"name": name}, "spec": spec})

        def volume() -> str:
            found: Json = self.running.get("pvc", name, "-n", self.namespace)
            return str(found["spec"].get("volumeName") or "")

        wait_for(f"the claim {name} to be bound", lambda: bool(volume()), seconds=60)
        path = Path(self.running.get("pv", volume())["spec"]["hostPath"]["path"])
        return self.running.volume / path.name

    def submit(self, name: str, *, config: str = "", pace: str = "", **changes: Any) -> None:
        """Submit a job of two nodes, of which the demo's file is changed in places, with delays or without."""
        place = self.directory / name
        shutil.copytree(self.directory / "demo" / "quick_start", place / "quick_start")
        if config:
            script = place / "quick_start/trainer_config.lr.py"
            script.write_text(script.read_text() + config)
        cluster = {
            "image": self.image, "image_pull_policy": "IfNotPresent", "resources": FEW,
            "volume": {"claim": "shards", "data": "demo"}, **changes.pop("kubernetes", {}),
        }  # fmt: skip
        file = {
            "name": name, "program": {"config": "quick_start/trainer_config.lr.py"}, "nodes": 2, "passes": ENDLESS,
            "data": {"shards": 2}, "output": "output", "connect_timeout_s": 60.0, "kubernetes": cluster, **changes,
        }  # fmt: skip
        with (place / "job.yaml").open("w") as f:
            YAML().dump(file, f)
        self.bireme("submit", str(place / "job.yaml"), **({"BIREME_FAULTS": pace} if pace else {}))

    def bireme(self, *arguments: str, **environment: str) -> str:
        """Run a command of the product in this namespace."""
        state = {"KUBECONFIG": str(self.running.kubeconfig), "XDG_STATE_HOME": str(self.directory / "state")}
        command = [sys.executable, "-m", "bireme", *arguments, "--namespace", self.namespace]
        done = subprocess.run(
            command, env={**os.environ, **state, **environment}, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    def signal(self, job: str, rank: int, role: str, number: int) -> None:
        """Send a signal to one process inside a pod."""
        pod = self.pod(job, rank)
        script = (
            "import os, pathlib\n"
            "for p in pathlib.Path('/proc').glob('[0-9]*/cmdline'):\n"
            f"    if b'\\0{role}\\0' in p.read_bytes():\n"
            f"        os.kill(int(p.parent.name), {number})\n"
        )
        self.kubectl("exec", pod, "--", "python3", "-c", script)

    def pod(self, job: str, rank: int) -> str:
        """The pod of a node."""
        label = f"job-name={job},batch.kubernetes.io/job-completion-index={rank}"
        return self.kubectl("get", "pods", "-l", label, "-o", "name").strip().removeprefix("pod/")


@pytest.fixture(scope="module")
def jobs(cluster: RunningCluster, image: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Jobs]:
    with Jobs(cluster, tmp_path_factory.mktemp("why"), image) as made:
        submit_nameless(made)
        yield made


def submit_nameless(jobs: Jobs) -> None:
    """A job whose pods have no server of names; begun first, as it waits for more than a minute."""
    pod = {
        "dnsPolicy": "None",
        "dnsConfig": {"nameservers": ["10.96.0.99"], "options": [{"name": "timeout", "value": "1"}]},
    }
    jobs.submit(
        "name-not-found", connect_timeout_s=15.0, kubernetes={"patch": {"Job": {"spec": {"template": {"spec": pod}}}}}
    )


@pytest.fixture(scope="module")
def training(jobs: Jobs) -> Jobs:
    """One job that trains for as long as the tests run."""
    jobs.submit("running", pace=PACE)
    jobs.until("running")
    return jobs


def test_a_job_that_trains_is_reported_as_well(training: Jobs) -> None:
    # The first rates arrive a while after the first round.
    training.until("running", said="samples/s with 2 trainers and 2 pservers, and waits for none of them")


@pytest.mark.parametrize("role", ["trainer", "pserver"])
def test_a_process_that_all_wait_for_is_named_with_its_pod(training: Jobs, role: str) -> None:
    training.signal("running", 1, role, 19)
    try:
        cause = training.until(f"slow-{role}", "running", keep=f"slow-{role}")
    finally:
        training.signal("running", 1, role, 18)
    assert f"The job waits for {role} 1" in cause.cause
    assert f"pod {training.pod('running', 1)} on n" in cause.cause


def test_the_command_says_two_sentences_and_json(training: Jobs) -> None:
    training.until("running")
    lines = training.bireme("why", "running").splitlines()
    assert lines[0].startswith("The job runs well") and lines[1].startswith("Watch it with `bireme status running")
    answer = json.loads(training.bireme("why", "running", "--json"))
    assert answer["where"] == "kubernetes" and answer["causes"][0]["situation"] == "running"


def test_a_job_that_was_cancelled_is_suspended(training: Jobs) -> None:
    training.bireme("cancel", "running")
    assert "bireme resume running" in training.until("suspended", "running", said="with", keep="cancelled").advice


def test_missing_shards_are_reported_with_the_way_to_send_them(jobs: Jobs) -> None:
    jobs.submit("data-missing", kubernetes={"volume": {"claim": "shards", "data": "nowhere"}})
    cause = jobs.until("data-missing")
    assert "there is no directory /job/nowhere/0/data" in cause.cause and "bireme data push" in cause.advice


def test_a_mistake_in_the_config_is_reported_with_its_line(jobs: Jobs) -> None:
    jobs.submit("config-wrong", config="\nimport os\nif 'POD_NAME' in os.environ:\n    fc_layerr(input=words)\n")
    assert "fc_layerr" in jobs.until("config-error", "config-wrong").cause


def test_a_diverging_training_is_reported_with_the_parameter(jobs: Jobs) -> None:
    wild = "\nsettings(batch_size=64, learning_rate=1e38, learning_method=MomentumOptimizer(momentum=0.9))\n"
    jobs.submit("not-a-number", config=wild)
    cause = jobs.until("not-a-number")
    assert "NaN or infinity" in cause.cause and "learning rate" in cause.advice


def test_a_full_volume_is_reported(jobs: Jobs) -> None:
    disk = {"name": "small", "emptyDir": {"medium": "Memory", "sizeLimit": "96Ki"}}
    mount = {"name": "small", "mountPath": "/job/disk-full/output"}
    pod = {"volumes": [disk], "containers": [{"name": "node", "volumeMounts": [mount]}]}
    patch = {"Job": {"spec": {"template": {"spec": pod}}}}
    jobs.submit("disk-full", nodes=1, kubernetes={"patch": patch})
    assert "The volume of claim shards is full" in jobs.until("disk-full").cause


def test_an_unwritable_volume_is_named_with_the_user(jobs: Jobs) -> None:
    place = jobs.claim("closed")
    shutil.copytree(jobs.volume / "demo", place / "demo")
    place.chmod(0o755)
    jobs.submit("not-writable", kubernetes={"volume": {"claim": "closed", "data": "demo"}})
    cause = jobs.until("not-writable")
    assert "The volume of claim closed cannot be written to" in cause.cause and "user 1000" in cause.advice


def test_names_that_do_not_resolve_are_reported(jobs: Jobs) -> None:
    cause = jobs.until("name-not-found")
    assert "does not resolve" in cause.cause and "kube-dns" in cause.advice


def test_a_certificate_that_has_expired_is_reported(jobs: Jobs) -> None:
    jobs.submit("certificate-expired", kubernetes={"suspend": True})
    secret = jobs.running.get("secret", "certificate-expired-tls", "-n", jobs.namespace)
    old = {"data": {"tls.crt": expired(secret["data"], jobs.directory / "state")}}
    jobs.kubectl("patch", "secret", "certificate-expired-tls", "--type=merge", "-p", json.dumps(old))
    jobs.bireme("resume", "certificate-expired")
    cause = jobs.until("certificate-expired")
    assert "expired" in cause.cause and "kubernetes.certificate_days" in cause.advice


def expired(data: dict[str, str], state: Path) -> str:
    """The same certificate, over since yesterday."""
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization

    key_file = next(state.rglob("certificate-expired/ca.key"))
    key: Any = serialization.load_pem_private_key(key_file.read_bytes(), None)
    leaf = x509.load_pem_x509_certificate(base64.b64decode(data["tls.crt"]))
    now = datetime.datetime.now(datetime.UTC)
    made = x509.CertificateBuilder(leaf.issuer, leaf.subject, leaf.public_key(), leaf.serial_number)
    made = made.not_valid_before(now - datetime.timedelta(days=9)).not_valid_after(now - datetime.timedelta(days=1))
    for extension in leaf.extensions:
        made = made.add_extension(extension.value, extension.critical)
    pem = made.sign(key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM)
    return base64.b64encode(pem).decode()


def test_pods_without_rights_run_and_the_missing_right_is_named(jobs: Jobs) -> None:
    jobs.submit("forbidden-to-pods", pace=PACE, kubernetes={"service_account": "default"})
    cause = jobs.until("forbidden", "forbidden-to-pods")
    assert "may not patch jobs" in cause.cause
    jobs.bireme("delete", "forbidden-to-pods")


def test_another_version_in_the_image_is_named_after_a_failure(jobs: Jobs) -> None:
    from dataclasses import replace

    facts = replace(jobs.facts("not-a-number"), version="9.9.9")
    record("version-skew", facts)
    causes = {c.situation: c for c in explain(facts)}
    assert "and this command is bireme 9.9.9" in causes["version-skew"].cause
