"""The commands `bireme data split` and `bireme data check`, as a user runs them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from bireme.cli.data import data
from bireme.cli.output import plain_progress
from bireme.core.errors import DataError, OutputExistsError


@pytest.fixture
def source(tmp_path: Path) -> Path:
    directory = tmp_path / "source"
    directory.mkdir()
    (directory / "train.txt").write_text("0\ta\n1\tb\n0\tc\n")
    (directory / "dict.txt").write_text("unk\t-1\na\t1\n")
    return directory


def test_split_says_what_it_made(source: Path, tmp_path: Path) -> None:
    result = CliRunner().invoke(data, ["split", str(source), "--shards", "2", "--out", str(tmp_path / "job")])
    assert result.exit_code == 0
    assert result.stdout == (
        f"2 shards in {tmp_path / 'job'}: 3 lines of train.txt, 1 or 2 in each; 1 other file copied to each\n"
    )


def test_split_warns_on_stderr_about_empty_shards(source: Path, tmp_path: Path) -> None:
    result = CliRunner().invoke(data, ["split", str(source), "--shards", "4", "--out", str(tmp_path / "job")])
    assert result.stderr == "warning: 1 of 4 shards are empty: there are only 3 training lines\n"


def test_split_prints_one_json_object(source: Path, tmp_path: Path) -> None:
    arguments = ["split", str(source), "--shards", "2", "--out", str(tmp_path / "job"), "--json"]
    report = json.loads(CliRunner().invoke(data, arguments).stdout)
    assert report["lines"] == [2, 1]
    assert report["job"] == str(tmp_path / "job")


def test_split_raises_the_refusal_for_main_to_print(source: Path, tmp_path: Path) -> None:
    (tmp_path / "job/0").mkdir(parents=True)
    result = CliRunner().invoke(data, ["split", str(source), "--shards", "2", "--out", str(tmp_path / "job")])
    assert isinstance(result.exception, OutputExistsError)


def test_check_of_good_data_ends_well(source: Path, tmp_path: Path) -> None:
    job = str(tmp_path / "job")
    CliRunner().invoke(data, ["split", str(source), "--shards", "2", "--out", job])
    result = CliRunner().invoke(data, ["check", job])
    assert result.exit_code == 0
    assert result.stdout.startswith("shard 0: 2 training lines, ")
    assert result.stdout.endswith("no problems\n")


def test_check_of_bad_data_lists_problems_and_raises_data_error(source: Path, tmp_path: Path) -> None:
    job = str(tmp_path / "job")
    (source / "train.txt").write_text("0\ta\n" + "x\ty\n" * 7)
    CliRunner().invoke(data, ["split", str(source), "--shards", "1", "--out", job])
    result = CliRunner().invoke(data, ["check", job])
    assert "error: 0/data/train.txt:2: label 'x' is not an integer\n  fix: " in result.stdout
    assert "  and 2 more errors in this file\n" in result.stdout
    assert isinstance(result.exception, DataError)
    assert result.exception.what == f"7 errors in the shards of {job}"
    as_json = CliRunner().invoke(data, ["check", job, "--json"])
    assert json.loads(as_json.stdout)["errors"] == 7


def test_check_with_only_warnings_ends_well(source: Path, tmp_path: Path) -> None:
    job = tmp_path / "job"
    CliRunner().invoke(data, ["split", str(source), "--shards", "2", "--out", str(job)])
    (job / "shards.json").unlink()
    result = CliRunner().invoke(data, ["check", str(job)])
    assert result.exit_code == 0
    assert result.stdout.endswith("no errors, 1 warning\n")


def test_piped_progress_is_a_few_plain_lines(capsys: pytest.CaptureFixture[str]) -> None:
    progress = plain_progress("splitting")
    for done in range(0, 101, 5):
        progress(done << 20, 100 << 20)
    assert capsys.readouterr().err == "splitting: 25 %\nsplitting: 50 %\nsplitting: 75 %\n"


@pytest.mark.parametrize("command", ["split", "check"])
def test_help_teaches_with_an_example(command: str) -> None:
    assert "Example:\n    bireme data" in CliRunner().invoke(data, [command, "--help"]).stdout
