"""Coming back to a job that died: the commands report how far it is, how to continue, and what has changed."""

from __future__ import annotations

import re
from pathlib import Path

from tests.e2e.conftest import Cli, edit
from tests.e2e.test_resume import kill_in_the_middle

CONFIG = "quick_start/trainer_config.lr.py"


def test_a_job_that_died_is_found_explained_and_finished(cli: Cli, often: Path, tmp_path: Path) -> None:
    output = tmp_path / "killed"
    kill_in_the_middle(cli, often, output)

    listed = cli.run("list").out
    assert re.search(r"small +died .* [1-3]/4 passes", listed)
    assert f"continue with `bireme resume {output}`" in listed
    refused = cli.run("train", often, "--output", output)
    assert refused.code == 7
    assert f"fix: continue with `bireme resume {output}`" in refused.err

    logs = {path: path.stat().st_size for path in output.glob("node_*/*.log")}
    edit(
        often.parent / CONFIG, ("is_predict else 4", "is_predict else 8"), ("learning_rate=2e-3", "learning_rate=1e-3")
    )
    changed = cli.run("resume", "small")
    assert changed.code == 15
    assert "batch_size 4 → 8" in changed.err and "optimizer: learning_rate 0.002 → 0.001" in changed.err
    assert {path: path.stat().st_size for path in output.glob("node_*/*.log")} == logs, "a process was started"
    assert cli.run("list").out.splitlines()[1].split()[1] == "died"
    edit(
        often.parent / CONFIG, ("is_predict else 8", "is_predict else 4"), ("learning_rate=1e-3", "learning_rate=2e-3")
    )

    done = cli.run("resume")
    assert done.code == 0, done.err
    assert re.match(r"resuming from round \d+, batch \d+ of pass \d \(snapshot of \d\d:\d\d:\d\d\)\n", done.out)
    assert re.search(r"small +finished .* 4/4 passes", cli.run("list").out)
    assert len(cli.run("list").out.splitlines()) == 2  # a header, and the job
    again = cli.run("resume", output)
    assert again.code == 0
    assert again.out.startswith("already finished, all 4 passes: the model is in")
    assert re.findall("hash: .*", again.out) == re.findall("hash: .*", done.out)


def test_a_config_in_place_of_a_job_is_distinguished(cli: Cli, job: Path) -> None:
    done = cli.run("train", job.parent / CONFIG)
    assert done.code == 3
    assert "trainer_config.lr.py is a config, not a job.yaml" in done.err


def test_a_model_that_is_not_there_is_reported_with_one_that_is(cli: Cli, job: Path) -> None:
    assert cli.run("train", job, "--passes", 1, "--trainers", 1, "--pservers", 1).code == 0
    done = cli.run("predict", job.parent / "output" / "pass-00009")
    assert done.code == 6
    assert f"did you mean {job.parent / 'output' / 'pass-00000'}?" in done.err
