"""`stop_when` ends a job with the same pass and the same bits, also when it is killed and resumed."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.e2e.conftest import Cli, assert_ledger_is_exact, edit, lines_of
from tests.e2e.test_resume import kill_in_the_middle

CONFIG = Path("quick_start/trainer_config.lr.py")
RULE = "stop_when: no better for 2 passes\n"


@pytest.fixture
def early(often: Path) -> Path:
    """A job whose steps are too large to get better for long, and that is over when they do not."""
    edit(often.parent / CONFIG, ("learning_rate=2e-3", "learning_rate=2e-1"))
    edit(often, ("passes: 4", "passes: 50"))
    often.write_text(often.read_text() + RULE)
    return often


def passes_in(output: Path) -> set[int]:
    return {int(path.name[5:]) for path in output.glob("pass-*")}


def costs_of(output: Path) -> list[float]:
    return [row["test_cost"] for row in lines_of(output / "metrics.jsonl") if row["event"] == "pass"]


def test_a_job_ends_when_it_gets_no_better_killed_or_not(cli: Cli, early: Path, tmp_path: Path) -> None:
    plain, killed = tmp_path / "plain", tmp_path / "killed"
    whole = cli.run("train", early, "--output", plain)
    assert whole.code == 0, whole.err
    costs = costs_of(plain)
    last = len(costs) - 1
    assert 2 <= last < 49 and costs.index(min(costs)) == last - 2
    assert f"finished: after {last + 1} passes, no better test cost for 2 passes; the model is in {plain}" in whole.out
    early.write_text(early.read_text() + "keep: last 1\n")
    # Paced, so that it is not over before it is killed, however busy the machine is.
    kill_in_the_middle(cli, early, killed, BIREME_FAULTS="delay:seed=1,max_ms=10")
    done = cli.run("resume", killed, "--trainers", 1, "--json")
    assert done.code == 0, done.err
    assert done.json["hash"] in whole.out and done.json["model"] == str(killed / f"pass-{last:05d}")
    assert_ledger_is_exact(killed, passes=last + 1)
    assert cli.run("verify", killed).code == 0
    assert passes_in(killed) == {last - 2, last}, "the lowest cost is needed to know the end"
    assert "already finished" in cli.run("resume", killed).out
    on = cli.run("resume", killed, "--passes", last + 3, "--json")
    assert on.code == 0 and on.json["model"] == str(killed / f"pass-{last + 2:05d}")
    assert passes_in(killed) == {last + 2}
    assert cli.run("verify", killed).code == 0


def test_the_best_model_stays_with_the_last_one(cli: Cli, job: Path) -> None:
    edit(job, ("passes: 2", "passes: 5"))
    job.write_text(job.read_text() + "keep: best\n")
    edit(job.parent / CONFIG, ("learning_rate=2e-3", "learning_rate=2e-1"))
    done = cli.run("train", job)
    assert done.code == 0, done.err
    best = int(re.findall(r"best pass: pass-(\d+)", done.out)[0]) if "best pass" in done.out else 4
    assert passes_in(job.parent / "output") == {best, 4}
    assert cli.run("verify", job.parent / "output").code == 0
