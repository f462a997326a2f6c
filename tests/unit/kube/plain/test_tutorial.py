"""The tutorial's environment as a job of ours."""

from __future__ import annotations

from pathlib import Path

import pytest

from bireme.core.errors import BiremeError, DataError, SpecError, UsageError
from bireme.kube.plain import tutorial

TUTORIAL = {
    "JOB_NAME": "paddle-cluster-job",
    "JOB_NAMESPACE": "default",
    "TRAIN_CONFIG_DIR": "quick_start",
    "CONF_PADDLE_NIC": "eth0",
    "CONF_PADDLE_PORT": "7164",
    "CONF_PADDLE_PORTS_NUM": "2",
    "CONF_PADDLE_PORTS_NUM_SPARSE": "2",
    "CONF_PADDLE_GRADIENT_NUM": "3",
    "TRAINER_COUNT": "3",
}


@pytest.fixture
def variables(tmp_path: Path) -> dict[str, str]:
    """The tutorial's variables, and a volume that its data job has filled."""
    place = tmp_path / "paddle-cluster-job"
    for shard in range(3):
        (place / str(shard) / "data").mkdir(parents=True)
    (place / "quick_start").mkdir()
    for name in tutorial.CONFIGS:
        (place / "quick_start" / name).touch()
    return {**TUTORIAL, "JOB_PATH": str(tmp_path)}


def test_the_tutorials_variables_make_its_start_scripts_job(variables: dict[str, str], tmp_path: Path) -> None:
    job = tutorial.job_of(variables)
    place = tmp_path / "paddle-cluster-job"
    assert (job.name, job.passes, job.log_period) == ("paddle-cluster-job", 10, 50)
    assert (job.pservers, job.trainers, job.shards, job.nodes) == (3, 3, 3, 3)
    assert (job.port, job.ports_num, job.ports_num_for_sparse) == (7164, 2, 2)
    assert job.config == str(place / "quick_start" / "trainer_config.lr.py")
    assert (job.data, job.output) == (str(place), str(place / "output"))
    assert job.snapshots.path == str(place / "output" / "snapshots")
    assert job.hosts == () and not job.tls


def test_the_older_name_of_the_config_is_found_too(variables: dict[str, str], tmp_path: Path) -> None:
    (tmp_path / "paddle-cluster-job" / "quick_start" / "trainer_config.lr.py").unlink()
    assert tutorial.job_of(variables).config.endswith("quick_start/trainer_config.py")


def test_shards_as_the_oldest_tutorial_had_them_are_found_too(variables: dict[str, str], tmp_path: Path) -> None:
    place = tmp_path / "paddle-cluster-job"
    for shard in range(3):
        (place / str(shard) / "data" / "train.txt").write_text(f"shard {shard}")
        (place / "data").mkdir(exist_ok=True)
        (place / str(shard) / "data").rename(place / "data" / str(shard))
        (place / str(shard)).rmdir()
    for _ in range(2):  # each pod comes by here
        job = tutorial.job_of(variables)
        assert job.shards == 3
        assert [(Path(job.data) / f"{k}/data/train.txt").read_text() for k in range(3)] == [
            f"shard {k}" for k in range(3)
        ]


def test_passes_and_seed_can_be_changed_without_another_image(variables: dict[str, str]) -> None:
    job = tutorial.job_of({**variables, "BIREME_PASSES": "2", "BIREME_SEED": "7"})
    assert (job.passes, job.seed) == (2, 7)


@pytest.mark.parametrize("name", ["TRAIN_CONFIG_DIR", "CONF_PADDLE_PORT", "CONF_PADDLE_GRADIENT_NUM"])
def test_a_variable_that_is_missing_is_named(variables: dict[str, str], name: str) -> None:
    del variables[name]
    with pytest.raises(UsageError, match=f"the variable {name} is not set"):
        tutorial.job_of(variables)


@pytest.mark.parametrize(
    ("name", "value"),
    [("CONF_PADDLE_PORT", "70000"), ("CONF_PADDLE_PORTS_NUM", "two"), ("CONF_PADDLE_GRADIENT_NUM", "0")],
)
def test_a_number_that_is_none_is_named(variables: dict[str, str], name: str, value: str) -> None:
    with pytest.raises(UsageError, match=f"{name} is '{value}', which is not a number from"):
        tutorial.job_of({**variables, name: value})


def refusal(variables: dict[str, str], kind: type[BiremeError]) -> BiremeError:
    with pytest.raises(kind) as caught:
        tutorial.job_of(variables)
    return caught.value


def test_a_volume_without_data_asks_for_the_data_job(variables: dict[str, str], tmp_path: Path) -> None:
    error = refusal({**variables, "JOB_NAME": "another"}, DataError)
    assert "there is no training data on the volume" in error.what and "data job" in error.fix


def test_fewer_shards_than_pods_are_reported_with_both_numbers(variables: dict[str, str]) -> None:
    error = refusal({**variables, "CONF_PADDLE_GRADIENT_NUM": "4"}, DataError)
    assert "4 pods but only 3 data shards" in error.what and "SPLIT_COUNT" in error.fix


def test_a_missing_program_is_named_with_the_searched_places(variables: dict[str, str]) -> None:
    error = refusal({**variables, "TRAIN_CONFIG_DIR": "recommendation"}, SpecError)
    assert "paddle-cluster-job/recommendation" in error.what and "TRAIN_CONFIG_DIR" in error.fix


@pytest.mark.parametrize(("environment", "is_so"), [({"JOB_NAME": "a", "JOB_PATH": "/b"}, True), ({}, False)])
def test_such_a_pod_is_known_by_its_variables(environment: dict[str, str], is_so: bool) -> None:
    assert tutorial.is_tutorial_pod(environment) is is_so
