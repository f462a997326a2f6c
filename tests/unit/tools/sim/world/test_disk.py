"""The simulated disk keeps what was synced and promises nothing else."""

from __future__ import annotations

import errno
import random
from pathlib import Path

import pytest
from tools.sim.world.disk import Disk, Killed

from bireme.core.errors import StorageError
from bireme.core.files import mounted, write_atomic


def disk_with(*names: str) -> tuple[Disk, Path]:
    disk = Disk()
    for name in names:
        disk.at(name).mkdir(parents=True)
    for name in ("", *names):
        disk.sync_directory(disk.at(name))
    return disk, disk.at(names[0])


def write(path: Path, data: bytes, disk: Disk | None = None) -> None:
    with path.open("wb") as f:
        f.write(data)
        if disk is not None:
            f.flush()
            disk.sync(f)


def test_what_was_not_synced_is_lost_in_the_worst_case() -> None:
    disk, place = disk_with("d")
    write(place / "a", b"1")
    assert (place / "a").read_bytes() == b"1"
    assert not (disk.worst().at("d") / "a").exists()


def test_a_synced_file_under_an_unsynced_name_is_lost_too() -> None:
    disk, place = disk_with("d")
    write(place / "a", b"1", disk)
    assert not (disk.worst().at("d") / "a").exists()
    disk.sync_directory(place)
    assert (disk.worst().at("d") / "a").read_bytes() == b"1"


def test_a_synced_name_of_an_unsynced_file_is_an_empty_file() -> None:
    disk, place = disk_with("d")
    write(place / "a", b"1")
    disk.sync_directory(place)
    assert (disk.worst().at("d") / "a").read_bytes() == b""


def test_what_is_written_atomically_survives_every_power_cut() -> None:
    for seed in range(30):
        disk, place = disk_with("d")
        with mounted(disk):
            write_atomic(place / "a", b"old")
            write_atomic(place / "a", b"new")
        disk.cut_power(random.Random(seed))
        assert (place / "a").read_bytes() == b"new"


def test_power_cuts_tear_what_was_not_synced_in_many_ways() -> None:
    found = set()
    for seed in range(60):
        disk, place = disk_with("d")
        write(place / "a", b"12345678")
        disk.cut_power(random.Random(seed))
        found.add((place / "a").read_bytes() if (place / "a").exists() else None)
    assert None in found
    assert b"" in found
    assert b"12345678" in found
    assert len(found) > 5


@pytest.mark.parametrize("steps", range(6))
def test_dying_in_an_atomic_write_leaves_old_or_new(steps: int) -> None:
    disk, place = disk_with("d")
    with mounted(disk):
        write_atomic(place / "a", b"old")
        disk.fuse = steps
        with pytest.raises(Killed):
            write_atomic(place / "a", b"new")
    assert (place / "a").read_bytes() in (b"old", b"new")


def test_a_death_within_an_append_leaves_half_of_it() -> None:
    disk, place = disk_with("d")
    write(place / "a", b"first\n")
    disk.fuse = 1
    with pytest.raises(Killed), (place / "a").open("ab") as f:
        f.write(b"second\n")
    disk.fuse = -1
    assert (place / "a").read_bytes() == b"first\nsec"


def test_a_full_disk_refuses_snapshots_and_takes_small_files() -> None:
    disk, _ = disk_with("output/snapshots/one", "output/pass")
    disk.is_full = True
    with mounted(disk):
        with pytest.raises(StorageError, match="full"):
            write_atomic(disk.at("output/snapshots/one/part"), b"1")
        write_atomic(disk.at("output/pass/values"), b"1")


def test_a_name_is_created_only_once() -> None:
    disk, place = disk_with("d")
    disk.create(place / "1", b"")
    with pytest.raises(FileExistsError) as caught:
        disk.create(place / "1", b"")
    assert caught.value.errno == errno.EEXIST


def test_removing_a_tree_removes_it_name_by_name() -> None:
    disk, place = disk_with("d")
    write(place / "a", b"1")
    write(place / "b", b"1")
    disk.fuse = 1
    with pytest.raises(Killed):
        disk.remove_tree(place)
    disk.fuse = -1
    assert [path.name for path in place.iterdir()] == ["b"]
    disk.remove_tree(place)
    assert not place.exists()


def test_a_spoiled_file_differs_in_one_bit_or_is_cut_off() -> None:
    for seed in range(20):
        disk, place = disk_with("d")
        write(place / "a", b"12345678", disk)
        disk.spoil(place / "a", random.Random(seed))
        assert (place / "a").read_bytes() != b"12345678"


def test_a_cut_tail_may_come_back_and_the_rest_is_never_lost() -> None:
    seen = set()
    for seed in range(60):
        disk, place = disk_with("d")
        write(place / "a", b"whole half", disk)
        disk.sync_directory(place)
        disk.cut(place / "a", 5)
        with (place / "a").open("ab") as f:
            f.write(b" more")
        assert (place / "a").read_bytes() == b"whole more"
        assert (disk.worst().at("d") / "a").read_bytes() == b"whole half"
        disk.cut_power(random.Random(seed))
        seen.add((place / "a").read_bytes())
    assert {b"whole half", b"whole more"} < seen
    assert all(data.startswith(b"whole") for data in seen)


def test_what_was_cut_off_and_synced_stays_away() -> None:
    disk, place = disk_with("d")
    write(place / "a", b"whole half", disk)
    disk.sync_directory(place)
    disk.cut(place / "a", 5)
    with (place / "a").open("rb") as f:
        disk.sync(f)
    assert (disk.worst().at("d") / "a").read_bytes() == b"whole"
