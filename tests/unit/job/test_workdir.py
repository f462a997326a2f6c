from __future__ import annotations

from pathlib import Path

import pytest

from bireme.core.errors import DataError
from bireme.job.workdir import lay_workdir


@pytest.fixture
def program(tmp_path: Path) -> Path:
    place = tmp_path / "quick_start"
    (place / "data").mkdir(parents=True)
    (place / "__pycache__").mkdir()
    (place / "config.py").write_text("config")
    (place / "data/dict.txt").write_text("the program's")
    (place / "data/pred.txt").write_text("the program's")
    return place


@pytest.fixture
def shard(tmp_path: Path) -> Path:
    place = tmp_path / "0/data"
    place.mkdir(parents=True)
    (place / "dict.txt").write_text("the shard's")
    (place / "train.txt").write_text("the shard's")
    return place


def test_the_program_has_the_shards_files_beside_it(tmp_path: Path, program: Path, shard: Path) -> None:
    root = lay_workdir(tmp_path / "work", program, shard)
    assert (root / "config.py").read_text() == "config"
    assert {p.name: p.read_text() for p in (root / "data").iterdir()} == {
        "dict.txt": "the shard's",
        "pred.txt": "the program's",
        "train.txt": "the shard's",
    }
    assert not (root / "__pycache__").exists()


def test_laying_it_again_is_fine_and_touches_no_original(tmp_path: Path, program: Path, shard: Path) -> None:
    for _ in range(2):
        lay_workdir(tmp_path / "work", program, shard)
    assert (program / "data/dict.txt").read_text() == "the program's"
    assert (shard / "dict.txt").read_text() == "the shard's"
    assert not (shard / "dict.txt").is_symlink()


def test_a_missing_shard_is_named(tmp_path: Path, program: Path) -> None:
    with pytest.raises(DataError, match=f"there is no data directory {tmp_path / '9/data'}") as caught:
        lay_workdir(tmp_path / "work", program, tmp_path / "9/data")
    assert "bireme data split" in caught.value.fix
