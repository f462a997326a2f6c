"""A split loses nothing, doubles nothing, reorders nothing, whatever the bytes."""

from __future__ import annotations

import tempfile
from itertools import pairwise
from pathlib import Path
from unittest.mock import patch

from hypothesis import given, settings
from hypothesis import strategies as st

from bireme.data import split
from bireme.data.check import check_job
from bireme.data.split import share_lines, split_lines

# Newlines, carriage returns, broken UTF-8, NUL and tabs far more often than chance would give.
_CONTENT = st.lists(
    st.sampled_from([b"\n", b"\r\n", b"\xff\xfe", b"\0", b"\t", b"1\tgood", b"x"]) | st.binary(max_size=6),
    max_size=40,
).map(b"".join)


def _lines(data: bytes) -> int:
    return data.count(b"\n") + (not data.endswith(b"\n") and data != b"")


@settings(max_examples=200, deadline=None)
@given(content=_CONTENT, shards=st.integers(1, 9), chunk=st.integers(1, 50))
def test_every_line_is_in_exactly_one_shard_and_in_order(content: bytes, shards: int, chunk: int) -> None:
    with tempfile.TemporaryDirectory() as name, patch.object(split, "_CHUNK_BYTES", chunk):
        source, job = Path(name, "source"), Path(name, "job")
        source.mkdir()
        (source / "train.txt").write_bytes(content)
        report = split_lines(source, job, shards)
        parts = [(job / str(shard) / "data/train.txt").read_bytes() for shard in range(shards)]
    assert b"".join(parts) == content
    assert [_lines(part) for part in parts] == list(report.lines)
    assert max(report.lines) - min(report.lines) <= 1
    assert all(part.endswith(b"\n") for part, rest in pairwise(parts) if part and rest)


@settings(max_examples=60, deadline=None)
@given(contents=st.lists(_CONTENT, min_size=1, max_size=4), shards=st.integers(1, 5))
def test_several_files_together_are_balanced_within_one_line(contents: list[bytes], shards: int) -> None:
    with tempfile.TemporaryDirectory() as name:
        source, job = Path(name, "source"), Path(name, "job")
        source.mkdir()
        for place, content in enumerate(contents):
            (source / f"part-{place}").write_bytes(content)
        (source / "train.list").write_text("".join(f"data/part-{i}\n" for i in range(len(contents))))
        report = split_lines(source, job, shards)
        for place, content in enumerate(contents):
            parts = [(job / str(shard) / f"data/part-{place}").read_bytes() for shard in range(shards)]
            assert b"".join(parts) == content
    assert sum(report.lines) == sum(map(_lines, contents))
    assert max(report.lines) - min(report.lines) <= 1


@given(lines=st.integers(0, 10**12), shards=st.integers(1, 500), first=st.integers(0, 499))
def test_shares_add_up_and_differ_by_at_most_one(lines: int, shards: int, first: int) -> None:
    shares = share_lines(lines, shards, first % shards)
    assert sum(shares) == lines
    assert max(shares) - min(shares) <= 1


@settings(max_examples=60, deadline=None)
@given(train=_CONTENT, dictionary=_CONTENT, labels=_CONTENT, listed=_CONTENT)
def test_check_reports_on_any_bytes_without_crashing(
    train: bytes, dictionary: bytes, labels: bytes, listed: bytes
) -> None:
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name, "0", "data")
        directory.mkdir(parents=True)
        files = {"train.txt": train, "dict.txt": dictionary, "labels.list": labels, "test.list": listed}
        for file, content in files.items():
            (directory / file).write_bytes(content)
        report = check_job(Path(name))
    assert report.shards[0].lines == _lines(train)
