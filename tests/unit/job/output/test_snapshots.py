from __future__ import annotations

import errno
import os
import shutil
from pathlib import Path

import msgspec
import numpy as np
import pytest
from tests.unit.job.story import FACTS
from tests.unit.ps.failing_disk import FailingDisk, Forgets, PowerCut

from bireme.core.errors import SnapshotError, StorageError
from bireme.core.files import half_of
from bireme.job.coordination.effects import Base, Load
from bireme.job.output.journal import JournalSummary
from bireme.job.output.manifest import (
    MANIFEST,
    Inputs,
    Manifest,
    PartRecord,
    differences,
    rules_hash,
    seal,
    unseal,
)
from bireme.job.output.snapshots import BadSnapshot, candidates, check_all, commit, find_base, keep, load_newest
from bireme.ps.snapshot.snapshot_files import part_name, part_path, read_part, snapshot_name, write_part
from bireme.spec.model import Optimizer, Parameter, Updates, Wire
from bireme.spec.terms import Facts

INPUTS = Inputs(program="a" * 64, data="b" * 64, rules="c" * 64, shards=3, seed=1)


def write_cut(directory: Path, round_: int, view: int = 1, *, base: tuple[str, ...] = ()) -> Manifest:
    """The parts of two pservers, and the manifest that would commit them."""
    records = []
    for pserver in (0, 1):
        arrays = {"w": np.full(100 + 20 * pserver, round_, np.float32)}
        written = write_part(part_path(directory, round_, view, pserver), arrays, {"round": round_})
        records.append(
            PartRecord(file=part_name(pserver), sha256=written.sha256, nbytes=written.nbytes, pserver=pserver)
        )
    return Manifest(
        job="quick-start",
        round=round_,
        pass_id=0,
        batch=round_,
        samples=10 * round_,
        view=view,
        incarnation=1,
        created=1e9,
        inputs=INPUTS,
        pservers=2,
        dense_lanes=1,
        sparse_lanes=0,
        parts=tuple(records),
        base=base,
    )


def snapshot(directory: Path, round_: int, view: int = 1, *, base: tuple[str, ...] = ()) -> Path:
    manifest = write_cut(directory, round_, view, base=base)
    commit(directory, manifest)
    return directory / manifest.name


def names(directory: Path) -> list[str]:
    return sorted(p.name for p in directory.iterdir())


def flip(path: Path, bit: int) -> None:
    data = bytearray(path.read_bytes())
    data[bit // 8] ^= 1 << (bit % 8)
    path.write_bytes(data)


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    return tmp_path / "output" / "snapshots"


def test_the_newest_committed_snapshot_is_loaded(directory: Path) -> None:
    for round_ in (20, 40, 9):
        snapshot(directory, round_)
    write_cut(directory, 60)
    manifest, problems = load_newest(directory, INPUTS)
    assert (manifest.round, manifest.name, problems) == (40, "000000000040-0000000000000001", [])
    part = read_part(directory / manifest.name / "part-1.bin", sha256=manifest.parts[1].sha256)
    assert part.arrays["w"].tolist() == [40.0] * 120


def test_of_two_at_one_round_the_later_views_is_newer(directory: Path) -> None:
    snapshot(directory, 20, view=2**32 + 1)
    snapshot(directory, 20, view=2**33)
    assert [m.view for m in candidates(directory)[0]] == [2**33, 2**32 + 1]


def test_without_snapshots_there_are_no_candidates_or_problems(directory: Path) -> None:
    assert candidates(directory) == ([], [])
    with pytest.raises(SnapshotError, match="there is no snapshot in"):
        load_newest(directory, INPUTS)
    write_cut(directory, 20)
    assert candidates(directory) == ([], [])


RUN = 4
"""The runner's incarnation: what later ones commit is of its run."""


def find(directory: Path | None, facts: Facts = FACTS) -> tuple[Base, list[BadSnapshot]]:
    return find_base(JournalSummary(), directory, facts, Load(view=0, inputs=INPUTS, newer_than=RUN))


def own(round_: int) -> int:
    """A view of the run's own coordinator, another one for each round."""
    return (RUN + 1) << 32 | round_


def test_a_job_without_a_commit_begins_at_the_beginning(directory: Path) -> None:
    for place in (None, directory):
        assert find(place) == (Base(None, ()), [])
    write_cut(directory, 20, own(20))
    assert find(directory) == (Base(None, ()), [])


def test_a_job_with_only_damaged_manifests_ends_and_names_them(directory: Path) -> None:
    places = [snapshot(directory, round_, own(round_)) for round_ in (20, 40)]
    for place in places:
        flip(place / MANIFEST, 8 * 300)
    with pytest.raises(SnapshotError, match="can be used") as caught:
        find(directory)
    assert [place.name in caught.value.why for place in places] == [True, True]
    assert "its manifest is flipped" in caught.value.why


def test_a_damaged_manifest_beside_a_good_one_is_only_named(directory: Path) -> None:
    commit(directory, msgspec.structs.replace(write_cut(directory, 20, own(20)), incarnation=RUN + 1))
    broken = snapshot(directory, 40, own(40))
    (broken / MANIFEST).write_bytes(b"")
    base, problems = find(directory)
    assert base.manifest is not None and base.manifest.round == 20
    assert [problem.name for problem in problems] == [broken.name]


def test_a_new_run_ignores_an_earlier_ones_damaged_manifests(directory: Path) -> None:
    flip(snapshot(directory, 40, RUN << 32 | 1) / MANIFEST, 8 * 300)
    assert find(directory) == (Base(None, ()), [])
    commit(directory, msgspec.structs.replace(write_cut(directory, 20, own(20)), incarnation=RUN + 1))
    base, problems = find(directory)
    assert base.manifest is not None and problems == []
    shutil.rmtree(directory / base.manifest.name)
    with pytest.raises(SnapshotError, match="can be used"):
        find_base(JournalSummary(), directory, msgspec.structs.replace(FACTS, is_resumed=True), Load(0, INPUTS))


def test_a_resumed_snapshot_is_synced_again(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    place = snapshot(directory, 20)
    synced: list[Path] = []
    monkeypatch.setattr(os, "fsync", lambda fd: synced.append(Path(f"/proc/self/fd/{fd}").readlink()))
    find_base(JournalSummary(), directory, msgspec.structs.replace(FACTS, is_resumed=True), Load(0, INPUTS))
    assert synced == [place]


def test_a_manifest_comes_back_as_it_was(directory: Path) -> None:
    manifest = write_cut(directory, 20, view=2**64 - 1)
    commit(directory, manifest)
    assert candidates(directory) == ([manifest], [])


@pytest.mark.parametrize(
    ("harm", "what"),
    [
        (lambda p: os.truncate(p / "part-1.bin", 100), "part-1.bin is torn: 100 bytes of "),
        (lambda p: os.truncate(p / "part-1.bin", 0), "part-1.bin is torn: 0 bytes of "),
        (lambda p: flip(p / "part-0.bin", 3000), "part-0.bin has flipped bits"),
        (lambda p: (p / "part-1.bin").unlink(), "part-1.bin is missing"),
        (lambda p: (p / "manifest.json").write_bytes(b""), "its manifest is torn or foreign"),
        (lambda p: os.truncate(p / "manifest.json", 300), "its manifest is torn or foreign"),
        (lambda p: (p / "manifest.json").write_bytes(b"\xff\xfe"), "its manifest is torn or foreign"),
    ],
)
def test_harm_is_named_and_the_snapshot_before_is_used(directory: Path, harm: object, what: str) -> None:
    assert callable(harm)
    snapshot(directory, 20)
    harm(snapshot(directory, 40))
    manifest, problems = load_newest(directory, INPUTS)
    assert manifest.round == 20
    assert [p.name for p in problems] == [snapshot_name(40, 1)]
    assert problems[0].what.startswith(what)


def test_swapped_parts_are_recognised(directory: Path) -> None:
    snapshot(directory, 20)
    place = snapshot(directory, 40)
    (place / "part-0.bin").rename(place / "aside")
    (place / "part-1.bin").rename(place / "part-0.bin")
    (place / "aside").rename(place / "part-1.bin")
    manifest, problems = load_newest(directory, INPUTS)
    assert manifest.round == 20
    assert problems[0].what == f"part-0.bin is in fact {place.name}/part-1.bin"


def test_a_part_of_an_older_snapshot_is_recognised(directory: Path) -> None:
    older, newer = snapshot(directory, 20), snapshot(directory, 40)
    shutil.copy(older / "part-1.bin", newer / "part-1.bin")
    manifest, problems = load_newest(directory, INPUTS)
    assert manifest.round == 20
    assert problems[0].what == f"part-1.bin is in fact {older.name}/part-1.bin"


def test_an_older_manifest_in_a_newer_snapshot_is_recognised(directory: Path) -> None:
    older, newer = snapshot(directory, 20), snapshot(directory, 40)
    shutil.copy(older / "manifest.json", newer / "manifest.json")
    manifest, problems = load_newest(directory, INPUTS)
    assert manifest.round == 20
    assert problems[0].what == f"its manifest is that of {older.name}"


def test_a_flipped_bit_anywhere_in_a_snapshot_is_found(directory: Path) -> None:
    snapshot(directory, 20)
    place = snapshot(directory, 40)
    draw = np.random.default_rng(5)
    for path in sorted(place.iterdir()):
        good = path.read_bytes()
        for bit in draw.integers(0, 8 * (len(good) - 1), 60):  # the manifest's last byte is a mere line feed
            flip(path, int(bit))
            assert load_newest(directory, INPUTS)[0].round == 20, f"bit {bit} of {path.name}"
            path.write_bytes(good)
    assert load_newest(directory, INPUTS)[0].round == 40


def test_a_manifest_of_a_newer_bireme_is_named_as_such(directory: Path) -> None:
    manifest = write_cut(directory, 40)
    newer = seal(msgspec.structs.replace(manifest, version=2))
    with pytest.raises(SnapshotError, match="its manifest has format 2, this bireme reads format 1"):
        unseal(newer, manifest.name)


def test_without_a_whole_snapshot_problems_are_newest_first(directory: Path) -> None:
    for round_ in (20, 40, 60):
        place = snapshot(directory, round_)
    (place / "manifest.json").write_bytes(b"{}")
    (directory / snapshot_name(40, 1) / "part-0.bin").unlink()
    os.truncate(directory / snapshot_name(20, 1) / "part-1.bin", 1)
    with pytest.raises(SnapshotError, match=r"no snapshot in .* can be used") as caught:
        load_newest(directory, INPUTS)
    places = [caught.value.why.index(what) for what in ("its manifest is torn", "is missing", "is torn: 1 bytes")]
    assert places == sorted(places)


def test_a_snapshot_whose_base_is_broken_is_not_used(directory: Path) -> None:
    snapshot(directory, 10)
    base = snapshot(directory, 20)
    snapshot(directory, 30, base=(base.name,))
    assert load_newest(directory, INPUTS)[0].round == 30
    flip(base / "part-0.bin", 2000)
    manifest, problems = load_newest(directory, INPUTS)
    assert manifest.round == 10
    assert problems[0].what == f"it builds on {base.name}: part-0.bin has flipped bits: it does not have its hash"
    (base / "manifest.json").unlink()
    manifest, problems = load_newest(directory, INPUTS)
    assert manifest.round == 10
    assert f"it builds on {base.name}: it is not committed" in problems[0].what


def test_check_all_lists_every_snapshot(directory: Path) -> None:
    for round_ in (20, 40, 60):
        snapshot(directory, round_)
    flip(directory / snapshot_name(20, 1) / "part-0.bin", 4000)
    whole, problems = check_all(directory)
    assert [m.round for m in whole] == [60, 40]
    assert [p.name for p in problems] == [snapshot_name(20, 1)]


def test_changed_inputs_are_named_and_refused_unless_accepted(directory: Path) -> None:
    snapshot(directory, 20)
    now = Inputs(program="d" * 64, data=INPUTS.data, rules=INPUTS.rules, shards=4, seed=1)
    with pytest.raises(SnapshotError, match="was made from other inputs") as caught:
        load_newest(directory, now)
    assert caught.value.why == "the program was aaaaaaaaaaaa, now dddddddddddd; there were 3 shards, now 4"
    assert "--accept-changes" in caught.value.fix
    assert load_newest(directory, None)[0].round == 20


def test_every_input_has_words_for_its_change(directory: Path) -> None:
    manifest = write_cut(directory, 20)
    assert differences(manifest, INPUTS) == []
    other = Inputs(program="x", data="y", rules="z", shards=1, seed=2)
    assert len(differences(manifest, other)) == len(Inputs.__struct_fields__)


def test_the_rules_hash_sees_every_rule() -> None:
    p = Parameter(name="w", shape=(2, 3))
    hashes = {
        rules_hash([p], Optimizer(), Updates()),
        rules_hash([p, Parameter(name="b", shape=(3,))], Optimizer(), Updates()),
        rules_hash([Parameter(name="w", shape=(2, 3), l2=0.1)], Optimizer(), Updates()),
        rules_hash([p], Optimizer(learning_rate=0.5), Updates()),
        rules_hash([p], Optimizer(), Updates(mode="async")),
        rules_hash([p], Optimizer(), Updates(), Wire(gradients="float16")),
    }
    assert len(hashes) == 6
    assert rules_hash((p,), Optimizer(), Updates(), Wire()) in hashes


def test_a_cut_with_a_missing_or_torn_part_cannot_be_committed(directory: Path) -> None:
    manifest = write_cut(directory, 20)
    path = directory / manifest.name / "part-1.bin"
    os.truncate(path, 10)
    with pytest.raises(SnapshotError, match=r"cannot be committed: part-1\.bin is torn"):
        commit(directory, manifest)
    path.unlink()
    with pytest.raises(SnapshotError, match=r"cannot be committed: part-1\.bin is missing"):
        commit(directory, manifest)
    assert candidates(directory) == ([], [])


def test_a_cut_that_builds_on_no_commit_cannot_be_committed(directory: Path) -> None:
    base = write_cut(directory, 20)
    with pytest.raises(SnapshotError, match=f"it builds on {base.name}, which is not there"):
        commit(directory, write_cut(directory, 40, base=(base.name,)))


def test_a_second_commit_must_equal_the_first(directory: Path) -> None:
    manifest = write_cut(directory, 20)
    commit(directory, manifest)
    commit(directory, manifest)
    with pytest.raises(SnapshotError, match="was committed before"):
        commit(directory, msgspec.structs.replace(manifest, samples=1))
    assert load_newest(directory, INPUTS)[0] == manifest


def test_keep_removes_all_but_the_newest(directory: Path) -> None:
    for round_ in (10, 20, 30, 40):
        snapshot(directory, round_)
    assert keep(directory, 2) == [snapshot_name(20, 1), snapshot_name(10, 1)]
    assert names(directory) == [snapshot_name(30, 1), snapshot_name(40, 1)]
    assert keep(directory, 2) == []
    assert keep(directory, 0) == [snapshot_name(30, 1)], "never the newest"


def test_keep_keeps_what_the_newest_build_on(directory: Path) -> None:
    first = snapshot(directory, 10).name
    snapshot(directory, 15)
    second = snapshot(directory, 20, base=(first,)).name
    third = snapshot(directory, 30, base=(first, second)).name
    assert keep(directory, 1) == [snapshot_name(15, 1)]
    assert names(directory) == [first, second, third]
    snapshot(directory, 40)
    assert keep(directory, 1) == [third, second, first], "what builds on others goes before them"


def test_keep_removes_uncommitted_cuts_after_a_newer_commit(directory: Path) -> None:
    write_cut(directory, 10)
    assert keep(directory, 1) == []
    snapshot(directory, 20)
    write_cut(directory, 30)
    (directory / "notes").mkdir()
    assert keep(directory, 1) == [snapshot_name(10, 1)]
    assert names(directory) == [snapshot_name(20, 1), snapshot_name(30, 1), "notes"]


def test_keep_spares_an_open_cut_after_a_broken_snapshot(directory: Path) -> None:
    """View 1 left a broken round 40, so view 2 began again at round 20 and is about to commit round 30."""
    snapshot(directory, 20)
    flip(snapshot(directory, 40) / "part-0.bin", 2000)
    write_cut(directory, 30, view=2)
    snapshot(directory, 25, view=2)
    keep(directory, 1)
    assert load_newest(directory, INPUTS)[0].round == 25
    assert names(directory) == [snapshot_name(25, 2), snapshot_name(30, 2), snapshot_name(40, 1)]


def test_a_broken_manifest_goes_once_all_that_stay_are_newer(directory: Path) -> None:
    for round_ in (10, 20, 30):
        snapshot(directory, round_)
    for round_ in (10, 30):
        (directory / snapshot_name(round_, 1) / "manifest.json").write_bytes(b"?")
    assert keep(directory, 1) == [snapshot_name(10, 1)]
    assert names(directory) == [snapshot_name(20, 1), snapshot_name(30, 1)]


def test_a_full_disk_fails_the_commit_and_keeps_older_snapshots(directory: Path) -> None:
    snapshot(directory, 20)
    manifest = write_cut(directory, 40)
    half_of(directory / manifest.name / "manifest.json").symlink_to("/dev/full")
    with pytest.raises(StorageError, match="the disk is full"):
        commit(directory, manifest)
    assert load_newest(directory, INPUTS)[0].round == 20
    snapshot(directory, 60)
    assert load_newest(directory, INPUTS)[0].round == 60


def test_no_room_for_a_name_fails_the_commit_only(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def replace(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    snapshot(directory, 20)
    manifest = write_cut(directory, 40, base=(snapshot_name(20, 1),))
    with monkeypatch.context() as patch:
        patch.setattr(os, "replace", replace)
        with pytest.raises(StorageError, match="the disk is full"):
            commit(directory, manifest)
    assert load_newest(directory, INPUTS)[0].round == 20
    assert names(directory / manifest.name) == ["part-0.bin", "part-1.bin"]
    commit(directory, manifest)
    assert load_newest(directory, INPUTS)[0].round == 40


def test_a_disk_without_room_for_a_directory_is_reported(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def mkdir(path: object, mode: int = 0o777) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    snapshot(directory, 20)
    monkeypatch.setattr(os, "mkdir", mkdir)
    with pytest.raises(StorageError, match="the disk is full"):
        part_path(directory, 40, 1, 0)
    assert load_newest(directory, INPUTS)[0].round == 20


@pytest.mark.parametrize("forgets", ["nothing", "everything", "the first"])
def test_a_power_cut_leaves_the_last_committed_snapshot_whole(tmp_path: Path, forgets: Forgets) -> None:
    steps, is_done = 0, False
    while not is_done:
        directory = tmp_path / str(steps) / "output" / "snapshots"
        base = snapshot(directory, 10).name
        snapshot(directory, 20, base=(base,))
        write_cut(directory, 15)
        committed = 20
        with pytest.MonkeyPatch.context() as patch:
            disk = FailingDisk(directory.parent, patch, dies_at=steps, forgets=forgets)
            try:
                commit(directory, write_cut(directory, 30))
                committed = 30
                keep(directory, 1)
                is_done = True
            except PowerCut:
                pass
            disk.after_the_cut(patch)
        manifest, problems = load_newest(directory, INPUTS)
        assert (manifest.round, problems) in ((committed, []), (30, [])), f"step {steps}"
        assert check_all(directory)[1] == [], f"step {steps}"
        snapshot(directory, 40, view=2)
        keep(directory, 1)
        assert names(directory) == [snapshot_name(40, 2)], f"step {steps}"
        steps += 1
    assert steps > 20


def test_the_first_snapshot_survives_a_power_cut_after_commit(directory: Path) -> None:
    directory.parent.mkdir()
    with pytest.MonkeyPatch.context() as patch:
        disk = FailingDisk(directory.parent, patch, dies_at=10**6, forgets="everything")
        snapshot(directory, 10)
        disk.after_the_cut(patch)
    assert load_newest(directory, INPUTS)[0].round == 10
