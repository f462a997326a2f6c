from __future__ import annotations

import errno
import json
import os
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest

from bireme.core.errors import StorageError
from bireme.job.coordination import messages as m
from bireme.job.output import journal
from bireme.job.output.journal import LEDGER, METRICS, JournalSummary, append, counted, repair_tail

RUN = 4


def row(pass_id: int, shard: int) -> dict[str, object]:
    return {"pass": pass_id, "shard": shard, "read": 9, "trained": 9, "applied": 9}


def whole(pass_id: int, shards: int = 3) -> list[dict[str, object]]:
    return [row(pass_id, shard) for shard in range(shards)]


def closed(pass_id: int) -> m.PassClosed:
    return m.PassClosed(
        pass_id=pass_id, round=5, samples=27, samples_so_far=27, seconds=1.5, cost=0.5, evals={"error": 0.25}
    )


def events(run: int = RUN, passes: Sequence[int] = ()) -> list[dict[str, object]]:
    found: list[dict[str, object]] = [{"event": "view", "kind": "begin", "t": 0.0, "run": run, "unix": 1000.0 * run}]
    for pass_id in passes:
        found.append({"event": "pass", "t": 10.0 * (pass_id + 1), "view": 1, **msgspec.to_builtins(closed(pass_id))})
    return found


@pytest.fixture
def output(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A directory in which passes 0 and 1 have models, and pass 2 has half of one, 20 s after the run has begun."""
    monkeypatch.setattr(time, "time", lambda: 1000.0 * RUN + 20.0)
    for pass_id in range(3):
        (tmp_path / f"pass-{pass_id:05d}").mkdir()
    for pass_id in range(2):
        (tmp_path / f"pass-{pass_id:05d}" / "done").touch()
    return tmp_path


def rows_in(path: Path) -> list[Mapping[str, object]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_what_is_appended_is_there_a_line_each(output: Path) -> None:
    append(output / LEDGER, whole(0))
    append(output / LEDGER, [])
    append(output / LEDGER, whole(1))
    assert rows_in(output / LEDGER) == whole(0) + whole(1)


def test_whole_books_are_left_as_they_are(output: Path) -> None:
    append(output / LEDGER, whole(0) + whole(1))
    append(output / METRICS, events(passes=[0, 1]))
    before = [(output / name).read_bytes() for name in (LEDGER, METRICS)]
    assert repair_tail(output, 3, RUN) == JournalSummary(1, 20.0, [closed(0), closed(1)])
    assert [(output / name).read_bytes() for name in (LEDGER, METRICS)] == before


def test_a_date_set_back_makes_no_run_younger_than_its_start(output: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    append(output / METRICS, events())
    monkeypatch.setattr(time, "time", lambda: 1000.0 * RUN - 7200.0)
    assert 0.0 < repair_tail(output, 3, RUN).elapsed_s < 1.0


def test_a_job_without_books_has_no_past(output: Path) -> None:
    assert repair_tail(output, 3, RUN) == JournalSummary(-1, 0.0, [])
    assert not (output / LEDGER).exists()


@pytest.mark.parametrize("kept", range(1, 24, 5))
def test_half_a_line_at_the_end_is_cut_off(output: Path, kept: int) -> None:
    append(output / LEDGER, whole(0))
    append(output / METRICS, events(passes=[0]))
    whole_books = [(output / name).read_bytes() for name in (LEDGER, METRICS)]
    for name in (LEDGER, METRICS):
        torn = msgspec.json.encode(row(1, 0))[:kept]
        (output / name).write_bytes((output / name).read_bytes() + torn)
    assert repair_tail(output, 3, RUN).saved == 0
    assert [(output / name).read_bytes() for name in (LEDGER, METRICS)] == whole_books


@pytest.mark.parametrize("block", [7, 64, 1000])
def test_books_are_read_from_their_end_a_piece_at_a_time(
    output: Path, monkeypatch: pytest.MonkeyPatch, block: int
) -> None:
    monkeypatch.setattr(journal, "BLOCK_NBYTES", block)
    append(output / LEDGER, whole(0) + whole(1))
    append(output / METRICS, [*events(RUN - 1, [0]), *events(RUN, [0, 1])])
    with (output / METRICS).open("ab") as f:
        f.write(b'{"event":"progress"' * 20)
    assert repair_tail(output, 3, RUN) == JournalSummary(1, 20.0, [closed(0), closed(1)])
    assert rows_in(output / METRICS)[-1]["event"] == "pass"


def test_lines_from_before_a_run_began_are_not_read(output: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(journal, "BLOCK_NBYTES", 4096)
    append(output / METRICS, [*events(RUN - 1), *({"event": "progress", "pass": 0} for _ in range(10_000))])
    append(output / METRICS, events(RUN))
    pieces: list[int] = []
    real = journal._blocks

    def count(path: Path) -> Iterator[tuple[int, bytes]]:
        for begin, data in real(path):
            pieces.append(len(data))
            yield begin, data

    monkeypatch.setattr(journal, "_blocks", count)
    assert repair_tail(output, 3, RUN).elapsed_s == 20.0
    assert sum(pieces) <= 2 * 4096


def test_a_book_of_which_a_piece_cannot_be_read_is_left_as_it_is(output: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    append(output / LEDGER, whole(0) + whole(1) + whole(2))  # of which the last pass does not count
    before = (output / LEDGER).read_bytes()
    monkeypatch.setattr(journal, "BLOCK_NBYTES", 200)
    real = Path.open

    def open_badly(path: Path, *args: Any) -> Any:
        file = real(path, *args)
        return Half(file) if path.name == LEDGER and args == ("rb",) else file

    monkeypatch.setattr(Path, "open", open_badly)
    with pytest.raises(StorageError, match=r"cannot read .*ledger.jsonl: Stale file handle"):
        repair_tail(output, 3, RUN)
    monkeypatch.undo()
    assert (output / LEDGER).read_bytes() == before


class Half:
    """A file on a volume that is lost after the first piece was read."""

    def __init__(self, file: Any) -> None:
        self._file = file
        self._reads = 0

    def __enter__(self) -> Half:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()

    def seek(self, *args: int) -> int:
        return int(self._file.seek(*args))

    def read(self, nbytes: int) -> bytes:
        self._reads += 1
        if self._reads > 1:
            raise OSError(errno.ESTALE, os.strerror(errno.ESTALE))
        return bytes(self._file.read(nbytes))


def test_half_a_line_is_cut_off_on_a_full_disk(output: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    append(output / LEDGER, whole(0))
    append(output / METRICS, events(passes=[0]))
    with (output / METRICS).open("ab") as f:
        f.write(b'{"event":"pro')

    def refuse(path: Path, data: bytes) -> None:
        raise StorageError(f"the disk is full: cannot write {path}")

    monkeypatch.setattr(journal, "write_atomic", refuse)
    assert repair_tail(output, 3, RUN) == JournalSummary(0, 20.0, [closed(0)])
    assert rows_in(output / METRICS) == events(passes=[0])


def test_half_a_pass_is_removed_as_it_will_be_written_again(output: Path) -> None:
    append(output / LEDGER, [*whole(0), *whole(1)[:2]])
    append(output / METRICS, events(passes=[0, 1]))
    assert repair_tail(output, 3, RUN) == JournalSummary(0, 20.0, [closed(0)])
    assert rows_in(output / LEDGER) == whole(0)


def test_a_pass_without_a_finished_model_does_not_count(output: Path) -> None:
    append(output / LEDGER, [*whole(0), *whole(1), *whole(2)])
    append(output / METRICS, events(passes=[0, 1, 2]))
    assert repair_tail(output, 3, RUN).saved == 1
    assert rows_in(output / LEDGER) == whole(0) + whole(1)


def test_damage_in_the_middle_is_not_ours_to_hide(output: Path) -> None:
    append(output / LEDGER, whole(0))
    (output / LEDGER).write_bytes((output / LEDGER).read_bytes() + b'{"pass": \xff\n')
    append(output / LEDGER, whole(1))
    before = (output / LEDGER).read_bytes()
    assert repair_tail(output, 3, RUN).saved == 1
    assert (output / LEDGER).read_bytes() == before


def test_only_what_this_run_has_written_is_its_past(output: Path) -> None:
    append(output / LEDGER, whole(0) + whole(1))
    append(output / METRICS, [*events(RUN - 1, [0]), *events(RUN, [1])])
    assert repair_tail(output, 3, RUN) == JournalSummary(1, 20.0, [closed(1)])
    assert repair_tail(output, 3, RUN + 1) == JournalSummary(1, 0.0, [])


def test_mending_twice_changes_nothing_more(output: Path) -> None:
    append(output / LEDGER, [*whole(0), *whole(1)[:1]])
    append(output / METRICS, events(passes=[0]))
    first = repair_tail(output, 3, RUN)
    assert repair_tail(output, 3, RUN) == first


def test_a_pass_counts_when_every_shard_has_its_line() -> None:
    assert counted([*whole(0), row(1, 0), row(1, 2), *whole(2)], 3) == {0, 2}
    assert counted([*whole(0)], 4) == set()
