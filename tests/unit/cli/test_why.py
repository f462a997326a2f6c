"""`bireme why` for jobs on this machine: from the registry and the coordinator's last word, without a cluster."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest
from click.testing import CliRunner

from bireme.cli.jobs import control as command
from bireme.cli.main import main
from bireme.core.errors import ConfigScriptError, DataError
from bireme.job.status import JobStatus
from bireme.local import registry

STATUS: dict[str, Any] = {
    "phase": "training", "first_pass": 0, "passes": 4, "pass": 1, "saved": 0, "waits_for": [],
    "trainers": [{"trainer": 0, "rate": 900.0}, {"trainer": 1, "rate": 1100.0}], "pservers": [{"pserver": 0}],
}  # fmt: skip


@pytest.fixture(autouse=True)
def _state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("KUBECONFIG", raising=False)
    monkeypatch.delenv("BIREME_COMMAND", raising=False)
    monkeypatch.chdir(tmp_path)


def ran(state: registry.State, status: dict[str, Any] | None = None, **more: Any) -> registry.RunRecord:
    made, _ = registry.new_run("small", "job.yaml", str(Path.cwd() / "out"))
    last = msgspec.convert(status or {}, JobStatus)
    made = msgspec.structs.replace(made, state=state, status=last, **more)
    registry.save(made)
    return made


def said(*arguments: str) -> list[str]:
    done = CliRunner().invoke(command.why, list(arguments), catch_exceptions=False)
    assert done.exit_code == 0
    return done.output.splitlines()


def test_a_finished_job_says_so_with_its_passes() -> None:
    ran("finished", {"passes": 4, "saved": 3}, ended=1.0)
    assert "with 4 of 4 passes done: nothing is wrong." in said("small")[0]
    assert said("small")[1] == "Its models are in out."


def test_a_failed_job_says_its_error_and_its_fix() -> None:
    error = DataError("trainer 1: shard 1: there is no file data/train.txt", fix="split the data again")
    ran("failed", reason=error.what, error=error.as_dict())
    assert said("small") == [
        "Training data is missing or not what the program expects: trainer 1: shard 1: there is no file "
        "data/train.txt.",
        "Split the data again; or `bireme data check` shows what is wrong with a shard.",
    ]


def test_a_local_jobs_wrong_config_is_not_to_be_submitted() -> None:
    error = ConfigScriptError("config.py line 3: there is no fc_layr", fix="did you mean fc_layer?")
    ran("failed", reason=error.what, error=error.as_dict())
    check = "`bireme train JOB.yaml --dry-run` checks the file here before you start it again."
    assert said("small")[1] == f"Did you mean fc_layer? {check}"


def test_a_failure_without_a_kept_error_is_explained_too() -> None:
    ran("failed", reason="trainer 0 died")
    assert "The job is failed (trainer 0 died)" in said("small")[0]


def test_a_job_whose_process_is_gone_names_the_way_to_resume() -> None:
    ran("running", {"passes": 4, "saved": 1}, birth="another boot/1")
    assert "gone and left no final state, with 2 of 4 passes done" in said("small")[0]
    assert said("small")[1] == "Go on from its last snapshot with `bireme resume out`."


def test_a_stopped_job_names_the_way_to_resume() -> None:
    ran("cancelled", {"passes": 4, "saved": 1})
    assert said()[0] == "The job was stopped, with 2 of 4 passes done."


@pytest.mark.parametrize(
    ("changes", "situation", "words"),
    [
        (
            {},
            "running",
            "pass 2 of 4 at 2,000 samples/s with 2 trainers and 1 pserver, and waits for none of them",
        ),
        ({"waits_for": ["trainer 1"]}, "slow-trainer", "The job waits for trainer 1 (2,000 samples/s in all)."),
        ({"waits_for": ["pserver 0, silent for 9 s"]}, "slow-pserver", "silent for 9 s"),
        ({"phase": "gathering", "waits_for": ["trainer 0"]}, "waiting-for-peers", "waits for trainer 0."),
        ({"phase": "starting"}, "no-word-yet", "its process runs"),
    ],
)
def test_a_running_job_says_what_it_waits_for(
    monkeypatch: pytest.MonkeyPatch, changes: dict[str, Any], situation: str, words: str
) -> None:
    record = ran("running", {**STATUS, **changes})
    monkeypatch.setattr(
        "bireme.api.local.status_of", lambda given: record.status if given.id == record.id else JobStatus()
    )
    answer = json.loads("".join(said("small", "--json")))
    assert (answer["where"], answer["causes"][0]["situation"]) == ("local", situation)
    assert words in answer["causes"][0]["cause"]


def test_an_unknown_job_is_an_error_with_the_known_names(capsys: pytest.CaptureFixture[str]) -> None:
    ran("finished")
    with pytest.raises(SystemExit) as left:
        main(["why", "smal"])
    assert left.value.code == 2
    assert "there is no job 'smal' on this machine" in capsys.readouterr().err


def test_a_cluster_asked_for_but_not_configured_is_an_error(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as left:
        main(["why", "small", "--kube", "--json"])
    assert left.value.code == 2
    assert json.loads(capsys.readouterr().out)["error"] == "UsageError"
