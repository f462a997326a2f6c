"""A job file on disk, and what it comes to on a cluster."""

from __future__ import annotations

from pathlib import Path

from bireme.kube.jobs.submitting import prepare
from bireme.kube.submit.submission import Submission
from bireme.spec.load import ClusterJob, load_cluster_job

PLAIN = """\
name: reviews
program:
  config: quick/config.py
data: {shards: 3}
lanes: {ports_num: 2}
passes: 4
"""
ALL = """\
name: reviews
program:
  config: quick/config.py
data: {path: cut, shards: 3}
pservers: 2
trainers: 3
lanes: {port: 9000}
output: out/here
kubernetes:
  image: registry.example/bireme:1
  image_pull_policy: Always
  image_pull_secrets: [registry-key]
  namespace: training
  volume: {claim: shared-data, data: sets/reviews}
  resources:
    requests: {cpu: 2, memory: 1Gi}
    limits: {memory: 2Gi}
  node_selector: {disk: fast}
  tolerations:
    - {key: spot, effect: NoSchedule}
    - {key: team, value: search, effect: NoExecute, seconds: 60}
  lost_node_s: 5
  priority_class: batch-low
  spread: false
  service_account: trainers
  labels: {team: search}
  env: {DEBUG: true, WORKERS: 2}
  volumes:
    - {name: scratch, path: /scratch, source: {emptyDir: {}}}
    - {name: words, path: /words, source: {configMap: {name: words}}, read_only: true}
  tls: false
  network_policy: false
  pod_failures: 3
  replace: when_gone
  deadline_s: 3600
  queue: night
  patch:
    Service: {metadata: {annotations: {note: by hand}}}
    Job:
      spec:
        ttlSecondsAfterFinished: 60
        template:
          spec:
            containers:
              - name: node
                env: [{name: DEBUG, value: loud}, {name: MORE, value: yes please}]
              - {name: beside, image: busybox}
"""
GROUPED = (
    PLAIN
    + """\
kubernetes:
  groups:
    pserver: {pool: steady}
    trainer: {pool: spot}
"""
)
PROGRAM = {
    "config.py": b"print('config')\n",
    "lib/words.py": b"WORDS = 3\n",
    "table.bin": bytes(range(250, 256)),
    "__pycache__/config.pyc": b"left out",
    "data/big": b"left out",
    ".hidden": b"left out",
}


def write_job(folder: Path, text: str) -> Path:
    """A job.yaml with its program beside it, and no data."""
    for name, content in PROGRAM.items():
        path = folder / "quick" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    (folder / "job.yaml").write_text(text)
    return folder / "job.yaml"


def load(folder: Path, text: str = PLAIN) -> ClusterJob:
    """A job file as `submit` reads it."""
    return load_cluster_job(write_job(folder, text), {}, {})


def make(folder: Path, text: str = PLAIN, image: str | None = "bireme:test") -> Submission:
    """What is submitted, with certificates that are none."""
    from dataclasses import replace

    loaded = load(folder, text)
    made = prepare(loaded, loaded.settings.namespace or "default", image)
    pem = {"ca.crt": b"an authority", "tls.crt": b"a leaf", "tls.key": b"a key"}
    return replace(made, certificates=pem) if loaded.settings.tls else made
