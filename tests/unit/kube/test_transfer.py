"""Files to a volume and back: nothing is sent twice, everything is checked, what broke off goes on."""

from __future__ import annotations

import io
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, BinaryIO

import pytest

from bireme.core.errors import DataError, NetworkError
from bireme.kube import transfer, volume_end
from bireme.kube.volume_end import Piece, part_of


class Volume:
    """The other end, in this process: the same functions that run in a pod."""

    def __init__(self, *, breaks_after: int | None = None) -> None:
        self.breaks_after = breaks_after
        self.sent = 0
        self.commands: list[str] = []

    def ask(self, command: Sequence[str], *, stdin: BinaryIO | None = None) -> Any:
        return json.loads(self.run(command, stdin=stdin))

    def run(self, command: Sequence[str], *, stdin: BinaryIO | None = None, stdout: BinaryIO | None = None) -> bytes:
        verb, root = command[0], Path(command[1])
        self.commands.append(verb)
        if verb == "have":
            assert stdin is not None
            return json.dumps(volume_end.have(root, json.load(stdin))).encode()
        if verb == "list":
            return json.dumps(volume_end.list_files(root)).encode()
        if verb == "put":
            assert stdin is not None
            return self._put(root, stdin)
        assert stdin is not None and stdout is not None
        return self._get(root, json.load(stdin), stdout)

    def _put(self, root: Path, stdin: BinaryIO) -> bytes:
        data = stdin.read()
        self.sent += len(data)
        limit, self.breaks_after = self.breaks_after, None
        try:
            return json.dumps(volume_end.put(root, io.BytesIO(data[:limit]))).encode()
        except NetworkError:
            raise NetworkError("the connection was lost") from None

    def _get(self, root: Path, wanted: dict[str, int], stdout: BinaryIO) -> bytes:
        sink = io.BytesIO()
        volume_end.get(root, wanted, sink)
        limit, self.breaks_after = self.breaks_after, None
        self.sent += len(sink.getvalue())
        stdout.write(sink.getvalue()[:limit])
        if limit is not None:
            raise NetworkError("the connection was lost")
        return b""


FILES = {"0/data/train.txt": b"one\n" * 1000, "1/data/train.txt": b"", "shards.json": b"{}", "1/data/a b": b"x"}


@pytest.fixture
def here(tmp_path: Path) -> Path:
    for name, content in FILES.items():
        path = tmp_path / "here" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    return tmp_path / "here"


def contents(root: Path) -> dict[str, bytes]:
    return {str(p.relative_to(root)): p.read_bytes() for p in root.rglob("*") if p.is_file()}


def test_a_push_brings_every_shard_and_a_second_one_nothing(here: Path, tmp_path: Path) -> None:
    pod, there = Volume(), tmp_path / "there"
    (here / "notes.txt").write_text("no shard")
    files = transfer.shard_files(here)
    done = transfer.push(pod, files, str(there))
    assert contents(there) == FILES
    assert (done.files, done.nbytes, done.skipped) == (4, sum(map(len, FILES.values())), 0)
    again = transfer.push(pod, files, str(there))
    assert (again.nbytes, again.skipped, pod.commands) == (0, 4, ["have", "put", "have"])


def test_only_what_has_changed_is_sent_again(here: Path, tmp_path: Path) -> None:
    pod, there = Volume(), tmp_path / "there"
    transfer.push(pod, transfer.shard_files(here), str(there))
    (here / "0/data/train.txt").write_bytes(b"two\n" * 1000)
    done = transfer.push(pod, transfer.shard_files(here), str(there))
    assert (done.nbytes, done.skipped) == (4000, 3)
    assert (there / "0/data/train.txt").read_bytes() == b"two\n" * 1000


def test_a_push_that_breaks_off_goes_on_where_it_was(here: Path, tmp_path: Path) -> None:
    pod, there = Volume(breaks_after=2000), tmp_path / "there"
    transfer.push(pod, transfer.shard_files(here), str(there))
    assert contents(there) == FILES
    assert pod.commands == ["have", "put", "have", "put"]
    whole = sum(map(len, FILES.values()))
    assert pod.sent < 2 * whole - 500, "the part that had come was not sent again"


def test_a_part_of_something_else_is_not_gone_on_from(here: Path, tmp_path: Path) -> None:
    there = tmp_path / "there"
    target = there / "0/data/train.txt"
    target.parent.mkdir(parents=True)
    part_of(target).write_bytes(b"other\n")
    transfer.push(Volume(), transfer.shard_files(here), str(there))
    assert contents(there) == FILES


def test_a_fetch_brings_all_and_goes_on_where_it_broke_off(here: Path, tmp_path: Path) -> None:
    pod, target = Volume(breaks_after=2000), tmp_path / "target"
    wanted = pod.ask(["list", str(here)])
    done = transfer.fetch(pod, str(here), wanted, target)
    assert contents(target) == FILES and done.files == 4
    assert pod.sent < 2 * sum(map(len, FILES.values()))
    again = transfer.fetch(pod, str(here), wanted, target)
    assert (again.nbytes, again.skipped) == (0, 4)


def test_a_log_that_has_grown_is_fetched_from_where_it_was(here: Path, tmp_path: Path) -> None:
    pod, target = Volume(), tmp_path / "target"
    transfer.fetch(pod, str(here), pod.ask(["list", str(here)]), target)
    with (here / "0/data/train.txt").open("ab") as f:
        f.write(b"more\n")
    done = transfer.fetch(pod, str(here), pod.ask(["list", str(here)]), target)
    assert (done.nbytes, done.resumed) == (5, 1)
    assert contents(target) == contents(here)


def test_progress_ends_with_all(here: Path, tmp_path: Path) -> None:
    told: list[tuple[int, int]] = []
    transfer.push(Volume(), transfer.shard_files(here), str(tmp_path / "there"), lambda *now: told.append(now))
    total = sum(map(len, FILES.values()))
    assert told[-1] == (total, total) and told == sorted(told)


@pytest.mark.parametrize("path", ["../up", "/etc/passwd", "a/../../b", ""])
def test_nothing_outside_of_the_root_is_touched(path: str, tmp_path: Path) -> None:
    with pytest.raises(DataError, match="is not a path below"):
        volume_end.inside(tmp_path, path)


def test_a_flipped_byte_is_noticed_and_leaves_nothing(here: Path, tmp_path: Path) -> None:
    stream = bytearray(b"".join(volume_end.send_piece(here / "0/data/train.txt", "x", 0)))
    stream[200] ^= 1
    with pytest.raises(DataError, match="are not those that were sent"):
        volume_end.put(tmp_path / "there", io.BytesIO(bytes(stream)))
    assert contents(tmp_path / "there") in ({}, {"x.part": b""})


def test_a_piece_that_does_not_follow_what_is_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="only 0 bytes are there"):
        volume_end.write_piece(Piece("x", 5, 1, 6), iter([b"x"]), tmp_path / "x")
