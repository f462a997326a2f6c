from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from bireme.job.supervise import Child, Family, decide, describe_exit


@pytest.mark.parametrize(
    ("codes", "verdict"),
    [
        ({}, "all-done"),
        ({"a": None, "b": None}, "go-on"),
        ({"a": 0, "b": None}, "go-on"),
        ({"a": 0, "b": 0}, "all-done"),
        ({"a": 1, "b": None}, "end-others"),
        ({"a": None, "b": -9}, "end-others"),
        ({"a": 0, "b": 3}, "end-others"),
    ],
)
def test_one_failure_ends_the_others(codes: dict[str, int | None], verdict: str) -> None:
    assert decide(codes) == verdict


@pytest.mark.parametrize(
    ("code", "words"),
    [
        (0, "exited with code 0"),
        (3, "exited with code 3"),
        (-9, "was killed by SIGKILL"),
        (-99, "was killed by signal 99"),
    ],
)
def test_an_exit_code_is_told_in_words(code: int, words: str) -> None:
    assert describe_exit(code) == words


def python(name: str, code: str, log: Path) -> Child:
    return Child(name, [sys.executable, "-c", code], log)


def test_output_goes_to_the_log_and_codes_are_known(tmp_path: Path) -> None:
    log = tmp_path / "node_0" / "train.log"
    with Family() as family:
        pid = family.start(python("a", "import sys; print('hello'); sys.exit(7)", log))
        os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
        assert family.codes() == {"a": 7}
    assert log.read_text() == "hello\n"


def test_leaving_the_family_ends_every_child(tmp_path: Path) -> None:
    with Family() as family:
        for name in ("a", "b"):
            family.start(python(name, "import signal; signal.pause()", tmp_path / name))
        assert family.codes() == {"a": None, "b": None}
    assert set(family.codes().values()) == {-15}


def test_a_child_that_does_not_listen_is_killed(tmp_path: Path) -> None:
    ready = tmp_path / "ready"
    os.mkfifo(ready)
    deaf = f"import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); open({str(ready)!r}, 'w'); signal.pause()"
    with Family() as family:
        family.start(python("deaf", deaf, tmp_path / "log"))
        with ready.open():  # returns when the child has stopped listening
            pass
        family.end(0.05)
        assert family.codes() == {"deaf": -9}
