"""The front door: help without a complaint, and errors in one place."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
from click.testing import CliRunner
from tests.unit.kube.making import PLAIN, write_job

from bireme.api.local import _overriding
from bireme.cli.jobs import train as train_module
from bireme.cli.jobs.train import resume, train
from bireme.cli.main import COMMANDS, MEANT, main
from bireme.core.errors import UsageError
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


@pytest.mark.parametrize(
    ("arguments", "hint"),
    [
        (["train", "job.yaml", "--epochs", "3"], "There is no option `--epochs`. Did you mean `--passes`?"),
        (["submit", "job.yaml", "--num-workers=3"], "Did you mean `--trainers`?"),
        (["train", "job.yaml", "--ports_num=3"], "Did you mean `--ports-num`?"),
        (["train", "job.yaml", "--lr", "0.1"], "`--lr`. It is set in the config: settings(learning_rate=…)\n"),
        (["train", "job.yaml", "--keep", "best"], "`--keep`. `keep` is a key of job.yaml."),
        (["resume", "out", "--dataset", "d"], "`data.path` is a key of job.yaml."),
        (["train", "job.yaml", "--trainer", "2"], "--trainers"),
        (["list", "--lr"], "No such option"),
    ],
)
def test_an_option_that_is_none_says_what_to_use(
    arguments: list[str], hint: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as left:
        main(arguments)
    assert left.value.code == 2
    message = capsys.readouterr().err
    assert hint in message and f"`bireme {arguments[0]} --help` shows how it is used" in message


def test_values_of_any_key_reach_the_job_of_train(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    job_file, jobs = write_job(tmp_path, PLAIN), []
    for shard in range(3):
        (tmp_path / str(shard) / "data").mkdir(parents=True)
    monkeypatch.setattr(train_module, "_run", lambda job, *_, **__: jobs.append(job))
    values = {"keep": "best", "wire": {"gradients": "float16"}, "passes": 3, "output": tmp_path / "there"}
    arguments = [str(job_file), *_overriding(values), "--passes=4"]
    CliRunner().invoke(train, arguments, catch_exceptions=False)
    (job,) = jobs
    assert (job.keep, job.wire.gradients, job.passes, job.output) == ("best", "float16", 4, str(tmp_path / "there"))
    assert "--overrides" not in CliRunner().invoke(train, ["--help"]).output


@pytest.mark.parametrize("overrides", ["{bad", "[1]"])
def test_overrides_that_are_no_object_are_refused(tmp_path: Path, overrides: str) -> None:
    (tmp_path / "job.yaml").write_text("name: small\n")
    with pytest.raises(UsageError, match="--overrides is not a JSON object"):
        CliRunner().invoke(train, [str(tmp_path / "job.yaml"), "--overrides", overrides], catch_exceptions=False)


def test_every_command_that_is_suggested_exists() -> None:
    assert {said.split()[0] for said in MEANT.values()} <= {*COMMANDS, "--version", "--help"}
    assert not set(MEANT) & set(COMMANDS)


def test_every_key_that_is_suggested_exists() -> None:
    known = {info.name: info.type for info in msgspec.structs.fields(JobFile)}
    named = [said.split("`")[1] for said in KEYS_MEANT.values() if "`" in said]
    assert {name.split(".")[0] for name in named} <= set(known) and not set(KEYS_MEANT) & set(known)
