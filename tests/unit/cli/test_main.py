"""The front door: help without a complaint, and errors in one place."""

from __future__ import annotations

import msgspec
import pytest
from click.testing import CliRunner

from bireme.cli.jobs.train import resume, train
from bireme.cli.main import COMMANDS, MEANT, main
from bireme.spec.job import MEANT as KEYS_MEANT
from bireme.spec.job import JobFile


@pytest.mark.parametrize("arguments", [[], ["data"], ["model"]])
def test_a_group_alone_prints_its_help_and_no_error(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as left:
        main(arguments)
    captured = capsys.readouterr()
    assert left.value.code == 0
    assert captured.out.startswith("Usage: bireme")
    assert captured.err == ""


@pytest.mark.parametrize("command", [train, resume])
def test_the_promise_of_equal_bits_names_its_exceptions(command: object) -> None:
    output = " ".join(CliRunner().invoke(command, ["--help"]).output.split())  # type: ignore[arg-type]
    assert "except in the modes `bounded` and `async`" in output


@pytest.mark.parametrize(
    ("word", "meant"),
    [
        ("run", "bireme train"),
        ("version", "bireme --version"),
        ("watch", "bireme status --watch"),
        ("plot", "bireme status --all"),
        ("trian", "train"),
    ],
)
def test_a_command_that_is_none_says_what_to_use(word: str, meant: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as left:
        main([word])
    assert left.value.code == 2
    assert f"There is no command `{word}`. Did you mean `{meant}`?" in capsys.readouterr().err


def test_every_command_that_is_suggested_exists() -> None:
    assert {said.split()[0] for said in MEANT.values()} <= {*COMMANDS, "--version", "--help"}
    assert not set(MEANT) & set(COMMANDS)


def test_every_key_that_is_suggested_exists() -> None:
    known = {info.name: info.type for info in msgspec.structs.fields(JobFile)}
    named = [said.split("`")[1] for said in KEYS_MEANT.values() if "`" in said]
    assert {name.split(".")[0] for name in named} <= set(known) and not set(KEYS_MEANT) & set(known)
