"""What a job was made from is remembered in enough detail to say what has changed."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import msgspec
import pytest

from bireme.core.errors import SnapshotError
from bireme.job.output.inputs import Origin, changes_between, origin_of, read_origin, refuse_changes, write_origin
from bireme.job.output.manifest import Manifest
from bireme.programs.program import Program
from bireme.spec.job import Job
from bireme.spec.model import Optimizer, Parameter, Snapshots, Wire

W, B = Parameter(name="w", shape=(4,), l2=1e-4), Parameter(name="b", shape=(2,), l2=1e-4)


@pytest.fixture
def job(tmp_path: Path) -> Job:
    """Two shards, a config with a provider, and a script that it does not use."""
    (tmp_path / "program").mkdir()
    (tmp_path / "program/config.py").write_text("define(module='provider')\n")
    (tmp_path / "program/provider.py").write_text("import words\n")
    (tmp_path / "program/words.py").write_text("")
    (tmp_path / "program/other.py").write_text("")
    for shard in "01":
        (tmp_path / shard / "data").mkdir(parents=True)
        (tmp_path / shard / "data/train.txt").write_text("1\tgood\n")
    return Job(
        name="small", config=str(tmp_path / "program/config.py"), config_args={}, data=str(tmp_path), shards=2,
        pservers=1, trainers=1, port=None, ports_num=1, ports_num_for_sparse=1, passes=2, seed=1,
        output=str(tmp_path / "out"), log_period=50, connect_timeout_s=1.0, run_incarnation=3,
        snapshots=Snapshots(path=str(tmp_path / "out/snapshots")),
    )  # fmt: skip


def program(**changes: Any) -> Program:
    plain = {"fingerprint": "f", "parameters": (W, B), "optimizer": Optimizer(), "batch_size": 128}
    return cast(Program, SimpleNamespace(name="config.py", wants_async=False, **(plain | changes)))


def changes(job: Job, then: Origin, **now: Any) -> list[str]:
    return list(changes_between(then, origin_of(job, program(**now))))


def test_nothing_has_changed_when_nothing_has(job: Job) -> None:
    assert changes(job, origin_of(job, program())) == []


def test_a_rule_is_named_with_both_values(job: Job) -> None:
    then = origin_of(job, program())
    stronger = msgspec.structs.replace(W, l2=2e-4)
    assert changes(job, then, parameters=(stronger, B)) == ["regularization of `w`: l2 0.0001 → 0.0002"]
    faster = Optimizer(learning_rate=0.5)
    assert changes(job, then, optimizer=faster) == ["optimizer: learning_rate 0.001 → 0.5"]
    assert changes(job, then, batch_size=64) == ["batch_size 128 → 64"]


def test_what_changes_all_parameters_alike_is_named_once(job: Job) -> None:
    stronger = tuple(msgspec.structs.replace(p, l2=2e-4) for p in (W, B))
    found = changes(job, origin_of(job, program()), parameters=stronger)
    assert found == ["regularization of `w` and 1 more: l2 0.0001 → 0.0002"]


def test_a_parameter_that_comes_or_goes_is_named(job: Job) -> None:
    then = origin_of(job, program())
    assert changes(job, then, parameters=(W,)) == ["parameter `b` is gone"]
    new = Parameter(name="v", shape=(1,))
    assert changes(job, then, parameters=(W, B, new)) == ["parameter `v` is new"]


def test_how_gradients_travel_is_named(job: Job) -> None:
    coded = msgspec.structs.replace(job, wire=Wire(gradients="float16"))
    assert changes(coded, origin_of(job, program())) == ["wire: gradients float32 → float16"]


def test_a_config_that_computes_something_else_is_named(job: Job) -> None:
    then = origin_of(job, program())
    Path(job.config).write_text("define(module='provider')  # and more\n")
    assert changes(job, then) == []  # only a remark: the same is computed
    assert changes(job, then, fingerprint="g") == ["config.py has changed"]


def test_an_argument_is_named_with_both_values(job: Job) -> None:
    other = msgspec.structs.replace(job, config_args={"size": "8"})
    assert changes(other, origin_of(job, program()), fingerprint="g") == ["argument size: none → 8"]


@pytest.mark.parametrize(("script", "is_named"), [("provider", True), ("words", True), ("other", False)])
def test_a_script_that_the_config_leads_to_is_named(job: Job, script: str, is_named: bool) -> None:
    then = origin_of(job, program())
    path = Path(job.config).with_name(f"{script}.py")
    path.write_text(path.read_text() + "pass\n")
    assert changes(job, then) == ([f"{script}.py has changed"] if is_named else [])


def test_files_and_shards_are_named(job: Job) -> None:
    then, data = origin_of(job, program()), Path(job.data)
    (data / "1/data/train.txt").write_text("1\tvery good\n")
    (data / "0/data/test.txt").write_text("")
    (data / "2/data").mkdir(parents=True)
    assert changes(job, then) == [
        "shard 0: test.txt is new",
        "shard 1: train.txt has changed (7 → 12 bytes)",
        "shard 2 is new",
    ]


def test_another_split_of_the_same_lengths_is_noticed(job: Job) -> None:
    then = origin_of(job, program())
    (Path(job.data) / "shards.json").write_text("{}")
    assert changes(job, then) == ["shards.json has changed"]


def test_an_origin_reads_as_written_and_a_flipped_one_does_not(job: Job, tmp_path: Path) -> None:
    origin = origin_of(job, program())
    write_origin(tmp_path / "s", 3, origin)
    assert read_origin(tmp_path / "s", 3) == origin
    path = tmp_path / "s/inputs-00000003.json"
    path.write_text(path.read_text().replace('"batch_size": 128', '"batch_size": 129'))
    assert read_origin(tmp_path / "s", 3) is None
    path.write_text("{")
    assert read_origin(tmp_path / "s", 3) is None


def test_a_snapshot_belongs_to_the_last_run_before_it(job: Job, tmp_path: Path) -> None:
    origins = {since: origin_of(job, program(batch_size=since)) for since in (1, 9)}
    for since, origin in origins.items():
        write_origin(tmp_path / "s", since, origin)
    assert [read_origin(tmp_path / "s", n) for n in (0, 1, 8, 9, 12)] == [None, *(origins[n] for n in (1, 1, 9, 9))]


def manifest(origin: Origin, incarnation: int) -> Manifest:
    return Manifest(
        job="small", round=7, pass_id=0, batch=7, samples=9, view=1 << 32, incarnation=incarnation,
        inputs=origin.inputs, pservers=1, dense_lanes=1, sparse_lanes=1, parts=(),
    )  # fmt: skip


def test_a_snapshot_of_other_inputs_is_refused_with_what_changed(job: Job) -> None:
    then = origin_of(job, program())
    write_origin(Path(job.snapshots.path), 3, then)
    refuse_changes(job, manifest(then, 4), then)
    with pytest.raises(SnapshotError, match="was made from other inputs") as caught:
        refuse_changes(job, manifest(then, 4), origin_of(job, program(batch_size=64)))
    assert caught.value.why == "batch_size 128 → 64"
    assert "--accept-changes" in caught.value.fix


def test_a_job_without_a_snapshot_is_compared_with_how_it_began(job: Job) -> None:
    write_origin(Path(job.snapshots.path), 3, origin_of(job, program()))
    with pytest.raises(SnapshotError, match="the job was begun with other inputs"):
        refuse_changes(job, None, origin_of(job, program(batch_size=64)))


def test_without_a_snapshots_origin_the_hashes_decide(job: Job) -> None:
    then, now = origin_of(job, program()), origin_of(job, program(batch_size=64))
    refuse_changes(job, manifest(then, 4), now)
    write_origin(Path(job.snapshots.path), 3, origin_of(job, program(fingerprint="of another run")))
    refuse_changes(job, manifest(then, 4), now)


def test_many_changes_are_counted_after_the_first_few(job: Job) -> None:
    then = origin_of(job, program())
    write_origin(Path(job.snapshots.path), 3, then)
    for number in range(9):
        (Path(job.data) / f"0/data/{number}.txt").write_text("")
    with pytest.raises(SnapshotError) as caught:
        refuse_changes(job, manifest(then, 4), origin_of(job, program()))
    assert caught.value.why.endswith("shard 0: 5.txt is new; and 3 more")
