"""Shards that do not go together are named with the file, before anything starts."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from bireme.core.errors import DataError
from bireme.job.output.data_hash import files_of
from bireme.job.preflight import check_alike, empty_shards

FILES = {"train.list": "data/train.txt\n", "train.txt": "1\ta\n", "dict.txt": "unk\t-1\na\t1\n", "sizes.txt": "4"}
CONFIG = """
from paddle.trainer_config_helpers import *
settings(batch_size=4, learning_rate=0.1)
with open('data/sizes.txt') as f:
    size = int(f.read())
answer = fc_layer(input=data_layer(name='word', size=size), size=2, act=SoftmaxActivation())
outputs(classification_cost(input=answer, label=data_layer(name='label', size=2)))
"""


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """Three shards that are alike."""
    (tmp_path / "config.py").write_text(CONFIG)
    for shard in range(3):
        for name, content in FILES.items():
            (tmp_path / str(shard) / "data").mkdir(parents=True, exist_ok=True)
            (tmp_path / str(shard) / "data" / name).write_text(content)
    return tmp_path


def job_of(data: Path) -> Any:
    return SimpleNamespace(
        data=str(data), shards=3, config=str(data / "config.py"), config_args={}, front_end="trainer_config"
    )


def check(data: Path) -> None:
    from bireme.job.workdir import borrowed_workdir
    from bireme.programs.loading import ProgramSpec, load_program

    job = job_of(data)
    with borrowed_workdir(job) as workdir:
        program = load_program(ProgramSpec(str(data / "config.py"), workdir, {}))
    check_alike(job, program, [files_of(data / str(shard) / "data") for shard in range(3)])


@pytest.mark.parametrize(("odd", "other"), [(2, 0), (0, 1)])
def test_the_shard_whose_dictionary_differs_is_named(data: Path, odd: int, other: int) -> None:
    (data / f"{odd}/data/dict.txt").write_text("unk\t-1\nb\t1\n")
    with pytest.raises(DataError, match=f"shard {odd}'s dict.txt differs from shard {other}'s") as error:
        check(data)
    assert f"`bireme data check {data}` finds all such files" in error.value.fix


@pytest.mark.parametrize(
    ("name", "fix"), [("dict.txt", "copy it from shard 0"), ("train.txt", "restore it"), ("train.list", "copy it")]
)
def test_the_shard_that_lacks_a_file_is_named(data: Path, name: str, fix: str) -> None:
    (data / f"1/data/{name}").unlink()
    with pytest.raises(DataError, match=f"shard 1 has no {name}, shard 0 has one") as error:
        check(data)
    assert error.value.fix.startswith(fix)


def test_a_file_that_changes_the_program_is_named(data: Path) -> None:
    (data / "1/data/sizes.txt").write_text("5")
    with pytest.raises(DataError, match=r"shard 1's sizes\.txt differs") as error:
        check(data)
    assert "config.py makes another program of it" in error.value.why


def change_samples(data: Path) -> None:
    (data / "1/data/train.txt").write_text("0\tb\n")


def change_notes(data: Path) -> None:
    (data / "1/data/notes.txt").write_text("from March")


def change_what_the_size_looks_like(data: Path) -> None:
    (data / "1/data/sizes.txt").write_text("4\n")


def list_other_files(data: Path) -> None:
    (data / "1/data/train.list").write_text("data/mine.txt\n")
    (data / "1/data/train.txt").rename(data / "1/data/mine.txt")


HARMLESS = [change_samples, change_notes, change_what_the_size_looks_like, list_other_files]


@pytest.mark.parametrize("change", HARMLESS)
def test_shards_may_differ_in_what_does_not_matter(data: Path, change: Callable[[Path], None]) -> None:
    change(data)
    check(data)


@pytest.mark.parametrize(
    ("empty", "said"), [([], ""), ([1], "shard 1 has no"), ([0, 2], "shards 0, 2 have no"), ([0, 1, 2], "")]
)
def test_shards_without_training_data_are_mentioned(data: Path, empty: list[int], said: str) -> None:
    for shard in empty:
        (data / f"{shard}/data/train.txt").write_text("")
    warning = empty_shards(cast(Any, job_of(data)), [files_of(data / str(shard) / "data") for shard in range(3)])
    assert said in warning and bool(said) == bool(warning)
