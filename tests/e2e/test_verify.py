"""`bireme verify` on what a real job leaves: sound, damaged, and without the job's last word."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from bireme.data.split import split_lines
from tests.e2e.conftest import Cli, lay_out


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory, reviews: Path) -> Path:
    """The output of the small job, trained once for all tests here."""
    home = tmp_path_factory.mktemp("verify")
    job = lay_out(home / "job")
    split_lines(reviews, job.parent, 3)
    done = Cli(home).run("train", job, "--output", home / "output")
    assert done.code == 0, done.err
    return home / "output"


@pytest.fixture
def output(trained: Path, tmp_path: Path) -> Path:
    """A copy to do harm to."""
    return Path(shutil.copytree(trained, tmp_path / "output"))


def newest_snapshot(output: Path) -> Path:
    return max(p.parent for p in output.glob("snapshots/*/manifest.json"))


def test_what_a_job_has_left_is_sound_and_stays_as_it_is(cli: Cli, output: Path) -> None:
    before = {p: p.stat().st_mtime_ns for p in output.rglob("*")}
    done = cli.run("verify", output, "--json")
    assert done.code == 0, done.out + done.err
    assert (done.json["ok"], done.json["phase"], done.json["problems"]) == (True, "finished", [])
    assert done.json["snapshots"][0]["name"] == newest_snapshot(output).name
    assert {s["state"] for s in done.json["snapshots"]} == {"whole"}
    assert [(p["pass_id"], p["samples"], p["is_sound"]) for p in done.json["passes"]] == [
        (0, 601, True),
        (1, 601, True),
    ]
    for found in done.json["passes"]:
        model = output / f"pass-0000{found['pass_id']}"
        assert cli.run("model", "hash", model).out.strip() == found["hash"]
    assert done.json["resume_from"] is None
    assert {p: p.stat().st_mtime_ns for p in output.rglob("*")} == before


def test_all_damage_is_reported_at_once_with_what_to_do(cli: Cli, output: Path) -> None:
    snapshot = newest_snapshot(output)
    os.truncate(snapshot / "part-1.bin", 1000)
    done = cli.run("verify", output)
    assert done.code == 15
    assert f"✗ snapshots/{snapshot.name}: part-1.bin is torn: 1000 bytes of " in done.out
    assert done.err.startswith(f"error: 1 problem in {output}\n")

    weight = output / "pass-00001" / "___fc_layer_0__.w0"
    data = bytearray(weight.read_bytes())
    data[100] ^= 1
    weight.write_bytes(data)
    ledger = output / "ledger.jsonl"
    ledger.write_text("".join(ledger.read_text().splitlines(keepends=True)[1:]))
    done = cli.run("verify", output)
    assert done.code == 6
    assert "✗ pass-00001: ___fc_layer_0__.w0 differs from model.safetensors in 1 of " in done.out
    assert "✗ ledger.jsonl: pass 0 has no row of shard 0\n" in done.out
    assert done.out.count("    means: ") == done.out.count("    fix:   ") == 3
    assert done.err.startswith(f"error: 3 problems in {output}\n")


def test_a_job_that_did_not_finish_is_sound_and_can_resume(cli: Cli, output: Path) -> None:
    (output / "status.json").unlink()
    done = cli.run("verify", output)
    assert done.code == 0, done.out + done.err
    assert "· status.json: not there: the job was killed\n" in done.out
    assert f"resume {output}` would continue from round " in done.out
    assert done.out.endswith("\nsound\n")


def test_what_is_no_output_of_a_job_is_refused(cli: Cli, output: Path) -> None:
    done = cli.run("verify", output.parent / "nowhere")
    assert (done.code, "there is no directory" in done.err) == (2, True)
    done = cli.run("verify", output / "pass-00000")
    assert (done.code, f"did you mean {output}?" in done.err) == (3, True)
