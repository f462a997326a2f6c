"""Files to a volume and back: nothing is sent twice, everything is checked, what broke off continues."""

from __future__ import annotations

import io
import json
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, BinaryIO

import pytest

from bireme.core.errors import DataError, NetworkError, OutputExistsError, StorageError
from bireme.kube.volume import pod_end, transfer
from bireme.kube.volume.pod_end import FileChunk, part_of


class Volume:
    """The other end, in this process: the same functions that run in a pod."""

    def __init__(self, *, breaks_after: int | None = None, fails: Mapping[str, int] | None = None) -> None:
        self.breaks_after = breaks_after
        self.fails = Counter(fails or {})
        """How often each command finds no connection."""
        self.sent = 0
        self.commands: list[str] = []

    def ask(self, command: Sequence[str], *, stdin: BinaryIO | None = None) -> Any:
        return json.loads(self.run(command, stdin=stdin))

    def run(self, command: Sequence[str], *, stdin: BinaryIO | None = None, stdout: BinaryIO | None = None) -> bytes:
        verb, root = command[0], Path(command[1])
        self.commands.append(verb)
        if self.fails[verb]:
            self.fails[verb] -= 1
            raise NetworkError("the connection was refused")
        if verb == "have":
            assert stdin is not None
            return json.dumps(pod_end.have(root, json.load(stdin))).encode()
        if verb == "list":
            return json.dumps(pod_end.list_files(root)).encode()
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
            return json.dumps(pod_end.put(root, io.BytesIO(data[:limit]))).encode()
        except NetworkError:
            raise NetworkError("the connection was lost") from None

    def _get(self, root: Path, wanted: dict[str, int], stdout: BinaryIO) -> bytes:
        sink = io.BytesIO()
        pod_end.get(root, wanted, sink)
        limit, self.breaks_after = self.breaks_after, None
        self.sent += len(sink.getvalue())
        stdout.write(sink.getvalue()[:limit])
        if limit is not None:
            raise NetworkError("the connection was lost")
        return b""


class Pauses(list[float]):
    """Rests that take no time."""

    def __call__(self, seconds: float) -> None:
        self.append(seconds)


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


def test_a_push_that_breaks_off_continues_where_it_was(here: Path, tmp_path: Path) -> None:
    pod, there, pauses = Volume(breaks_after=2000), tmp_path / "there", Pauses()
    done = transfer.push(pod, transfer.shard_files(here), str(there), pause=pauses)
    assert (done.nbytes, done.skipped, pauses) == (sum(map(len, FILES.values())), 0, [1])
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


def test_a_fetch_brings_all_and_continues_where_it_broke_off(here: Path, tmp_path: Path) -> None:
    pod, target = Volume(breaks_after=2000), tmp_path / "target"
    wanted = pod.ask(["list", str(here)])
    done = transfer.fetch(pod, str(here), wanted, target, pause=Pauses())
    assert contents(target) == FILES and (done.files, done.nbytes) == (4, sum(map(len, FILES.values())))
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
    progress: list[tuple[int, int]] = []
    transfer.push(Volume(), transfer.shard_files(here), str(tmp_path / "there"), lambda *now: progress.append(now))
    total = sum(map(len, FILES.values()))
    assert progress[-1] == (total, total) and progress == sorted(progress)


@pytest.mark.parametrize("path", ["../up", "/etc/passwd", "a/../../b", "", ".", "a\0b"])
def test_nothing_outside_of_the_root_is_touched(path: str, tmp_path: Path) -> None:
    with pytest.raises(DataError, match="is not a path below"):
        pod_end.inside(tmp_path, path)


def test_a_flipped_byte_is_noticed_and_leaves_nothing(here: Path, tmp_path: Path) -> None:
    stream = bytearray(b"".join(pod_end.send_piece(here / "0/data/train.txt", "x", 0)))
    stream[200] ^= 1
    with pytest.raises(DataError, match="are not those that were sent"):
        pod_end.put(tmp_path / "there", io.BytesIO(bytes(stream)))
    assert contents(tmp_path / "there") in ({}, {".x.bireme-part": b""})


def test_a_piece_that_does_not_follow_what_is_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="only 0 bytes are there"):
        pod_end.write_piece(FileChunk("x", 5, 1, 6), iter([b"x"]), tmp_path / "x")


# A connection that is lost


def test_a_request_without_a_connection_is_tried_again_later(here: Path, tmp_path: Path) -> None:
    pauses = Pauses()
    transfer.push(Volume(fails={"have": 3}), transfer.shard_files(here), str(tmp_path / "there"), pause=pauses)
    assert contents(tmp_path / "there") == FILES and pauses == [1, 2, 4]
    pauses.clear()
    pod, target = Volume(fails={"list": 2, "get": 1}), tmp_path / "target"
    wanted = transfer.listing(pod, str(here), pauses)
    transfer.fetch(pod, str(here), wanted, target, pause=pauses)
    assert contents(target) == FILES and pauses == [1, 2, 1]
    (target / "shards.json").unlink()
    again = transfer.fetch(Volume(fails={"have": 3}), str(here), wanted, target, pause=pauses)
    assert contents(target) == FILES and again.skipped == 3


@pytest.mark.parametrize("verb", ["have", "put"])
def test_an_outage_that_lasts_is_reported_after_four_attempts(here: Path, tmp_path: Path, verb: str) -> None:
    pod, pauses = Volume(fails={verb: 9}), Pauses()
    with pytest.raises(NetworkError, match="the connection was refused"):
        transfer.push(pod, transfer.shard_files(here), str(tmp_path / "there"), pause=pauses)
    assert (pod.commands.count(verb), pauses) == (4, [1, 2, 4])


def test_a_file_that_is_here_stays_until_more_of_it_has_come(here: Path, tmp_path: Path) -> None:
    target = tmp_path / "target"
    transfer.fetch(Volume(), str(here), pod_end.list_files(here), target)
    (here / "shards.json").write_bytes(b"{} and more")
    with pytest.raises(NetworkError):
        transfer.fetch(Volume(fails={"get": 9}), str(here), pod_end.list_files(here), target, pause=Pauses())
    assert (target / "shards.json").read_bytes() == b"{}"
    transfer.fetch(Volume(), str(here), pod_end.list_files(here), target)
    assert contents(target) == contents(here)


def test_a_whole_file_that_lacks_its_name_is_not_fetched_again(here: Path, tmp_path: Path) -> None:
    target = tmp_path / "target"
    transfer.fetch(Volume(), str(here), pod_end.list_files(here), target)
    whole = target / "0/data/train.txt"
    whole.rename(part_of(whole))
    done = transfer.fetch(Volume(), str(here), pod_end.list_files(here), target)
    assert contents(target) == FILES and (done.nbytes, done.resumed) == (0, 1)


@pytest.mark.parametrize("cut", [5, 40, 100, 4_060, 4_110])
def test_a_stream_that_is_cut_anywhere_has_broken_off(here: Path, tmp_path: Path, cut: int) -> None:
    stream = b"".join(pod_end.send_piece(here / "0/data/train.txt", "x", 0))
    assert len(stream) > 4_110
    with pytest.raises(NetworkError, match="broke off"):
        pod_end.put(tmp_path / "there", io.BytesIO(stream[:cut]))


# A pod that means no good


class Liar(Volume):
    """A pod that sends what it likes."""

    def __init__(self, stream: bytes) -> None:
        super().__init__()
        self.stream = stream

    def _get(self, root: Path, wanted: dict[str, int], stdout: BinaryIO) -> bytes:
        stdout.write(self.stream)
        return b""


def piece(path: str, content: bytes = b"evil", offset: int = 0) -> bytes:
    import hashlib

    head = {"path": path, "offset": offset, "nbytes": len(content), "total": offset + len(content)}
    return json.dumps(head).encode() + b"\n" + content + hashlib.sha256(content).hexdigest().encode()


@pytest.mark.parametrize("name", ["../evil", "/tmp/evil", "a/../../evil"])
def test_a_name_out_of_the_target_is_refused_first(name: str, tmp_path: Path) -> None:
    (tmp_path / "evil").write_bytes(b"mine")
    pod = Liar(piece(name))
    with pytest.raises(DataError, match="is not a path below"):
        transfer.fetch(pod, "/job", {"model": 4, name: 9}, tmp_path / "target")
    assert pod.commands == [] and contents(tmp_path) == {"evil": b"mine"}


@pytest.mark.parametrize("name", ["../evil", "/tmp/evil", "other"])
def test_a_piece_that_was_not_asked_for_is_refused(name: str, tmp_path: Path) -> None:
    with pytest.raises(DataError, match="which was not requested"):
        transfer.fetch(Liar(piece(name)), "/job", {"model": 4}, tmp_path / "target")
    assert contents(tmp_path) == {}


def test_a_piece_that_comes_twice_or_from_elsewhere_is_refused(tmp_path: Path) -> None:
    for stream in (piece("model") + piece("model", b"more"), piece("model", offset=1)):
        with pytest.raises(DataError, match="which was not requested"):
            transfer.fetch(Liar(stream), "/job", {"model": 4, "log": 4}, tmp_path / "target")
    assert contents(tmp_path) == {"target/model": b"evil"}


def test_a_local_link_out_of_the_target_is_not_followed(tmp_path: Path) -> None:
    outside, target = tmp_path / "outside", tmp_path / "target"
    outside.mkdir()
    (outside / "mine").write_bytes(b"mine")
    target.mkdir()
    (target / "up").symlink_to(outside)
    (target / "own").symlink_to(outside / "mine")
    part_of(target / "half").symlink_to(outside / "mine")
    for name in ("up/mine", "up/new", "own", "half"):
        with pytest.raises(DataError, match="would be written outside of"):
            transfer.fetch(Liar(piece(name)), "/job", {name: 4}, target)
    assert contents(outside) == {"mine": b"mine"}
    (tmp_path / "link").symlink_to(target)
    transfer.fetch(Liar(piece("fine")), "/job", {"fine": 4}, tmp_path / "link")
    assert (target / "fine").read_bytes() == b"evil", "the target itself may be a link"


def test_what_does_not_come_is_missed(tmp_path: Path) -> None:
    with pytest.raises(NetworkError, match="1 of 2 files are missing"):
        transfer.fetch(Liar(piece("a")), "/job", {"a": 4, "b": 4}, tmp_path / "target", pause=Pauses())


@pytest.mark.parametrize("listing", [[], {"a": "4"}, {"a": -1}, None])
def test_a_listing_that_is_none_is_refused(listing: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pod_end, "list_files", lambda root: listing)
    with pytest.raises(DataError, match="sent no list of the files"):
        transfer.listing(Volume(), "/job", Pauses())


@pytest.mark.parametrize(
    "head",
    [b"[]", b"x", b'{"path": "a"}', b'{"path": "a", "offset": 0, "nbytes": -1, "total": 0}', b"[" * 70_000,
     b'{"path": 1, "offset": 0, "nbytes": 0, "total": 0}', b'{"path": "a", "offset": 9, "nbytes": 1, "total": 5}'],
)  # fmt: skip
def test_what_is_not_a_piece_is_refused(head: bytes, tmp_path: Path) -> None:
    with pytest.raises(DataError, match="is not a piece of a file"):
        pod_end.put(tmp_path / "there", io.BytesIO(head + b"\n" + b"content"))
    assert contents(tmp_path) == {}


def test_a_disk_that_cannot_be_written_ends_a_fetch_at_once(here: Path, tmp_path: Path) -> None:
    part_of(tmp_path / "target/shards.json").mkdir(parents=True)
    pod, pauses = Volume(), Pauses()
    with pytest.raises(StorageError, match="cannot write"):
        transfer.fetch(pod, str(here), pod_end.list_files(here), tmp_path / "target", pause=pauses)
    assert pauses == []


# What is in the way


@pytest.mark.parametrize("file", ["up", "up/target", "up/target/0", "up/target/0/data"])
def test_a_file_in_a_directorys_place_is_named_first(here: Path, tmp_path: Path, file: str) -> None:
    (tmp_path / file).parent.mkdir(parents=True, exist_ok=True)
    (tmp_path / file).write_text("mine")
    pod = Volume()
    with pytest.raises(OutputExistsError, match=f"{tmp_path / file} is a file") as caught:
        transfer.fetch(pod, str(here), pod_end.list_files(here), tmp_path / "up/target")
    assert "another directory" in caught.value.fix and pod.commands == []
    assert (tmp_path / file).read_text() == "mine"


def test_a_directory_in_a_files_place_is_named_first(here: Path, tmp_path: Path) -> None:
    (tmp_path / "target/shards.json").mkdir(parents=True)
    with pytest.raises(OutputExistsError, match=r"shards\.json is a directory"):
        transfer.fetch(Volume(), str(here), pod_end.list_files(here), tmp_path / "target")
    assert contents(tmp_path / "target") == {}


def test_replaced_files_are_named_before_anything_is_written(here: Path, tmp_path: Path) -> None:
    target = tmp_path / "target"
    (target / "0/data").mkdir(parents=True)
    (target / "0/data/train.txt").write_bytes(b"one\n")
    (target / "shards.json").write_bytes(b"[]")
    (target / "1/data").mkdir(parents=True)
    (target / "1/data/a b").write_bytes(b"x")
    before, found = contents(target), list[str]()

    def refuse(changed: list[str]) -> None:
        found.extend(changed)
        raise OutputExistsError("no")

    with pytest.raises(OutputExistsError):
        transfer.fetch(Volume(), str(here), pod_end.list_files(here), target, agree=refuse)
    assert sorted(found) == ["0/data/train.txt", "shards.json"] and contents(target) == before


# Names


def test_files_that_end_like_halves_of_files_are_brought(tmp_path: Path) -> None:
    names = ["a.part", "a.tmp", ".hidden.tmp", "b.bireme-part", ".bireme", "n" * 255]
    (tmp_path / "here").mkdir()
    for name in names:
        (tmp_path / "here" / name).write_text(name)
    part_of(tmp_path / "here" / "c").write_text("half of c")
    found = pod_end.list_files(tmp_path / "here")
    assert sorted(found) == sorted(names)
    files = {name: tmp_path / "here" / name for name in found}
    transfer.push(Volume(), files, str(tmp_path / "there"))
    transfer.fetch(Volume(), str(tmp_path / "there"), found, tmp_path / "back")
    assert contents(tmp_path / "there") == contents(tmp_path / "back") == {name: name.encode() for name in names}


# The pod's own waiting


def test_a_pod_stays_while_it_is_used_and_a_while_longer() -> None:
    busy = iter([False] * 10 + [True] * 1000)
    pauses = Pauses()
    pod_end.stay(86400, lambda: next(busy, False), pauses)
    assert sum(pauses) == pytest.approx(1010 * pod_end.LOOK_EVERY_S + pod_end.IDLE_S)
    pauses.clear()
    pod_end.stay(3600, lambda: True, pauses)
    assert sum(pauses) == pytest.approx(3600), "but not for ever"


def test_a_pod_is_used_while_another_of_its_commands_runs(tmp_path: Path) -> None:
    for pid, words in {"1": "python3 bireme volume wait 86400", "7": "sh -c ls", "self": "x volume put /job"}.items():
        (tmp_path / pid).mkdir()
        (tmp_path / pid / "cmdline").write_bytes(words.replace(" ", "\0").encode() + b"\0")
    (tmp_path / "8").mkdir()
    assert not pod_end.has_company(tmp_path)
    (tmp_path / "9").mkdir()
    (tmp_path / "9" / "cmdline").write_bytes(b"python3\0bireme\0volume\0put\0/job/x\0")
    assert pod_end.has_company(tmp_path)
