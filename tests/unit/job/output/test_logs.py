"""Log files as one stream in the order of time."""

from __future__ import annotations

import io
import json
import os
import time
from pathlib import Path

from bireme.job.output.logs import log_files, merged, write_logs


def write(folder: Path, name: str, *lines: str, year: int = 2026, month: int = 11) -> None:
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(f"{line}\n" for line in lines))
    stamp = time.mktime((year, month, 16, 12, 0, 0, 0, 0, -1))
    os.utime(path, (stamp, stamp))


def test_lines_of_all_nodes_come_in_the_order_of_time(tmp_path: Path) -> None:
    write(tmp_path, "node_0/train.log", "I1116 10:00:01.000000 1 a] one", "  more of one", "I1116 10:00:04.0 1 a] four")
    write(tmp_path, "node_1/train.log", "I1116 10:00:02.500000 1 a] two")
    write(tmp_path, "node_1/server.log", "I1116 10:00:03.000000 1 a] three")
    texts = [line.text.split("] ")[-1].strip() for line in merged(log_files(tmp_path, None, None))]
    assert texts == ["one", "more of one", "two", "three", "four"]


def test_files_that_were_moved_aside_come_first(tmp_path: Path) -> None:
    write(tmp_path, "node_0/train.log", "I1116 10:00:03.0 1 a] three")
    write(tmp_path, "node_0/train.log.1", "I1116 10:00:02.0 1 a] two")
    write(tmp_path, "node_0/train.log.2", "I1116 10:00:01.0 1 a] one")
    assert [line.text[-3:] for line in merged(log_files(tmp_path, 0, "trainer"))] == ["one", "two", "ree"]


def test_a_year_that_is_over_is_found_from_the_file(tmp_path: Path) -> None:
    write(tmp_path, "node_0/train.log", "I1231 23:59:59.0 1 a] old", "I0101 00:00:01.0 1 a] new", year=2027, month=1)
    first, second = merged(log_files(tmp_path, None, None))
    assert 0 < second.when - first.when < 3


def test_only_what_is_asked_for_is_printed(tmp_path: Path) -> None:
    for node in range(12):
        write(tmp_path, f"node_{node}/train.log", *(f"I1116 10:00:{s:02d}.0 1 a] {node}.{s}" for s in range(5)))
    sink = io.BytesIO()
    write_logs(tmp_path, {"node": 11, "role": "trainer", "last": 2, "since": None}, sink)
    found = [json.loads(line) for line in sink.getvalue().splitlines()]
    assert [(t["log"], t["line"][-4:]) for t in found] == [("node_11/train.log", "11.3"), ("node_11/train.log", "11.4")]
    since = time.mktime((2026, 11, 16, 10, 0, 4, 0, 0, -1))
    assert len(list(merged(log_files(tmp_path, None, None), since=since))) == 12
