"""Readers of a provider's samples: (seed, shard, pass, batch) names the samples of a batch.

A provider is a generator, so it cannot be sought; its shard is therefore packed once into arrays, kept in a cache under
a name made from the content of everything it depends on. Shuffling is a permutation of those rows, drawn for (seed,
shard, pass), so any batch of any pass can be had at once, by any trainer, with the same samples in it. A shard that is
too large for memory and needs no shuffling is read as a stream instead: the batches are the same, one at a time.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import logging
import tempfile
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import msgspec
import numpy as np
from numpy.typing import NDArray

from bireme.core import draws
from bireme.core.errors import ConfigScriptError, DataError
from bireme.programs.columns import Columns
from bireme.programs.packing import Packer, pack
from bireme.programs.program import SourceFacts

log = logging.getLogger(__name__)
CACHE_LIMIT_NBYTES = 20 << 30
STREAM_ABOVE_NBYTES = 4 << 30
"""Shards with more than this in their files are not packed where they can be read in order."""


class SampleSource(Protocol):
    """What is packed: samples one by one."""

    def facts(self, workdir: Path) -> SourceFacts: ...

    def samples(self, workdir: Path, seed: int) -> Iterator[tuple[object, ...]]:
        """Yield samples in the order of `facts().inputs`; `seed` feeds the provider's own randomness."""


class _ShardReader(ABC):
    """One shard's samples for one role."""

    def __init__(
        self, source: SampleSource, facts: SourceFacts, workdir: Path, shard: int, *, seed: int, batch_size: int
    ) -> None:
        self.shard = shard
        self._source = source
        self._workdir = workdir
        self._seed = seed
        self._batch_size = batch_size
        self._facts = facts

    @abstractmethod
    def open(self, pass_id: int) -> int:
        pass

    def batches(self, pass_id: int) -> int:
        return -(-self.open(pass_id) // self._batch_size)

    def _variant(self, pass_id: int) -> int | None:
        # A provider without a cache promise may yield other samples in every pass.
        return None if self._facts.is_cacheable else pass_id

    def _provider_seed(self, variant: int | None) -> int:
        return draws.stream_key(self._seed, "provider", self.shard, variant or 0) % 2**32

    def _samples_of(self, variant: int | None) -> Iterator[tuple[object, ...]]:
        return self._source.samples(self._workdir, self._provider_seed(variant))

    @contextlib.contextmanager
    def _naming(self, samples: object) -> Iterator[None]:
        """Name the shard in what is wrong with its samples, and what finds the wrong line."""
        shard = self.shard
        try:
            yield
        except DataError as e:
            raise DataError(f"shard {shard}: {e.what}", why=e.why, fix=e.fix or self._way_to_repair(samples)) from e
        except ConfigScriptError as e:
            if not e.why.startswith(e.IN_DATA):
                raise
            why = e.why.replace(e.IN_DATA, f"{e.IN_DATA} shard {shard}'s", 1)
            raise ConfigScriptError(e.what, why=why, fix=e.fix or self._way_to_repair(samples)) from e

    def _way_to_repair(self, samples: object) -> str:
        path = (self._workdir / getattr(samples, "where", "")).resolve()
        data = next((p for p in path.parents if p.name == "data" and p.parent.name == str(self.shard)), None)
        if data is None:
            return "correct that line, or the provider"
        return f"`bireme data check {data.parents[1]}` finds wrong lines; if it finds none, correct the provider"


class PackedReader(_ShardReader):
    """All samples of a shard in memory, batch by batch."""

    def __init__(
        self,
        source: SampleSource,
        facts: SourceFacts,
        workdir: Path,
        shard: int,
        *,
        seed: int,
        batch_size: int,
        cache: Path | None,
    ) -> None:
        super().__init__(source, facts, workdir, shard, seed=seed, batch_size=batch_size)
        self._cache = cache
        self._packed: tuple[int | None, Columns] | None = None
        self._order: tuple[int, NDArray[np.int64]] | None = None

    def open(self, pass_id: int) -> int:
        return len(self._samples(pass_id))

    def batch(self, pass_id: int, index: int) -> Columns:
        samples = self._samples(pass_id)
        begin = index * self._batch_size
        return samples.take(self._rows(pass_id, len(samples))[begin : begin + self._batch_size])

    def _rows(self, pass_id: int, count: int) -> NDArray[np.int64]:
        if self._order is None or self._order[0] != pass_id:
            if self._facts.should_shuffle:
                order = draws.draw_permutation(draws.stream_key(self._seed, "shuffle", self.shard, pass_id), count)
            else:
                order = np.arange(count, dtype=np.int64)
            self._order = (pass_id, order)
        return self._order[1]

    def _samples(self, pass_id: int) -> Columns:
        wanted = self._variant(pass_id)
        if self._packed is None or self._packed[0] != wanted:
            self._packed = (wanted, self._load(wanted))
        return self._packed[1]

    def _load(self, variant: int | None) -> Columns:
        if self._cache is None or not self._facts.fingerprint:
            return self._pack(variant)
        missing = [name for name in self._facts.files if not (self._workdir / name).is_file()]
        if missing:
            fix = "it is named in the shard's list file: correct the list, or split the data again"
            raise DataError(f"shard {self.shard}: there is no file {missing[0]}", fix=fix)
        key = content_key(self._facts, self._workdir, self._provider_seed(variant))
        return cached(self._cache, key, self._facts, lambda: self._pack(variant))

    def _pack(self, variant: int | None) -> Columns:
        samples = self._samples_of(variant)
        with self._naming(samples):
            return pack(samples, self._facts.inputs)


class StreamReader(_ShardReader):
    """One shard's samples in the order in which the provider yields them, one batch in memory at a time.

    The provider is walked once more to count, and again from its beginning to go back to an earlier batch.
    """

    def __init__(
        self, source: SampleSource, facts: SourceFacts, workdir: Path, shard: int, *, seed: int, batch_size: int
    ) -> None:
        super().__init__(source, facts, workdir, shard, seed=seed, batch_size=batch_size)
        assert not self._facts.should_shuffle, "a stream cannot be shuffled: this is a bug"
        self._count: tuple[int | None, int] | None = None
        self._walk: _Walk | None = None

    def open(self, pass_id: int) -> int:
        wanted = self._variant(pass_id)
        if self._count is None or self._count[0] != wanted:
            samples = self._samples_of(wanted)
            with self._naming(samples):
                self._count = (wanted, sum(1 for _ in samples))
        return self._count[1]

    def batch(self, pass_id: int, index: int) -> Columns:
        """The next batch costs no more than itself; an earlier one, all before it."""
        wanted = self._variant(pass_id)
        if self._walk is None or self._walk.variant != wanted or self._walk.at > index:
            self._walk = _Walk(wanted, self._samples_of(wanted), Packer(self._facts.inputs))
        walk = self._walk
        with self._naming(walk.samples):
            while True:
                batch = walk.packer.pack(walk.samples, self._batch_size)
                walk.at += 1
                if walk.at > index:
                    return batch


@dataclass(slots=True)
class _Walk:
    """How far a provider was read; `at` is the batch that comes next."""

    variant: int | None
    samples: Iterator[tuple[object, ...]]
    packer: Packer
    at: int = 0


def open_reader(
    source: SampleSource, workdir: Path, shard: int, *, seed: int, batch_size: int, cache: Path | None
) -> PackedReader | StreamReader:
    """Choose how a shard is read; the batches do not depend on it."""
    facts = source.facts(workdir)  # runs the user's init_hook, as each walk does by itself, with its own random numbers
    nbytes = sum(path.stat().st_size for name in facts.files if (path := workdir / name).is_file())
    if not facts.should_shuffle and nbytes > STREAM_ABOVE_NBYTES:
        log.info("streaming shard=%d nbytes=%d", shard, nbytes)
        return StreamReader(source, facts, workdir, shard, seed=seed, batch_size=batch_size)
    return PackedReader(source, facts, workdir, shard, seed=seed, batch_size=batch_size, cache=cache)


def content_key(facts: SourceFacts, workdir: Path, seed: int) -> str:
    """Name what a provider would yield by hashing all that decides it, the data files included."""
    digest = hashlib.sha256(f"1\0{facts.fingerprint}\0{seed}".encode())
    digest.update(msgspec.json.encode(facts.inputs))
    # A provider may read any file beside those that are listed, such as a dictionary.
    beside = (str(p.relative_to(workdir)) for p in (workdir / "data").rglob("*") if p.is_file())
    for name in sorted({*facts.files, *beside}):
        path = workdir / name
        try:
            about = path.stat()
            digest.update(name.encode() + b"\0" + _hash_file(path.resolve(), about.st_size, about.st_mtime_ns))
        except OSError as e:
            fix = f"it is named in the list file as {name!r}"
            raise DataError(f"cannot read {path.resolve()}: {e.strerror}", fix=fix) from e
    return digest.hexdigest()


@functools.lru_cache(maxsize=4096)
def _hash_file(path: Path, size: int, changed_ns: int) -> bytes:
    # Size and time are only part of the cache's key: a file that has changed since is hashed again.
    with path.open("rb") as f:
        return hashlib.file_digest(f, "sha256").digest()


def cached(directory: Path, key: str, facts: SourceFacts, make: Callable[[], Columns]) -> Columns:
    """Load packed samples by name, or make and keep them; a cache that cannot be used is never an error."""
    path = directory / f"{key}.packed"
    batch = _load_packed(path, facts)
    if batch is not None:
        with contextlib.suppress(OSError):
            path.touch()  # `_trim` drops what was used longest ago
        return batch
    batch = make()
    try:
        directory.mkdir(parents=True, exist_ok=True)
        _trim(directory)
        _save_packed(path, batch)
    except OSError as e:
        log.warning("failed to cache packed samples cause=%r", str(e))
    return batch


def _save_packed(path: Path, batch: Columns) -> None:
    from safetensors.numpy import save

    # Several trainers may write one key at once: each writes aside, and the rename is atomic.
    content = save({k: np.ascontiguousarray(v) for k, v in batch.to_arrays().items()})
    with tempfile.TemporaryDirectory(dir=path.parent) as aside:
        half = Path(aside) / "packed"
        with half.open("wb") as f:
            f.write(hashlib.blake2b(content, digest_size=32).digest())
            f.write(content)
        half.replace(path)


def _load_packed(path: Path, facts: SourceFacts) -> Columns | None:
    """Packed samples, if they are there and whole: other samples would train another model."""
    from safetensors import SafetensorError
    from safetensors.numpy import load

    try:
        content = memoryview(path.read_bytes())
        if hashlib.blake2b(content[32:], digest_size=32).digest() != content[:32]:
            log.warning("ignored damaged cache path=%s", path)
            return None
        return Columns.from_arrays(facts.inputs, load(bytes(content[32:])))
    except (OSError, SafetensorError, DataError):
        return None


def _trim(directory: Path) -> None:
    files = sorted(((p.stat().st_mtime, p.stat().st_size, p) for p in directory.glob("*.packed")), reverse=True)
    total = 0
    for _, nbytes, path in files:
        total += nbytes
        if total > CACHE_LIMIT_NBYTES:
            path.unlink(missing_ok=True)  # another trainer may trim the same directory
