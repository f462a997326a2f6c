"""Where a saved model's program and data are looked for."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from bireme.core.errors import SpecError
from bireme.job.inference import job_of
from bireme.spec.job import Job
from bireme.spec.model import Snapshots


def leave(output: Path, *, config: str, data: str, hosts: tuple[str, ...] = ()) -> Path:
    """The pass directory of a job whose job.json says where it ran."""
    job = Job(
        name="small", config=config, config_args={}, data=data, shards=1, pservers=1, trainers=1, port=None,
        ports_num=1, ports_num_for_sparse=1, passes=1, seed=1, output=str(output), log_period=50,
        connect_timeout_s=1.0, snapshots=Snapshots(path=str(output / "snapshots")), hosts=hosts,
    )  # fmt: skip
    (output / "pass-00000").mkdir(parents=True)
    (output / "job.json").write_bytes(msgspec.json.encode(job))
    return output / "pass-00000"


def test_a_model_from_a_cluster_asks_for_the_job_s_file(tmp_path: Path) -> None:
    model = leave(tmp_path / "got", config="/no/config.py", data="/no/job", hosts=("small-0",))
    with pytest.raises(SpecError) as refusal:
        job_of(model)
    assert refusal.value.what == "the model comes from a cluster, and there is no /no/config.py on this machine"
    assert "give `--job JOB.yaml`" in refusal.value.fix and "data split" not in str(refusal.value)
    (tmp_path / "config.py").touch()
    model = leave(tmp_path / "again", config=str(tmp_path / "config.py"), data="/no/job", hosts=("small-0",))
    with pytest.raises(SpecError, match="there is no /no/job/0/data on this machine"):
        job_of(model)


def test_on_the_cluster_itself_such_a_model_can_be_used(tmp_path: Path) -> None:
    (tmp_path / "config.py").touch()
    (tmp_path / "0/data").mkdir(parents=True)
    model = leave(tmp_path / "out", config=str(tmp_path / "config.py"), data=str(tmp_path), hosts=("small-0",))
    assert job_of(model).name == "small"


def test_what_a_local_job_lacks_is_named_when_it_is_needed(tmp_path: Path) -> None:
    assert job_of(leave(tmp_path / "out", config="/no/config.py", data="/no/data")).data == "/no/data"


def test_a_model_without_its_job_asks_for_the_job_s_file(tmp_path: Path) -> None:
    with pytest.raises(SpecError, match=r"there is no .*job\.json") as refusal:
        job_of(tmp_path / "pass-00000")
    assert "--job JOB.yaml" in refusal.value.fix
