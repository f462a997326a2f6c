"""Logs are kept within their budget while somebody appends to them."""

from __future__ import annotations

from pathlib import Path

from bireme.job.logs import rotate
from bireme.spec.model import Logs

TINY = Logs(max_mb=0.0001, keep=2)


def write(path: Path, text: str) -> None:
    with path.open("a") as f:
        f.write(text * 200)


def test_a_log_within_its_budget_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "train.log").write_text("few words")
    assert not rotate(tmp_path / "train.log", TINY)
    assert [p.name for p in tmp_path.iterdir()] == ["train.log"]


def test_a_full_log_moves_aside_and_the_oldest_is_forgotten(tmp_path: Path) -> None:
    path = tmp_path / "train.log"
    for letter in "abcd":
        write(path, letter)
        assert rotate(path, TINY)
    assert path.read_text() == ""
    assert {p.name: p.read_text()[0] for p in tmp_path.iterdir() if p != path} == {
        "train.log.1": "d",
        "train.log.2": "c",
    }


def test_whoever_appends_goes_on_in_the_emptied_file(tmp_path: Path) -> None:
    path = tmp_path / "server.log"
    with path.open("ab", buffering=0) as writer:
        writer.write(b"x" * 200)
        rotate(path, TINY)
        writer.write(b"after")
    assert path.read_bytes() == b"after"


def test_without_older_files_to_keep_a_full_log_is_simply_emptied(tmp_path: Path) -> None:
    path = tmp_path / "train.log"
    write(path, "a")
    assert rotate(path, Logs(max_mb=0.0001, keep=0))
    assert [(p.name, p.stat().st_size) for p in tmp_path.iterdir()] == [("train.log", 0)]


def test_a_log_that_is_not_there_is_no_fault(tmp_path: Path) -> None:
    assert not rotate(tmp_path / "train.log", TINY)
