"""What the bench of TLS works out, and that a handshake can be timed both ways."""

from __future__ import annotations

from pathlib import Path

import pytest
import tls

from bireme.core.certificates import files_of, make_ca
from bireme.core.errors import UsageError


def test_the_ratio_is_of_turns_that_followed_each_other() -> None:
    figure = tls.figure_of({"plain": [10.0, 20.0, 10.0], "tls": [15.0, 30.0, 40.0]})
    assert figure["ratio"]["samples"] == [1.5, 1.5, 4.0] and figure["ratio"]["median"] == 1.5
    assert figure["plain_ms"]["median"] == 10.0


def test_the_table_has_a_line_for_each_size_and_handshakes() -> None:
    figure = tls.figure_of({"plain": [10.0], "tls": [15.0]})
    result = {"figures": {"1000000": figure}, "handshake_ms": {"full": 1.5, "resumed": 0.75}}
    lines = " ".join(tls.table(result).split())
    assert "1,000,000 10.0 15.0 1.50" in lines and "1.50 ms of processor time; with a kept session 0.75 ms" in lines


def test_handshakes_are_timed_anew_and_with_a_kept_session(tmp_path: Path) -> None:
    for file, content in files_of(make_ca(tls.NAME), tls.NAME, days=1).items():
        (tmp_path / file).write_bytes(content)
    assert tls.handshake_ms(tmp_path, 2, is_resumed=False) > 0
    assert tls.handshake_ms(tmp_path, 2, is_resumed=True) > 0, "it raises if a session was not taken up again"


def test_a_trial_is_tiny_and_nonsense_is_refused() -> None:
    assert tls.parse(["--quick", "--floats", "5"]).floats == [100_000]
    with pytest.raises(UsageError):
        tls.parse(["--reps", "0"])
