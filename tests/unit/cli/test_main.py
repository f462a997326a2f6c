"""The front door: help without a complaint, and errors in one place."""

from __future__ import annotations

import pytest
from click.testing import CliRunner

from bireme.cli.main import main
from bireme.cli.resume import resume
from bireme.cli.train import train


@pytest.mark.parametrize("arguments", [[], ["data"], ["model"]])
def test_a_group_alone_prints_its_help_and_no_error(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as left:
        main(arguments)
    told = capsys.readouterr()
    assert left.value.code == 0
    assert told.out.startswith("Usage: bireme")
    assert told.err == ""


@pytest.mark.parametrize("command", [train, resume])
def test_the_promise_of_equal_bits_names_its_exceptions(command: object) -> None:
    told = " ".join(CliRunner().invoke(command, ["--help"]).output.split())  # type: ignore[arg-type]
    assert "except in the modes `bounded` and `async`" in told
