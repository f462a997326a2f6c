"""A closed terminal is distinguished from everything else that can be written to, and no write to it fails."""

from __future__ import annotations

import errno
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TextIO

import pytest

from bireme.view.readers import fall_silent, is_hung_up, leave_closed_terminals


@pytest.fixture
def closed_terminal() -> Iterator[TextIO]:
    """A stream to a terminal that was closed at its other end."""
    master, slave = os.openpty()
    with os.fdopen(slave, "w") as stream:
        assert not is_hung_up(stream)
        os.close(master)
        yield stream


def test_a_closed_terminal_takes_no_word_until_words_go_nowhere(closed_terminal: TextIO) -> None:
    assert is_hung_up(closed_terminal)
    with pytest.raises(OSError) as caught:
        print("pass 0", file=closed_terminal, flush=True)
    assert caught.value.errno == errno.EIO
    fall_silent(closed_terminal)
    print("pass 1", file=closed_terminal, flush=True)
    assert not is_hung_up(closed_terminal)


def test_a_file_and_a_broken_pipe_are_no_closed_terminals(tmp_path: Path) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    with os.fdopen(writer, "w") as pipe, (tmp_path / "file").open("w") as file:
        assert not is_hung_up(pipe)
        assert not is_hung_up(file)


def test_only_the_stream_whose_terminal_is_closed_falls_silent(
    closed_terminal: TextIO, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with (tmp_path / "file").open("w") as file:
        monkeypatch.setattr(sys, "stdout", closed_terminal)
        monkeypatch.setattr(sys, "stderr", file)
        leave_closed_terminals()
        print("lost output", flush=True)
        print("kept output", file=sys.stderr, flush=True)
    assert (tmp_path / "file").read_text() == "kept output\n"


def test_a_stream_without_a_descriptor_is_left_alone(capsys: pytest.CaptureFixture[str]) -> None:
    leave_closed_terminals()
    fall_silent(sys.stdout)
    print("heard")
    assert capsys.readouterr().out == "heard\n"
