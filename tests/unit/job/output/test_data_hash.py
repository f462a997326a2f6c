from __future__ import annotations

from pathlib import Path

import pytest

from bireme.job.output import data_hash
from bireme.job.output.data_hash import data_fingerprint, files_of, fingerprint_of


@pytest.fixture
def data(tmp_path: Path) -> Path:
    for shard in range(2):
        (tmp_path / str(shard) / "data").mkdir(parents=True)
        (tmp_path / str(shard) / "data" / "train.txt").write_bytes(bytes(range(200)))
    return tmp_path


def edit(data: Path, at: int) -> None:
    path = data / "1" / "data" / "train.txt"
    content = bytearray(path.read_bytes())
    content[at] ^= 1
    path.write_bytes(content)


@pytest.mark.parametrize("at", [0, 77, 199])
def test_data_that_was_edited_in_place_is_other_data(data: Path, at: int) -> None:
    before = data_fingerprint(data, 2)
    edit(data, at)
    assert data_fingerprint(data, 2) != before
    edit(data, at)
    assert data_fingerprint(data, 2) == before


def test_pieces_of_a_large_file_are_read_from_start_to_end(data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(data_hash, "PIECES", 3)
    monkeypatch.setattr(data_hash, "PIECE_NBYTES", 10)
    before = data_fingerprint(data, 2)
    for at, is_noticed in ((0, True), (50, False), (100, True), (199, True)):
        edit(data, at)
        assert (data_fingerprint(data, 2) != before) == is_noticed
        edit(data, at)


def test_known_hashes_of_files_give_the_same_fingerprint(data: Path) -> None:
    looked = [files_of(data / str(shard) / "data") for shard in range(2)]
    assert fingerprint_of(data, looked) == data_fingerprint(data, 2)
