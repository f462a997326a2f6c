"""A whole job of real processes whose every connection goes by TCP under TLS: the same model, kills included."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from bireme.core.certificates import make_ca
from bireme.core.errors import BiremeError
from bireme.core.faults import FaultRule
from bireme.job.output.model import model_hash
from bireme.local.runner import LocalRun
from bireme.ps.wire import security
from bireme.spec.job import Job
from bireme.spec.load import load_job
from tests.e2e.conftest import Cli, Undisturbed, save_often
from tests.unit.ps.wire.test_security import NAME, give

PASSES = 2
LAST = f"pass-{PASSES - 1:05d}"
KILLS = (
    FaultRule(action="kill", who="trainer:1", point="push.after", round=10),
    FaultRule(action="kill", who="pserver:1", point="lane.applied", round=30, after=0),
    FaultRule(action="cut", who="trainer:0", point="push.before", round=50, after=1, target="pserver:0"),
    FaultRule(action="kill", who="pserver:0", point="lane.landed", round=60, after=2),
)


@pytest.fixture
def secured(cli: Cli, job: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Job]:
    """The small job with many rounds, as it runs where memory and Unix sockets are not shared."""
    for name, value in cli.environment().items():
        monkeypatch.setenv(name, value)
    save_often(job, passes=PASSES)
    directory = give(tmp_path / "tls", make_ca(NAME))
    security.use(directory)
    found = load_job(job, {"output": str(job.parent / "secured")})
    yield msgspec.structs.replace(found, tls=str(directory), carrier="tcp")
    security.use(None)


def follow(job: Job) -> int:
    """Run a job to its end; returns how many of its faults have fired."""
    with LocalRun(job, "job.yaml") as run:
        while run.poll() is not None:
            time.sleep(0.1)  # as the command line does between two looks
        return len(list(run.fired.iterdir())) if run.fired.is_dir() else 0


def logs_of(job: Job) -> str:
    return "".join(path.read_text() for path in sorted(Path(job.output).glob("node_*/*.log")))


def test_a_job_under_tls_has_a_plain_ones_bits_after_kills(secured: Job, undisturbed: Undisturbed) -> None:
    faults = msgspec.json.encode(KILLS).decode()
    assert follow(msgspec.structs.replace(secured, faults=faults)) == len(KILLS)
    logs = logs_of(secured)
    assert f"secured connections name={NAME}" in logs and "carriers=tcp" in logs
    assert model_hash(Path(secured.output) / LAST) == undisturbed(PASSES)


def test_a_job_with_an_expired_certificate_trains_nothing(secured: Job) -> None:
    give(Path(secured.tls), make_ca(NAME), days=-1)
    with pytest.raises(BiremeError, match="has expired"):
        follow(msgspec.structs.replace(secured, connect_timeout_s=5.0))
    assert "the certificate of this process has expired" in logs_of(secured)
    assert not (Path(secured.output) / "pass-00000").exists()
