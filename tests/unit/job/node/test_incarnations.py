from __future__ import annotations

import os
import threading
from pathlib import Path

import pytest

from bireme.core.errors import StorageError
from bireme.job.node.incarnations import DIRECTORY, HOLDER, Lease, newest, newest_of, take


def test_numbers_grow_from_one_and_say_who_took_them(tmp_path: Path) -> None:
    assert [take(tmp_path, who) for who in ("runner", "pserver 0", "trainer 1")] == [1, 2, 3]
    assert (tmp_path / DIRECTORY / "00000002").read_text() == f"pserver 0, process {os.getpid()}\n"


def test_an_incarnation_is_larger_than_any_before(tmp_path: Path) -> None:
    for _ in range(4):
        take(tmp_path, "runner")
    for name in ("00000001", "00000003"):
        (tmp_path / DIRECTORY / name).unlink()
    assert take(tmp_path, "runner") == 5


def test_what_is_no_number_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / DIRECTORY).mkdir()
    (tmp_path / DIRECTORY / ".nfs0001").touch()
    (tmp_path / DIRECTORY / "readme.txt").touch()
    assert take(tmp_path, "runner") == 1


def test_many_at_once_take_different_numbers(tmp_path: Path) -> None:
    at_once = threading.Barrier(8)
    taken: list[int] = []

    def run() -> None:
        at_once.wait(10.0)
        own = [take(tmp_path, "trainer") for _ in range(10)]
        assert own == sorted(own)
        taken.extend(own)

    threads = [threading.Thread(target=run) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30.0)
    assert sorted(taken) == list(range(1, 81))


def test_an_output_that_is_a_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / DIRECTORY).touch()
    with pytest.raises(StorageError, match=DIRECTORY):
        take(tmp_path, "runner")


def test_the_newest_number_of_one_process_is_known(tmp_path: Path) -> None:
    assert newest_of(tmp_path, "pserver 0") == 0
    taken = [take(tmp_path, who) for who in ("pserver 0", "pserver 1", "pserver 0", "trainer 0")]
    assert newest_of(tmp_path, "pserver 0") == taken[2]
    assert newest_of(tmp_path, "pserver 1") == taken[1]


def test_the_newest_number_belongs_to_its_process(tmp_path: Path) -> None:
    assert newest(tmp_path) == 0
    take(tmp_path, "a")
    take(tmp_path, "b")
    assert newest(tmp_path) == 2


def test_a_lease_is_lost_to_a_later_holder(tmp_path: Path) -> None:
    old = Lease.take(tmp_path, "pod-a")
    assert not old.is_lost()
    new = Lease.take(tmp_path, "pod-b")
    assert old.is_lost() and not new.is_lost()
    assert Lease(tmp_path, old.number).is_lost(), "its processes see it too"


def test_a_lease_is_lost_by_either_sign(tmp_path: Path) -> None:
    """On a network's volume a new name may be seen late; and the holder's word may be written by the older one."""
    old, new = Lease.take(tmp_path, "pod-a"), Lease.take(tmp_path, "pod-b")
    (tmp_path / DIRECTORY / f"{new.number:08d}").unlink()
    assert old.is_lost(), "by the holder's word"
    third = Lease.take(tmp_path, "pod-c")
    (tmp_path / HOLDER).write_text(f"{old.number}\n")
    assert old.is_lost(), "by the number that was taken"
    assert not third.is_lost()
    assert (tmp_path / HOLDER).read_text() == f"{third.number}\n", "which it says again"
