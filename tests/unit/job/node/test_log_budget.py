"""Logs are kept within their budget while a process appends to them."""

from __future__ import annotations

import io
from pathlib import Path

import pytest

from bireme.job.node import log_budget as logs_module
from bireme.job.node.log_budget import Copier, rotate
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


def test_a_writer_continues_in_the_emptied_file(tmp_path: Path) -> None:
    path = tmp_path / "server.log"
    with path.open("ab", buffering=0) as writer:
        writer.write(b"x" * 200)
        rotate(path, TINY)
        writer.write(b"after")
    assert path.read_bytes() == b"after"


def test_a_full_log_is_emptied_where_no_old_one_is_kept(tmp_path: Path) -> None:
    path = tmp_path / "train.log"
    write(path, "a")
    assert rotate(path, Logs(max_mb=0.0001, keep=0))
    assert [(p.name, p.stat().st_size) for p in tmp_path.iterdir()] == [("train.log", 0)]


def test_a_log_that_is_not_there_is_no_fault(tmp_path: Path) -> None:
    assert not rotate(tmp_path / "train.log", TINY)


def copied(copier: Copier, out: io.BytesIO) -> str:
    copier.copy()
    text = out.getvalue().decode()
    out.seek(0)
    out.truncate()
    return text


@pytest.fixture
def out() -> io.BytesIO:
    return io.BytesIO()


def test_new_lines_are_repeated_with_a_name_in_front(tmp_path: Path, out: io.BytesIO) -> None:
    logs = {"pserver 0": tmp_path / "server.log", "trainer 0": tmp_path / "train.log"}
    logs["trainer 0"].write_text("of an earlier life\n")
    copier = Copier(logs, out)
    assert copied(copier, out) == ""
    logs["pserver 0"].write_text("one\ntwo\n")
    with logs["trainer 0"].open("a") as log:
        log.write("three\n")
    assert copied(copier, out) == "pserver 0 | one\npserver 0 | two\ntrainer 0 | three\n"
    assert copied(copier, out) == ""


def test_half_a_line_waits_for_its_end_or_for_the_end_of_all(tmp_path: Path, out: io.BytesIO) -> None:
    path = tmp_path / "train.log"
    copier = Copier({"t": path}, out)
    path.write_text("begin")
    assert copied(copier, out) == ""
    path.write_text("begin and end\nlast words")
    assert copied(copier, out) == "t | begin and end\n"
    copier.finish()
    assert out.getvalue() == b"t | last words\n"


def test_a_log_that_was_moved_aside_is_read_from_its_beginning(tmp_path: Path, out: io.BytesIO) -> None:
    path = tmp_path / "train.log"
    copier = Copier({"t": path}, out)
    write(path, "long line\n")
    copied(copier, out)
    assert rotate(path, TINY)
    with path.open("a") as log:
        log.write("after\n")
    assert copied(copier, out) == "t | after\n"


def test_more_than_is_read_at_once_is_repeated_whole(
    tmp_path: Path, out: io.BytesIO, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(logs_module, "AT_ONCE_NBYTES", 7)
    path = tmp_path / "train.log"
    copier = Copier({"t": path}, out)
    path.write_text("a line that is longer\nand one more\n")
    assert copied(copier, out) == "t | a line that is longer\nt | and one more\n"
