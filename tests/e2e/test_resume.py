"""A job whose processes are all killed continues from its last snapshot, and ends as if nothing had happened."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

from bireme.job.output.snapshots import candidates
from tests.e2e.conftest import MOST, Cli, Undisturbed, assert_ledger_is_exact, edit, pids_of, wait_until
from tests.e2e.power import Machine, cut_power

PASSES = 4
GOING_ON = "resuming round="


def kill_in_the_middle(cli: Cli, job: Path, output: Path, **env: Any) -> None:
    """Start the job and kill everything once a pass is saved and a later snapshot committed."""
    process = cli.start("train", job, "--output", output, **env)
    first = output / "pass-00000" / "done"

    def has_begun() -> bool:
        return first.is_file() and newest(output) > first.stat().st_mtime

    wait_until(lambda: has_begun() or process.poll() is not None, "a snapshot follows the first pass")
    assert process.poll() is None, "it ended before it could be killed"
    cut_power(cli, process)


def newest(output: Path) -> float:
    """When the last snapshot was committed."""
    return max((p.stat().st_mtime for p in output.glob("snapshots/*/manifest.json")), default=0.0)


@pytest.mark.parametrize(
    "layout",
    [pytest.param((), marks=pytest.mark.slow), ("--trainers=1", "--pservers=4", "--ports-num=2")],
    ids=["as before", "another"],
)
def test_a_job_that_was_killed_ends_with_the_same_bits(
    cli: Cli, often: Path, tmp_path: Path, undisturbed: Undisturbed, layout: tuple[str, ...]
) -> None:
    output = tmp_path / "killed"
    kill_in_the_middle(cli, often, output)
    done = cli.run("resume", output, *layout, "--json")
    assert done.code == 0, done.err
    assert done.json["hash"] == undisturbed(PASSES)
    assert GOING_ON in (output / "node_0" / "server.log").read_text()
    assert_ledger_is_exact(output, passes=PASSES)


def test_a_damaged_snapshot_is_named_and_the_one_before_is_used(
    cli: Cli, often: Path, tmp_path: Path, undisturbed: Undisturbed
) -> None:
    output = tmp_path / "killed"
    kill_in_the_middle(cli, often, output)
    last = sorted(p.parent for p in output.glob("snapshots/*/manifest.json"))[-1]
    part = last / "part-0.bin"
    data = bytearray(part.read_bytes())
    data[len(data) // 2] ^= 1
    part.write_bytes(data)
    done = cli.run("resume", output, "--json")
    assert done.code == 0, done.err
    assert done.json["hash"] == undisturbed(PASSES)
    assert f"skipped snapshot={last.name} " in (output / "node_0" / "server.log").read_text()


def test_snapshots_by_rounds_are_at_multiples_and_resume(
    cli: Cli, often: Path, tmp_path: Path, undisturbed: Undisturbed
) -> None:
    edit(often, ("{every_s: 0.05, keep: 4}", "{every_s: 86400, every_rounds: 7, keep: 100}"))
    output = tmp_path / "killed"
    kill_in_the_middle(cli, often, output)
    found = candidates(output / "snapshots")[0]
    within = [manifest.round for manifest in found if manifest.batch]
    assert within and [round_ for round_ in within if round_ % 7] == []
    assert any(manifest.batch == 0 for manifest in found), "and one at the end of a pass"
    done = cli.run("resume", output, "--json")
    assert done.code == 0, done.err
    assert done.json["hash"] == undisturbed(PASSES)
    rounds = {manifest.round for manifest in candidates(output / "snapshots")[0] if manifest.batch}
    assert all(round_ % 7 == 0 for round_ in rounds) and len(rounds) > len(within)


def test_a_moved_job_takes_its_program_and_data_from_flags(
    cli: Cli, often: Path, tmp_path: Path, undisturbed: Undisturbed
) -> None:
    output = often.parent / "output"
    kill_in_the_middle(cli, often, output)
    elsewhere = often.parent.rename(tmp_path / "elsewhere")
    lost = cli.run("resume", elsewhere / "output")
    assert lost.code != 0
    assert "program is not where it was" in lost.err and "--job JOB.yaml" in lost.err
    done = cli.run("resume", elsewhere / "output", "--job", elsewhere / often.name, "--json")
    assert done.code == 0, done.err
    assert done.json["hash"] == undisturbed(PASSES)


def test_other_data_is_named_and_refused_until_accepted(cli: Cli, often: Path, tmp_path: Path) -> None:
    output = tmp_path / "killed"
    kill_in_the_middle(cli, often, output)
    data = often.parent / "0" / "data" / "train.txt"
    data.write_text(data.read_text() + "1\tgood\n")
    refused = cli.run("resume", output)
    assert refused.code == 15
    assert "shard 0: train.txt has changed" in refused.err and "--accept-changes" in refused.err
    done = cli.run("resume", output, "--accept-changes", "--json")
    assert done.code == 0, done.err
    assert done.json["phase"] == "finished"


def test_resuming_what_is_no_output_says_so(cli: Cli, tmp_path: Path) -> None:
    done = cli.run("resume", tmp_path)
    assert done.code != 0
    assert "is not a job's output" in done.err


def test_a_job_without_a_snapshot_begins_anew(cli: Cli, whole: Path, tmp_path: Path, undisturbed: Undisturbed) -> None:
    output = Path(shutil.copytree(whole, tmp_path / "output", ignore=shutil.ignore_patterns("snapshots", "pass-*")))
    (output / "ledger.jsonl").unlink()
    done = cli.run("resume", output, "--json")
    assert done.code == 0, done.err
    assert done.json["hash"] == undisturbed(MOST)


def test_power_that_fails_again_in_a_resume_changes_nothing(
    cli: Cli, often: Path, tmp_path: Path, undisturbed: Undisturbed
) -> None:
    machine = Machine(cli, often, tmp_path / "killed")
    log = machine.output / "node_0" / "server.log"

    def is_past(snapshots: int) -> bool:
        return log.is_file() and log.read_text().count(GOING_ON) > snapshots

    machine.fail_when(lambda: newest(machine.output), "a snapshot is committed")
    machine.fail_when(lambda: pids_of(machine.output), "the first process is started")
    machine.fail_when(lambda: is_past(0), "the snapshot is found and no trainer trains yet")
    done = machine.finish()
    assert done.code == 0, done.err
    assert done.json["hash"] == undisturbed(PASSES)
    assert is_past(1)
    sound = cli.run("verify", machine.output)
    assert sound.code == 0, sound.out
    assert_ledger_is_exact(machine.output, passes=PASSES)
