"""(seed, shard, pass, batch) names the samples, however and by whomever they are read."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from bireme.core.errors import ConfigScriptError, DataError
from bireme.programs import readers
from bireme.programs.columns import Columns, InputType
from bireme.programs.program import SourceFacts
from bireme.programs.readers import PackedReader, content_key

INPUTS = (
    InputType(name="word", dim=1000, kind="sparse_binary"),
    InputType(name="label", dim=1000, kind="index"),
)


class Numbers:
    """A source that reads numbers from data.txt, one sample a line; counts how often it is walked."""

    def __init__(self, *, should_shuffle: bool = True, is_cacheable: bool = True) -> None:
        self.should_shuffle = should_shuffle
        self.is_cacheable = is_cacheable
        self.fingerprint = "numbers"
        self.walks = 0

    def facts(self, workdir: Path) -> SourceFacts:
        return SourceFacts(("data.txt",), self.should_shuffle, self.is_cacheable, self.fingerprint, INPUTS)

    def samples(self, workdir: Path, seed: int) -> Iterator[tuple[object, ...]]:
        self.walks += 1
        shift = 0 if self.is_cacheable else seed % 7
        for line in (workdir / "data.txt").read_text().split():
            number = int(line) + shift
            yield list(range(number % 4)), number


def write_numbers(workdir: Path, count: int) -> Path:
    (workdir / "data.txt").write_text("\n".join(map(str, range(count))))
    return workdir


def open_shard(
    workdir: Path, source: Numbers, *, shard: int = 0, seed: int = 1, cache: Path | None = None
) -> PackedReader:
    return PackedReader(source, source.facts(workdir), workdir, shard, seed=seed, batch_size=10, cache=cache)


def labels(batch: Columns) -> list[int]:
    ids = batch.columns["label"].ids
    assert ids is not None
    return ids.tolist()


def walk(reader: PackedReader | readers.StreamReader, pass_id: int) -> list[list[int]]:
    return [labels(reader.batch(pass_id, i)) for i in range(reader.batches(pass_id))]


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    count=st.integers(0, 45),
    places=st.lists(st.tuples(st.integers(0, 3), st.integers(0, 4)), max_size=8),
    is_cacheable=st.booleans(),
)
def test_seeking_any_batch_gives_the_samples_of_reading_in_order(
    tmp_path: Path, count: int, places: list[tuple[int, int]], is_cacheable: bool
) -> None:
    write_numbers(tmp_path, count)
    in_order = open_shard(tmp_path, Numbers(is_cacheable=is_cacheable))
    passes = [walk(in_order, pass_id) for pass_id in range(4)]
    seeking = open_shard(tmp_path, Numbers(is_cacheable=is_cacheable))
    for pass_id, index in places:
        if index < len(passes[pass_id]):
            assert labels(seeking.batch(pass_id, index)) == passes[pass_id][index]


@pytest.mark.parametrize(("count", "sizes"), [(0, []), (1, [1]), (10, [10]), (25, [10, 10, 5])])
def test_the_last_batch_may_be_short_and_an_empty_shard_has_none(tmp_path: Path, count: int, sizes: list[int]) -> None:
    reader = open_shard(write_numbers(tmp_path, count), Numbers())
    assert reader.open(0) == count
    assert [len(batch) for batch in walk(reader, 0)] == sizes
    assert sorted(n for batch in walk(reader, 0) for n in batch) == list(range(count))


def test_ragged_samples_stay_with_their_labels(tmp_path: Path) -> None:
    batch = open_shard(write_numbers(tmp_path, 25), Numbers()).batch(0, 1)
    offsets = batch.columns["word"].offsets
    assert offsets is not None
    assert np.diff(offsets).tolist() == [n % 4 for n in labels(batch)]


def test_shuffles_differ_by_pass_shard_and_seed_and_nothing_else(tmp_path: Path) -> None:
    write_numbers(tmp_path, 30)
    first = walk(open_shard(tmp_path, Numbers()), 0)
    assert walk(open_shard(tmp_path, Numbers()), 0) == first
    assert walk(open_shard(tmp_path, Numbers()), 1) != first
    assert walk(open_shard(tmp_path, Numbers(), shard=1), 0) != first
    assert walk(open_shard(tmp_path, Numbers(), seed=2), 0) != first


def test_without_shuffling_samples_come_as_they_are_written(tmp_path: Path) -> None:
    reader = open_shard(write_numbers(tmp_path, 25), Numbers(should_shuffle=False))
    assert [n for batch in walk(reader, 3) for n in batch] == list(range(25))


def test_a_cacheable_source_is_walked_once(tmp_path: Path) -> None:
    source = Numbers()
    reader = open_shard(write_numbers(tmp_path, 25), source)
    walk(reader, 0)
    walk(reader, 1)
    assert source.walks == 1


def test_a_source_without_the_promise_is_walked_for_every_pass(tmp_path: Path) -> None:
    source = Numbers(is_cacheable=False)
    reader = open_shard(write_numbers(tmp_path, 25), source)
    passes = [sorted(n for batch in walk(reader, p) for n in batch) for p in range(4)]
    assert source.walks == 4
    assert any(numbers != passes[0] for numbers in passes)


def test_packed_samples_are_found_in_the_cache(tmp_path: Path) -> None:
    write_numbers(tmp_path, 25)
    first, second = Numbers(), Numbers()
    wanted = walk(open_shard(tmp_path, first, cache=tmp_path / "cache"), 0)
    assert walk(open_shard(tmp_path, second, cache=tmp_path / "cache"), 0) == wanted
    assert (first.walks, second.walks) == (1, 0)
    assert len(list((tmp_path / "cache").iterdir())) == 1


@pytest.mark.parametrize("keep", [0, 7, 100, -1])
def test_a_torn_cache_file_is_made_again(tmp_path: Path, keep: int) -> None:
    write_numbers(tmp_path, 25)
    wanted = walk(open_shard(tmp_path, Numbers(), cache=tmp_path / "cache"), 0)
    (kept,) = (tmp_path / "cache").iterdir()
    whole = kept.read_bytes()
    kept.write_bytes(whole[:keep])
    source = Numbers()
    assert walk(open_shard(tmp_path, source, cache=tmp_path / "cache"), 0) == wanted
    assert source.walks == 1
    assert kept.read_bytes() == whole


def test_a_cache_that_cannot_be_written_is_no_error(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    write_numbers(tmp_path, 25)
    (tmp_path / "cache").write_text("a file where a directory should be")
    assert len(walk(open_shard(tmp_path, Numbers(), cache=tmp_path / "cache"), 0)) == 3
    assert "failed to cache packed samples" in caplog.text


def test_changed_data_has_another_key(tmp_path: Path) -> None:
    source = Numbers()
    facts = source.facts(write_numbers(tmp_path, 25))
    before = content_key(facts, tmp_path, 1)
    assert content_key(facts, tmp_path, 1) == before
    assert content_key(facts, tmp_path, 2) != before
    write_numbers(tmp_path, 26)
    assert content_key(facts, tmp_path, 1) != before
    source.fingerprint = "other numbers"
    write_numbers(tmp_path, 25)
    assert content_key(source.facts(tmp_path), tmp_path, 1) != before


def test_what_was_used_longest_ago_leaves_a_full_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cache = tmp_path / "cache"
    walk(open_shard(write_numbers(tmp_path, 25), Numbers(), cache=cache), 0)
    (old,) = cache.iterdir()
    monkeypatch.setattr(readers, "CACHE_LIMIT_NBYTES", old.stat().st_size - 1)
    walk(open_shard(write_numbers(tmp_path, 26), Numbers(), cache=cache), 0)
    assert not old.exists()


def test_a_missing_data_file_is_named(tmp_path: Path) -> None:
    reader = open_shard(tmp_path, Numbers(), cache=tmp_path / "cache")
    with pytest.raises(DataError, match=r"shard 0: there is no file data\.txt") as caught:
        reader.open(0)
    assert "list file" in caught.value.fix


def test_a_file_read_beside_the_listed_ones_changes_the_key(tmp_path: Path) -> None:
    write_numbers(tmp_path, 5)
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "dict.txt").write_text("a\nb\n")
    facts = Numbers().facts(tmp_path)
    before = content_key(facts, tmp_path, 1)
    (tmp_path / "data" / "dict.txt").write_text("b\na\n")
    assert content_key(facts, tmp_path, 1) != before


def test_a_source_of_unknown_dependencies_is_never_kept(tmp_path: Path) -> None:
    write_numbers(tmp_path, 5)
    source = Numbers()
    source.fingerprint = ""
    open_shard(tmp_path, source, cache=tmp_path / "cache").open(0)
    assert not (tmp_path / "cache").exists()


@pytest.mark.parametrize("position", [0, 40, -1])
def test_a_flipped_bit_in_the_cache_is_noticed(tmp_path: Path, position: int) -> None:
    write_numbers(tmp_path, 25)
    right = labels(open_shard(tmp_path, Numbers(), cache=tmp_path / "cache").batch(0, 0))
    (kept,) = (tmp_path / "cache").glob("*.packed")
    content = bytearray(kept.read_bytes())
    content[position] ^= 1
    kept.write_bytes(content)
    source = Numbers()
    assert labels(open_shard(tmp_path, source, cache=tmp_path / "cache").batch(0, 0)) == right
    assert source.walks == 1


class Torn(Numbers):
    """A source of a shard whose second line is wrong: for the provider, or for the slot that it fills."""

    def __init__(self, *, fails: bool) -> None:
        super().__init__()
        self.fingerprint, self.fails = "", fails

    def samples(self, workdir: Path, seed: int) -> Any:
        return Walk(self.fails)


class Walk:
    where = "data/train.txt"

    def __init__(self, fails: bool) -> None:
        self._samples = iter([([1], 1), None if fails else ([1], 1000)])

    def __iter__(self) -> Walk:
        return self

    def __next__(self) -> Any:
        sample = next(self._samples)
        if sample is None:
            why = "the provider was in data/train.txt, after 1 sample: one of the two does not suit the other"
            raise ConfigScriptError("spam.py:24: ValueError", why=why)
        return sample


@pytest.mark.parametrize("fails", [True, False])
def test_a_wrong_line_is_reported_with_shard_file_and_check(tmp_path: Path, fails: bool) -> None:
    (tmp_path / "shards/3/data").mkdir(parents=True)
    reader = open_shard(tmp_path / "shards/3", Torn(fails=fails), shard=3)
    with pytest.raises(ConfigScriptError if fails else DataError) as error:
        reader.open(0)
    if fails:
        assert error.value.why.startswith("the provider was in shard 3's data/train.txt, after 1 sample")
    else:
        assert error.value.what.startswith("shard 3: data/train.txt: sample 2: slot 'label'")
    check = f"`bireme data check {tmp_path}/shards` finds wrong lines; if it finds none, correct the provider"
    assert error.value.fix == check


@pytest.mark.parametrize(
    ("samples", "fix"),
    [
        ([([1], "1")], "correct the provider, or its input_types"),
        ([("1", 1)], "correct the provider, or its input_types"),
        ([([1], 1000)], "correct that line, or the provider"),
        ([([1], 1), ([1], None)], "correct that line, or the provider"),
    ],
)
def test_a_wrong_type_from_the_start_is_the_providers(tmp_path: Path, samples: list[Any], fix: str) -> None:
    source = Numbers()
    source.fingerprint, source.samples = "", lambda *_: iter(samples)  # type: ignore[method-assign]
    with pytest.raises(DataError) as error:
        open_shard(tmp_path, source).open(0)
    assert error.value.fix == fix


def test_a_wrong_line_outside_the_shards_names_no_check(tmp_path: Path) -> None:
    with pytest.raises(DataError) as error:
        open_shard(tmp_path, Torn(fails=False)).open(0)
    assert error.value.fix == "correct that line, or the provider"


def stream(workdir: Path, source: Numbers, *, seed: int = 1) -> readers.StreamReader:
    return readers.StreamReader(source, source.facts(workdir), workdir, 0, seed=seed, batch_size=10)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    count=st.integers(0, 45),
    places=st.lists(st.tuples(st.integers(0, 3), st.integers(0, 4)), max_size=8),
    is_cacheable=st.booleans(),
)
def test_a_stream_gives_the_batches_that_a_packed_shard_gives(
    tmp_path: Path, count: int, places: list[tuple[int, int]], is_cacheable: bool
) -> None:
    write_numbers(tmp_path, count)
    packed, streamed = (
        opened(tmp_path, Numbers(should_shuffle=False, is_cacheable=is_cacheable)) for opened in (open_shard, stream)
    )
    for pass_id, index in [*places, *((p, i) for p in range(4) for i in range(packed.batches(p)))]:
        assert (streamed.open(pass_id), streamed.batches(pass_id)) == (packed.open(pass_id), packed.batches(pass_id))
        if index < packed.batches(pass_id):
            batches = [reader.batch(pass_id, index).to_arrays() for reader in (packed, streamed)]
            one, other = ({k: (v.dtype, v.tobytes()) for k, v in arrays.items()} for arrays in batches)
            assert one == other


def test_a_stream_in_order_walks_its_source_once_and_to_count(tmp_path: Path) -> None:
    source = Numbers(should_shuffle=False)
    reader = stream(write_numbers(tmp_path, 45), source)
    assert [n for batch in walk(reader, 0) for n in batch] == list(range(45))
    assert source.walks == 2


def test_a_streams_wrong_sample_is_named_by_its_number(tmp_path: Path) -> None:
    (tmp_path / "data.txt").write_text("\n".join([*map(str, range(14)), "1000"]))
    for opened in (open_shard, stream):
        with pytest.raises(DataError, match=r"shard 0: data: sample 15: slot 'label': expected ids from 0 to 999"):
            opened(tmp_path, Numbers(should_shuffle=False)).batch(0, 1)


@pytest.mark.parametrize(("should_shuffle", "limit", "kind"), [
    (False, 100, readers.PackedReader), (False, 10, readers.StreamReader), (True, 10, readers.PackedReader)
])  # fmt: skip
def test_a_large_shard_that_is_not_shuffled_is_read_as_a_stream(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, should_shuffle: bool, limit: int, kind: type
) -> None:
    monkeypatch.setattr(readers, "STREAM_ABOVE_NBYTES", limit)
    source = Numbers(should_shuffle=should_shuffle)
    opened = readers.open_reader(source, write_numbers(tmp_path, 25), 0, seed=1, batch_size=10, cache=None)
    assert type(opened) is kind
