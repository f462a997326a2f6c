"""`bireme verify` on outputs made by the project's own writers, whole and damaged in every way that it knows."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import msgspec
import numpy as np
import pytest
from click.testing import CliRunner

from bireme.cli.jobs.verify import verify as command
from bireme.core.errors import BiremeError, ModelError, SnapshotError, SpecError, UsageError
from bireme.job.output.manifest import EndedPass, Inputs, Manifest, PartRecord, seal
from bireme.job.output.model import hash_values, pass_name, save_model, table_arrays, write_parameter
from bireme.job.output.snapshots import commit
from bireme.job.output.verify import PathCheck, verify
from bireme.ps.lanes.progress import COUNTS, ShardTotals, pack_counts
from bireme.ps.lanes.rounds import LaneCounts, Totals
from bireme.ps.snapshot.snapshot_files import part_name, part_path, snapshot_name, write_part
from bireme.ps.wire.row_frames import Block
from bireme.spec.job import Job
from bireme.spec.model import Parameter, Rows

SAMPLES = (7, 6, 0)
"""Of each shard; one is empty, which is legal."""
ROUNDS = 4
"""Of each pass."""
OLD, NEW = snapshot_name(2 * ROUNDS, 1), snapshot_name(3 * ROUNDS, 1)
PASSES = 3
Harm = Callable[[Path], object]


def values_of(pass_id: int) -> dict[str, np.ndarray[tuple[int, ...], np.dtype[np.float32]]]:
    return {"w0": np.arange(6, dtype=np.float32).reshape(2, 3) + pass_id, "wbias": np.array([-0.0], np.float32)}


def write_job(output: Path, **changes: object) -> None:
    job = Job(
        name="small", config="trainer_config.lr.py", config_args={}, data=str(output), shards=len(SAMPLES), pservers=2,
        trainers=1, port=None, ports_num=1, ports_num_for_sparse=0, passes=PASSES, seed=1, output=str(output),
        log_period=50, connect_timeout_s=1.0,
    )  # fmt: skip
    (output / "job.json").write_bytes(msgspec.json.encode(msgspec.structs.replace(job, **changes)))


def write_status(output: Path, phase: str = "finished", reason: str = "all passes done") -> None:
    (output / "status.json").write_text(json.dumps({"phase": phase, "reason": reason, "trainers": []}))


def write_pass(output: Path, pass_id: int) -> None:
    """A model, its rows of the ledger and its line of the metrics, as the coordinator has them written."""
    config = output.parent / "trainer_config.lr.py"
    config.write_text("settings()\n")
    closed = {"type": "PassClosed", "pass_id": pass_id, "samples": sum(SAMPLES), "cost": 0.5}
    save_model(output / pass_name(pass_id), values_of(pass_id), config, closed)
    with (output / "ledger.jsonl").open("a") as f:
        for shard, n in enumerate(SAMPLES):
            row = {"pass": pass_id, "shard": shard, "read": n, "trained": n, "applied": n}
            f.write(json.dumps(row, separators=(",", ":")) + "\n")
    with (output / "metrics.jsonl").open("a") as f:
        f.write(json.dumps({"event": "progress", "pass": pass_id, "samples": 3}) + "\n")
        f.write(json.dumps({"event": "pass", "t": 1.0, **closed}) + "\n")


def counted(round_: int, *, more: int = 0, in_pass: tuple[int, ...] = ()) -> LaneCounts:
    """What a lane of this job has counted after so many rounds, or too much of it."""
    pass_id = round_ // ROUNDS
    totals = {shard: Totals(n, 0.5, []) for shard, n in enumerate(in_pass)}
    samples = pass_id * sum(SAMPLES) + sum(in_pass) + more
    return LaneCounts(round_, pass_id, pass_id * ROUNDS, samples, frozenset(), totals)


def write_cut(output: Path, round_: int, *, ended: int | None = None, counts: tuple[LaneCounts, ...] = ()) -> Manifest:
    """The parts of two pservers, and the manifest that would commit them."""
    records = []
    counts = counts or (counted(round_),) * 2
    for pserver in (0, 1):
        arrays = {"w": np.full(100 + 20 * pserver, round_, np.float32)}
        written = write_part(
            part_path(output / "snapshots", round_, 1, pserver), arrays, {COUNTS: pack_counts(counts[pserver])}
        )
        records.append(
            PartRecord(file=part_name(pserver), sha256=written.sha256, nbytes=written.nbytes, pserver=pserver)
        )
    return Manifest(
        job="small", round=round_, pass_id=round_ // ROUNDS, batch=round_ % ROUNDS, samples=counts[1].samples, view=1,
        incarnation=1, inputs=Inputs(program="p", data="d", rules="r", shards=len(SAMPLES), seed=1), pservers=2,
        dense_lanes=1, sparse_lanes=0, parts=tuple(records),
        ended=None if ended is None else EndedPass(
            pass_id=ended, samples=(ended + 1) * sum(SAMPLES),
            shards={shard: ShardTotals.of(Totals(n, 0.5, [])) for shard, n in enumerate(SAMPLES)},
        ),
    )  # fmt: skip


def snapshot(output: Path, round_: int, *, ended: int | None = None) -> None:
    commit(output / "snapshots", write_cut(output, round_, ended=ended))


@pytest.fixture
def output(tmp_path: Path) -> Path:
    """What a finished job of three passes leaves."""
    place = tmp_path / "output"
    place.mkdir()
    write_job(place)
    write_status(place)
    for pass_id in range(PASSES):
        write_pass(place, pass_id)
    snapshot(place, 2 * ROUNDS, ended=1)
    snapshot(place, 3 * ROUNDS, ended=2)
    return place


@pytest.fixture
def killed(output: Path) -> Path:
    """The same, killed after its last model was saved and before the ledger was written."""
    (output / "status.json").unlink()
    write_job(output, passes=10)
    drop_lines(output / "ledger.jsonl", lambda line: '"pass":2' in line)
    drop_lines(output / "metrics.jsonl", lambda line: '"pass_id": 2' in line)
    return output


def drop_lines(path: Path, is_dropped: Callable[[str], bool]) -> None:
    path.write_text("".join(line for line in path.read_text().splitlines(keepends=True) if not is_dropped(line)))


def replace(path: Path, old: str, new: str) -> None:
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new, 1))


def flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


def swap(one: Path, other: Path) -> None:
    aside = one.with_name("aside")
    one.rename(aside)
    other.rename(one)
    aside.rename(other)


def faults_in(output: Path) -> list[tuple[str, str]]:
    return [(problem.where, problem.what) for problem in verify(output).problems]


def notes(output: Path) -> list[tuple[str, str]]:
    return [(f.where, f.what) for f in verify(output).findings if f.state == "note"]


def files_of(output: Path) -> dict[Path, tuple[int, bytes]]:
    return {p: (p.stat().st_mtime_ns, p.read_bytes()) for p in output.rglob("*") if p.is_file()}


def test_what_a_finished_job_leaves_is_sound(output: Path) -> None:
    verdict = verify(output)
    assert verdict.problems == []
    assert {f.state for f in verdict.findings} == {"good"}
    assert [(s.name, s.state, s.round, s.pass_id, s.batch) for s in verdict.snapshots] == [
        (NEW, "whole", 12, 3, 0),
        (OLD, "whole", 8, 2, 0),
    ]
    assert [(p.pass_id, p.is_sound, p.samples, p.hash) for p in verdict.passes] == [
        (n, True, 13, hash_values(values_of(n))) for n in range(PASSES)
    ]
    assert (verdict.phase, verdict.resume_from) == ("finished", None)
    assert PathCheck(f"snapshots/{NEW}", "good", "2 parts, round 12, batch 0 of pass 3, the newest good one") in (
        verdict.findings
    )


def test_nothing_on_disk_is_changed(output: Path) -> None:
    flip(output / "pass-00001" / "w0")
    write_cut(output, 14)
    before = files_of(output)
    verify(output)
    assert files_of(output) == before


@pytest.mark.parametrize(
    ("harm", "what"),
    [
        (lambda p: flip(p / "part-0.bin"), "part-0.bin has flipped bits: it does not have its hash"),
        (lambda p: os.truncate(p / "part-1.bin", 100), "part-1.bin is torn: 100 bytes of 768"),
        (lambda p: (p / "part-1.bin").unlink(), "part-1.bin is missing"),
        (lambda p: swap(p / "part-0.bin", p / "part-1.bin"), f"part-0.bin is in fact {NEW}/part-1.bin"),
        (lambda p: shutil.copy(p.parent / OLD / "part-0.bin", p), f"part-0.bin is in fact {OLD}/part-0.bin"),
        (lambda p: replace(p / "manifest.json", '"round": 12', '"round": 13'), "its manifest is flipped: it does not"),
        (lambda p: os.truncate(p / "manifest.json", 100), "its manifest is torn or foreign"),
        (lambda p: shutil.copy(p.parent / OLD / "manifest.json", p), f"its manifest is that of {OLD}"),
    ],
)
def test_snapshot_damage_is_named_and_the_one_before_is_good(output: Path, harm: Harm, what: str) -> None:
    write_status(output, "cancelled", "stopped on request")
    harm(output / "snapshots" / NEW)
    verdict = verify(output)
    (problem,) = verdict.problems
    assert (problem.where, problem.what.startswith(what)) == (f"snapshots/{NEW}", True), problem.what
    assert problem.means == f"the newest good one is {OLD}"
    assert problem.fix == "bring the file back from a copy, or remove its directory"
    assert [s.state for s in verdict.snapshots] == ["broken", "whole"]
    assert verdict.resume_from is not None
    assert (verdict.resume_from.name, verdict.resume_from.round) == (OLD, 8)


def test_a_manifest_of_another_format_is_named(output: Path) -> None:
    newer = msgspec.structs.replace(write_cut(output, 16), version=2)
    (output / "snapshots" / newer.name / "manifest.json").write_bytes(seal(newer))
    assert faults_in(output) == [(f"snapshots/{newer.name}", "its manifest has format 2, this bireme reads format 1")]


def test_a_file_that_was_no_part_when_it_was_committed_is_named(output: Path) -> None:
    manifest = write_cut(output, 16)
    path = output / "snapshots" / manifest.name / "part-0.bin"
    path.write_bytes(b"hello")
    record = PartRecord(
        file=path.name,
        sha256="2cf24dba5fb0a30e26e83b2ac5b9e29e1b161e5c1fa7425e73043362938b9824",
        nbytes=5,
        pserver=0,
    )
    commit(output / "snapshots", msgspec.structs.replace(manifest, parts=(record, manifest.parts[1])))
    where = f"snapshots/{manifest.name}"
    assert faults_in(output) == [(where, "part-0.bin is not a part of a snapshot: it starts with b'hello'")]


LATE = 3 * ROUNDS + 2
"""A round in the middle of a pass."""
LATER = snapshot_name(LATE, 1)


def test_a_snapshot_within_a_pass_is_checked_with_earlier_ones(output: Path) -> None:
    counts = (counted(LATE, in_pass=(3, 2, 0)),) * 2
    commit(output / "snapshots", write_cut(output, LATE, counts=counts))
    assert faults_in(output) == []


@pytest.mark.parametrize(
    ("counts", "what"),
    [
        ((counted(LATE), counted(LATE, more=1)), "part-1.bin has counted 40 samples, part-0.bin 39"),
        ((counted(LATE), counted(LATE - 1)), f"part-1.bin was cut at round {LATE - 1}, part-0.bin at round {LATE}"),
        (
            (counted(LATE, in_pass=(3, 2, 0)), counted(LATE, in_pass=(2, 3, 0))),
            "part-1.bin has not counted as many samples of shard 0 as part-0.bin",
        ),
        (
            (counted(LATE, more=2, in_pass=(3, 2, 0)),) * 2,
            "lanes had applied 41 samples before pass 3, the ledger has 39",
        ),
        ((counted(LATE, more=-1),) * 2, "lanes had applied 38 samples before pass 3, the ledger has 39"),
    ],
    ids=["one too many on a lane", "another round", "in the open pass", "two too many everywhere", "one too few"],
)
def test_lanes_that_have_counted_otherwise_are_found(output: Path, counts: tuple[LaneCounts, ...], what: str) -> None:
    commit(output / "snapshots", write_cut(output, LATE, counts=counts))
    assert faults_in(output) == [(f"snapshots/{LATER}", what)]


def test_a_manifest_whose_counts_differ_from_its_parts_is_found(output: Path) -> None:
    made = msgspec.structs.replace(write_cut(output, LATE), samples=40)
    commit(output / "snapshots", made)
    what = "its manifest has round 14, pass 3 and 40 samples, its parts have round 14, pass 3 and 39"
    assert faults_in(output) == [(f"snapshots/{LATER}", what)]


def test_the_end_of_a_pass_is_held_against_its_rows(output: Path) -> None:
    rows = json.loads(f"[{','.join((output / 'ledger.jsonl').read_text().splitlines())}]")
    for row, more in zip(rows[-3:-1], (1, -1), strict=True):  # the sum stays the same
        row |= {name: row[name] + more for name in ("read", "trained", "applied")}
    (output / "ledger.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    what = "lanes had applied 7 samples of shard 0 when pass 2 ended, the ledger says 8"
    assert faults_in(output) == [(f"snapshots/{NEW}", what)]


def test_without_a_whole_snapshot_a_job_cannot_resume(output: Path) -> None:
    write_status(output, "failed", "trainer 1 went away")
    for name in (OLD, NEW):
        (output / "snapshots" / name / "part-0.bin").unlink()
    verdict = verify(output)
    assert [p.means for p in verdict.problems] == ["no snapshot is left to resume from"] * 2
    assert all("train again into another output directory" in p.fix for p in verdict.problems)
    assert verdict.resume_from is None


def test_snapshots_that_were_removed_are_missed(output: Path) -> None:
    shutil.rmtree(output / "snapshots")
    verdict = verify(output)
    assert [(f.where, f.state) for f in verdict.findings if f.where == "snapshots"] == [("snapshots", "note")]
    assert not verdict.problems, "the models are all there"


def test_what_was_never_committed_or_finished_is_no_fault(output: Path) -> None:
    uncommitted = write_cut(output, 16).name
    (output / "snapshots" / NEW / ".part-0.bin.77.tmp").touch()
    (output / ".pass-00003.1.tmp").mkdir()
    (output / "snapshots" / f"{NEW}.bak").mkdir()
    shutil.copy(output / "snapshots" / NEW / "manifest.json", output / "snapshots" / f"{NEW}.bak")
    assert faults_in(output) == []
    assert notes(output) == [
        (f"snapshots/{uncommitted}", "not committed: it has no manifest, so no process uses it"),
        (f"snapshots/{NEW}.bak", "not checked: its name is not that of a snapshot, or it is new"),
        (".pass-00003.1.tmp", "unfinished: no process reads it, and it may be removed"),
        (f"snapshots/{NEW}/.part-0.bin.77.tmp", "unfinished: no process reads it, and it may be removed"),
    ]


@pytest.mark.parametrize(
    ("harm", "what"),
    [
        (lambda p: (p / "done").unlink(), "done is missing"),
        (lambda p: (p / "path.txt").unlink(), "path.txt is missing"),
        (lambda p: (p / "trainer_config.lr.py").unlink(), "trainer_config.lr.py is missing"),
        (lambda p: flip(p / "w0"), "w0 differs from model.safetensors in 1 of 6 values"),
        (lambda p: os.truncate(p / "w0", 30), "w0 is torn: 6 values need 40 bytes, it has 30"),
        (lambda p: (p / "w0").unlink(), "w0 is missing, model.safetensors has it"),
        (lambda p: shutil.copy(p / "w0", p / "w1"), "w1 is missing in model.safetensors"),
        (lambda p: write_parameter(p / "w0", np.zeros(5, np.float32)), "w0 has 5 values, in model.safetensors 6"),
        (lambda p: write_parameter(p / "wbias", np.zeros(1, np.float32)), "wbias differs from model.safetensors in 1"),
        (lambda p: (p / "model.safetensors").unlink(), "model.safetensors cannot be read: "),
        (lambda p: os.truncate(p / "model.safetensors", 40), "model.safetensors cannot be read: "),
    ],
)
def test_model_damage_is_named_and_other_passes_stay_sound(output: Path, harm: Harm, what: str) -> None:
    harm(output / "pass-00001")
    verdict = verify(output)
    (problem,) = verdict.problems
    assert (problem.where, problem.what[: len(what)]) == ("pass-00001", what)
    assert "bring the model back from a copy" in problem.fix
    assert [p.is_sound for p in verdict.passes] == [True, False, True]


def test_a_table_of_any_ids_is_compared_too(output: Path) -> None:
    table = Parameter(name="wide", shape=(2**63, 2), rows=Rows())
    place = output / "pass-00001"
    metrics = json.loads((place / "metrics.json").read_text())
    shutil.rmtree(place)
    arrays = table_arrays(table, 1, Block(np.array([3, 2**60], np.uint64), np.ones((2, 2), np.float32)))
    save_model(place, arrays, output.parent / "trainer_config.lr.py", metrics)
    assert faults_in(output) == []
    write_parameter(place / "wide.ids", np.array([4, 2**60], np.uint64))
    assert faults_in(output) == [("pass-00001", "wide.ids differs from model.safetensors in 1 of 2 values")]


ROW = '{"pass":1,"shard":1,"read":6,"trained":6,"applied":6}\n'


@pytest.mark.parametrize(
    ("harm", "what", "means"),
    [
        (lambda p: replace(p, ROW, 2 * ROW), "pass 1 has shard 1 more than once", "it may have counted twice"),
        (lambda p: replace(p, ROW, ""), "pass 1 has no row of shard 1", "it is unknown whether its model saw"),
        (lambda p: replace(p, ROW, "\x00\n"), "line 5 is not a row of a ledger", "the counts of a shard are lost"),
        (
            lambda p: replace(p, ROW, ROW.replace('"applied":6', '"applied":5')),
            "pass 1, shard 1: read 6, trained 6, applied 5",
            "its model saw 1 sample too few",
        ),
        (
            lambda p: replace(p, ROW, ROW.replace('"applied":6', '"applied":12')),
            "pass 1, shard 1: read 6, trained 6, applied 12",
            "its model saw 6 samples too many",
        ),
        (
            lambda p: replace(p, ROW, ROW.replace('"trained":6', '"trained":7')),
            "pass 1, shard 1: read 6, trained 7, applied 6",
            "trainers and pservers have counted differently",
        ),
        (
            lambda p: replace(p, ROW, ROW + ROW.replace('"shard":1', '"shard":3')),
            "pass 1 has shard 3",
            "the job does not have that shard",
        ),
        (lambda p: drop_lines(p, lambda line: '"pass":1' in line), "pass 1 is missing", "it is unknown whether"),
        (lambda p: drop_lines(p, lambda line: '"pass":0' in line), "pass 0 is missing", "it is unknown whether"),
        (lambda p: drop_lines(p, lambda line: '"pass":2' in line), "pass 2 is missing", "it is unknown whether"),
        (lambda p: p.unlink(), "pass 0 is missing", "it is unknown whether"),
        (
            lambda p: p.write_text(p.read_text() + '{"pass":2,"sha'),
            "line 10, the last one, is torn",
            "the job was killed while it wrote the line",
        ),
        (
            lambda p: p.write_text(p.read_text().rstrip("\n")),
            "line 9, the last one, is torn",
            "the job was killed while it wrote the line",
        ),
    ],
)
def test_damage_to_the_ledger_is_reported_with_its_meaning(output: Path, harm: Harm, what: str, means: str) -> None:
    harm(output / "ledger.jsonl")
    found = [p for p in verify(output).problems if p.what == what]
    assert [p.where for p in found] == ["ledger.jsonl"]
    assert found[0].means.startswith(means)
    assert found[0].fix


def test_rows_that_are_missing_are_reported_once(output: Path) -> None:
    replace(output / "ledger.jsonl", ROW, "")
    assert faults_in(output) == [("ledger.jsonl", "pass 1 has no row of shard 1")]


def test_a_pass_without_a_directory_is_missing(output: Path) -> None:
    shutil.rmtree(output / "pass-00001")
    verdict = verify(output)
    assert [(p.where, p.what, p.means) for p in verdict.problems] == [
        ("pass-00001", "pass 1 is missing", "the ledger says that it was saved")
    ]
    assert [(p.pass_id, p.is_sound, p.hash != "") for p in verdict.passes] == [
        (0, True, True),
        (1, False, False),
        (2, True, True),
    ]


def test_a_pass_without_files_is_missing_between_the_others(output: Path) -> None:
    shutil.rmtree(output / "pass-00001")
    drop_lines(output / "ledger.jsonl", lambda line: '"pass":1' in line)
    assert faults_in(output) == [("ledger.jsonl", "no pass between 0 and 2")]


def test_a_pass_with_an_absurd_number_does_not_take_forever(output: Path) -> None:
    replace(output / "ledger.jsonl", '"pass":2', f'"pass":{10**15}')
    assert ("ledger.jsonl", f"no pass between 2 and {10**15}") in faults_in(output)


def test_a_finished_job_must_have_its_last_pass(output: Path) -> None:
    shutil.rmtree(output / "pass-00002")
    drop_lines(output / "ledger.jsonl", lambda line: '"pass":2' in line)
    (problem,) = verify(output).problems
    assert (problem.where, problem.what) == ("pass-00002", "pass 2 is missing")
    assert problem.means == "the job has come further than that"


@pytest.mark.parametrize(
    ("file", "old", "new", "what"),
    [
        ("pass-00001/metrics.json", "13", "14", "pass 1 has 14 samples here and 13 in the ledger"),
        ("pass-00001/metrics.json", '"pass_id": 1', '"pass_id": 2', "it is that of pass 2"),
        ("pass-00001/metrics.json", "{", "", "it cannot be read: "),
        ("metrics.jsonl", '"pass_id": 1, "samples": 13', '"pass_id": 1, "samples": 1', "pass 1 has 1 sample here and"),
    ],
)
def test_totals_must_agree_with_the_ledger(output: Path, file: str, old: str, new: str, what: str) -> None:
    replace(output / file, old, new)
    ((where, found),) = faults_in(output)
    assert (where, found[: len(what)]) == (file, what)


def test_a_gap_in_the_metrics_is_named_and_no_fault(output: Path) -> None:
    replace(output / "metrics.jsonl", '{"event": "pass", "t": 1.0, "type": "PassClosed", "pass_id": 1', "{,")
    assert faults_in(output) == []
    assert notes(output) == [
        ("metrics.jsonl", "not readable: line 4; curves leave that out"),
        ("metrics.jsonl", "no line for pass 1: curves have a gap there"),
    ]


def test_a_pass_written_twice_after_a_crash_is_sound(output: Path) -> None:
    path = output / "metrics.jsonl"
    path.write_text(path.read_text() + path.read_text().splitlines(keepends=True)[-1])
    assert faults_in(output) == []


def test_the_last_ledger_row_is_no_fault_while_still_to_come(killed: Path) -> None:
    verdict = verify(killed)
    assert verdict.problems == []
    assert notes(killed) == [
        ("status.json", "not there: the job was killed"),
        ("ledger.jsonl", "pass 2 is not there yet: it is written next, or when the job is resumed"),
    ]
    assert (verdict.phase, verdict.passes[-1].samples) == ("died", None)
    assert verdict.resume_from is not None
    assert (verdict.resume_from.name, verdict.resume_from.round, verdict.resume_from.pass_id) == (NEW, 12, 3)


def test_the_last_ledger_row_is_missed_if_a_resume_skips_it(killed: Path) -> None:
    snapshot(killed, 3 * ROUNDS + 1)
    assert faults_in(killed) == [("ledger.jsonl", "pass 2 is missing")]


def test_half_a_last_ledger_row_is_repaired_by_a_resume(killed: Path) -> None:
    with (killed / "ledger.jsonl").open("a") as f:
        f.write('{"pass":2,"shard":0,"read":7,"trained":7,"applied":7}\n{"pass":2,"sh')
    problems = {p.what: p.fix for p in verify(killed).problems if p.where == "ledger.jsonl"}
    assert problems == {
        "line 8, the last one, is torn": "`bireme resume` removes it before it starts the job",
        "pass 2 has no row of shards 1, 2": "`bireme resume` writes all of this pass again",
    }


def test_what_a_running_job_will_write_is_not_missed(killed: Path) -> None:
    snapshot(killed, 3 * ROUNDS + 1)
    verdict = verify(killed, is_running=True)
    assert (verdict.problems, verdict.phase, verdict.resume_from) == ([], "running", None)


def test_a_model_from_elsewhere_needs_no_ledger(output: Path) -> None:
    for name in ("ledger.jsonl", "metrics.jsonl"):
        drop_lines(output / name, lambda line: '"pass":0' in line or '"pass_id": 0' in line)
    assert faults_in(output) == []
    assert notes(output) == [("ledger.jsonl", "pass 0 is not there: it was not trained into this directory")]


def test_a_job_that_has_left_nothing_yet_would_begin_anew(tmp_path: Path) -> None:
    write_job(tmp_path)
    verdict = verify(tmp_path)
    assert verdict.problems == []
    assert verdict.resume_from is not None
    assert (verdict.resume_from.name, verdict.resume_from.pass_id) == ("", 0)
    write_pass(tmp_path, 0)
    assert verify(tmp_path).resume_from is None, "resuming refuses to begin anew over a finished pass"


def test_a_torn_status_is_named(output: Path) -> None:
    os.truncate(output / "status.json", 10)
    ((where, what),) = faults_in(output)
    assert (where, what.startswith("it cannot be read: ")) == ("status.json", True)


def test_a_torn_job_is_named_and_the_rest_is_looked_at(output: Path) -> None:
    os.truncate(output / "job.json", 10)
    replace(output / "ledger.jsonl", ROW, "")
    assert [(where, what.partition(":")[0]) for where, what in faults_in(output)] == [
        ("job.json", "it cannot be read"),
        ("ledger.jsonl", "pass 1 has no row of shard 1"),
    ]


def test_other_directories_are_refused_with_a_hint(output: Path) -> None:
    with pytest.raises(UsageError, match="there is no directory"):
        verify(output / "nowhere")
    with pytest.raises(SpecError, match="is not a job's output: there is no") as caught:
        verify(output.parent)
    assert caught.value.fix == f"did you mean {output}?"
    with pytest.raises(SpecError) as caught:
        verify(output / "pass-00000")
    assert caught.value.fix == f"did you mean {output}?"


@pytest.mark.parametrize(
    ("file", "error"),
    [(f"snapshots/{NEW}/part-0.bin", SnapshotError), ("pass-00001/w0", ModelError), ("job.json", SpecError)],
)
def test_the_exit_code_says_what_kind_of_thing_is_wrong(
    output: Path, monkeypatch: pytest.MonkeyPatch, file: str, error: type[BiremeError]
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(output.parent / "state"))
    os.truncate(output / file, 20)
    done = CliRunner().invoke(command, [str(output)])
    assert isinstance(done.exception, error)
    assert done.exception.what == f"1 problem in {output}"
    assert f"✗ {file.rpartition('/')[0] or file}: " in done.output
    assert "    means: " in done.output and "    fix:   " in done.output
    done = CliRunner().invoke(command, [str(output), "--json"])
    assert done.exit_code == error.exit_code
    assert json.loads(done.output)["ok"] is False


@pytest.mark.parametrize(
    ("phase", "words"),
    [
        ("finished", "the job has finished\nsound\n"),
        ("cancelled", "would continue from round 12, batch 0 of pass 3\nsound\n"),
    ],
)
def test_the_output_says_how_the_job_would_resume(
    output: Path, monkeypatch: pytest.MonkeyPatch, phase: str, words: str
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(output.parent / "state"))
    write_status(output, phase, "so it is")
    done = CliRunner().invoke(command, [str(output)], catch_exceptions=False)
    assert done.exit_code == 0
    assert done.output.endswith(words)
    shown = json.loads(CliRunner().invoke(command, [str(output), "--json"], catch_exceptions=False).output)
    assert list(shown) == ["ok", "job", "phase", "problems", "notes", "snapshots", "passes", "resume_from"]
    point = {"snapshot": NEW, "round": 12, "pass_id": 3, "batch": 0}
    assert shown["resume_from"] == (None if phase == "finished" else point)
