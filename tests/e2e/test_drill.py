"""Jobs that are disturbed on purpose end as if nothing had happened, and the drill says what it cost."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from bireme.core.faults import POINTS
from tests.e2e.conftest import Cli, Undisturbed, save_often
from tests.e2e.counting import count_updates

EVERY_POINT = (
    "--kill trainer:0@round=20,point=push.before",
    "--kill trainer:1@round=40,point=push.after",
    "--kill pserver:1@round=60,point=lane.landed",
    "--kill pserver:1@round=80,point=lane.applied",
    "--kill pserver:1@round=100,point=part.sync",
    "--kill pserver:1@round=120,point=part.rename",
    "--kill coordinator@round=140,point=snapshot.commit",
    "--kill pserver:1@round=160",
    "--kill pserver:1@recovery,point=view.set-up",
    "--kill trainer:0@recovery,point=view.begin",
    "--kill trainer:1@round=200",
    "--kill pserver:1@recovery,point=view.enter",
    "--kill coordinator@recovery,point=snapshot.load",
    "--kill trainer:0@round=220,point=model.saved",
    "--kill coordinator@round=260,point=write.ledger",
)

WITHOUT_ROUNDS = (
    "--kill trainer:0@point=push.before",
    "--kill trainer:1@point=push.after",
    "--kill pserver:1@point=lane.landed",
    "--kill trainer:0@recovery,point=view.begin",
    "--kill pserver:0@point=lane.applied",
    "--kill pserver:1@recovery,point=view.set-up",
    "--kill pserver:1@point=part.sync",
    "--kill coordinator@recovery,point=snapshot.load",
    "--kill pserver:0@point=part.rename",
    "--kill coordinator@point=snapshot.commit",
    "--kill trainer:0@point=model.saved",
    "--kill pserver:1@recovery,point=view.enter",
    "--kill coordinator@point=write.ledger",
)
"""Each strikes as soon as it can: the first ones in the first batches, those of snapshots at the ends of passes."""


def drill(cli: Cli, job: Path, *faults: str) -> dict[str, Any]:
    words = [word for fault in faults for word in fault.split()]
    done = cli.run("drill", job, *words, "--output", job.parent / "drill", "--json")
    assert done.code == 0, done.err
    result: dict[str, Any] = done.json
    return result


def test_a_process_may_be_killed_at_every_named_point(cli: Cli, job: Path) -> None:
    missing = set(POINTS) - {word.partition("point=")[2] for word in EVERY_POINT}
    assert not missing, "a point without a drill"
    result = drill(cli, save_often(job, passes=8), *EVERY_POINT)
    assert result["same"] is True
    assert result["never"] == []
    assert len(result["each"]) == len(EVERY_POINT)
    sound = cli.run("verify", job.parent / "drill" / "disturbed")
    assert sound.code == 0, sound.out


def test_pauses_and_cut_connections_are_survived(cli: Cli, job: Path, undisturbed: Undisturbed) -> None:
    result = drill(
        cli,
        save_often(job, passes=8),
        "--no-reference",
        "--pause trainer:0@round=50,2s",
        "--cut trainer:1-pserver:1@round=100",
        "--cut trainer:0-pserver:0@after=300ms",
        "--pause pserver:1@round=150,2s",
        "--kill all@round=180",
    )
    assert (result["hash"], result["never"]) == (undisturbed(8), [])
    paused = [row for row in result["each"] if row["fault"].startswith("pause")]
    assert all(row["redone"] == 0 for row in paused), "a paused process was taken for dead"


@pytest.mark.parametrize("mode", [pytest.param("sync", marks=pytest.mark.slow), "bounded", "async"])
def test_no_update_is_lost_or_applied_twice_in_any_mode(cli: Cli, job: Path, mode: str) -> None:
    count_updates(job)
    job.write_text(job.read_text().replace("passes: 2", "passes: 3") + f"mode: {mode}\n")
    result = drill(
        cli,
        job,
        "--kill trainer:0@round=20,point=push.after",
        "--cut trainer:0-pserver:0@round=30",
        "--kill pserver:1@round=40,point=lane.applied",
        "--kill trainer:1@round=45,point=push.before",
        "--kill coordinator@point=snapshot.commit",
    )
    assert result["hash"] == result["undisturbed"], "the counts of updates differ"
    assert result["never"] == []


def test_rounds_are_updates_of_all_passes_where_shards_go_apart(cli: Cli, job: Path) -> None:
    count_updates(job, batch_size=1)
    job.write_text(job.read_text() + "mode: async\n")
    # A pass has 601 updates, of which no shard makes more than 201: we strike early in the second one.
    result = drill(cli, job, "--kill trainer:0@round=300", "--kill node:1@round=700")
    assert (result["hash"], result["never"]) == (result["undisturbed"], [])
    mended, rewound = result["each"]
    assert (mended["kind"], mended["redone"], rewound["kind"]) == ("mend", 1, "rewind")
    assert 50 < rewound["redone"] <= 601


@pytest.mark.chaos
@pytest.mark.parametrize("mode", ["bounded", "async"])
def test_no_update_is_lost_or_applied_twice_at_any_named_point(cli: Cli, job: Path, mode: str) -> None:
    assert set(POINTS) == {word.partition("point=")[2] for word in WITHOUT_ROUNDS}
    count_updates(job)
    job.write_text(job.read_text().replace("passes: 2", "passes: 4") + f"mode: {mode}\n")
    result = drill(cli, job, *WITHOUT_ROUNDS)
    assert result["hash"] == result["undisturbed"], "the counts of updates differ"
    assert result["never"] == []
    sound = cli.run("verify", job.parent / "drill" / "disturbed")
    assert sound.code == 0, sound.out


def test_a_fault_that_never_happened_is_named(cli: Cli, job: Path) -> None:
    done = cli.run("drill", job, "--kill", "trainer:0@round=100000", "--no-reference", "--json")
    assert done.json["never"] == ["kill trainer:0 @round=100000"]
    assert (done.json["faults"], done.json["same"]) == (0, None)
    assert done.code == 2, "a drill without its fault has not passed"
    assert done.json["what"] == "1 of 1 faults never happened"


def test_faults_at_random_moments_change_nothing(cli: Cli, job: Path, undisturbed: Undisturbed) -> None:
    result = drill(cli, save_often(job, passes=8), "--no-reference", "--random --mtbf 0.5s --seed 4 --faults 3")
    assert (result["hash"], result["never"]) == (undisturbed(8), [])
    assert result["drawn"] == 3
    assert 1 <= result["drawn_happened"] == len(result["each"])


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        ((), "no fault was asked for"),
        (("--kill", "pserver:9@round=1"), "there is no pserver 9: the job has pservers 0 to 1"),
        (("--kill", "pserver:1"), "'pserver:1' is not understood"),
        (("--kill", "trainer:0@round=1,point=nowhere"), "there is no fault point 'nowhere'"),
        (("--pause", "trainer:0@sometime"), "does not say when"),
        (("--cut", "trainer:0@round=3"), "is not understood"),
        (("--cut", "all-pserver:1@round=3"), "a cut is trainer:0-pserver:1@WHEN"),
        (("--kill", "node:1@recovery"), "node:1 cannot be struck at a recovery"),
        (("--kill", "pserver:0@recovery"), "there is no fault before it to recover from"),
        (("--random", "--mtbf", "soon"), "'soon' is no duration"),
    ],
)
def test_a_senseless_fault_is_refused_before_anything_runs(
    cli: Cli, job: Path, words: tuple[str, ...], complaint: str
) -> None:
    done = cli.run("drill", job, *words)
    assert done.code == 2
    assert complaint in done.err
    assert not list(job.parent.glob("drill*"))
