"""Runs a data provider: facts about a shard without reading it, then its samples.

The provider is visited in turns of some hundred samples: only then is the process in the user's
directory and are the global random generators theirs. A sample that cannot be yielded is reported
after those before it, so the first mistake in a file is the one that is reported.
"""

from __future__ import annotations

import hashlib
import inspect
import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from bireme.core.errors import BiremeError, ConfigScriptError, DataError
from bireme.programs.columns import InputType
from bireme.programs.config.graph import Graph, check_inputs
from bireme.programs.config.line_count import LineCount
from bireme.programs.config.provider import Provider, ProviderSettings, input_order
from bireme.programs.config.scripts import Complaint, Scripts, UserGenerators, visiting
from bireme.programs.program import Reader, SourceFacts
from bireme.programs.readers import open_reader

_OF_SCRIPTS = (Complaint, NameError, ImportError, SyntaxError)
"""Mistakes of scripts, whatever the data."""
_TURN = 512
"""Samples per visit: a visit costs some 50 microseconds."""


@dataclass(frozen=True)
class SourcePlan:
    """One data source as the config defined it."""

    role: str
    files: str | tuple[str, ...]
    """The list file, or the data files themselves."""
    provider: Provider
    name: str
    """module.object, for messages and the fingerprint."""
    args: Mapping[str, Any]


class ProviderSource:
    """The samples of one role: a `Source`."""

    def __init__(self, plan: SourcePlan, graph: Graph, scripts: Scripts) -> None:
        self._plan = plan
        self._graph = graph
        self._scripts = scripts

    def facts(self, workdir: Path) -> SourceFacts:
        """Say which files would be read in `workdir`, and how; runs init_hook, reads no sample."""
        files = self.files(workdir)
        with visiting(workdir, UserGenerators(0)):
            _, inputs = self.prepare(files)
        provider = self._plan.provider
        is_train = self._plan.role == "train"
        return SourceFacts(
            files=files,
            should_shuffle=is_train if provider.should_shuffle is None else provider.should_shuffle,
            is_cacheable=provider.is_cached,
            fingerprint=self._fingerprint(inputs),
            inputs=inputs,
        )

    def reader(self, workdir: Path, shard: int, *, seed: int, batch_size: int, cache: Path | None) -> Reader:
        """Read a shard: packed, as a provider is a generator and cannot be sought, or as a stream."""
        return open_reader(self, workdir, shard, seed=seed, batch_size=batch_size, cache=cache)

    def samples(self, workdir: Path, seed: int) -> ProviderSamples:
        return ProviderSamples(self, workdir, seed)

    def files(self, workdir: Path) -> tuple[str, ...]:
        listed = self._plan.files
        if not isinstance(listed, str):
            return listed
        try:
            text = (workdir / listed).read_text(encoding="utf-8")
        except OSError as error:
            fix = "write one data file a line into it, each relative to that directory"
            raise DataError(f"cannot read {self._plan.role} list {listed}: {error.strerror}", fix=fix) from error
        return tuple(line.strip() for line in text.splitlines() if line.strip())

    def prepare(self, files: Sequence[str]) -> tuple[ProviderSettings, tuple[InputType, ...]]:
        """Run init_hook and check the types it leaves; must be called on a visit."""
        plan, names = self._plan, self._graph.inputs
        settings = ProviderSettings(plan.provider)
        ours = {"file_list": list(files), "is_train": plan.role == "train", "input_order": list(names)}
        with self._scripts.blame(f"init_hook of {plan.name}"):
            if plan.provider.init_hook is not None:
                plan.provider.init_hook(settings, **_accepted(plan.provider.init_hook, ours), **plan.args)
        try:
            inputs = input_order(settings, names)
        except Complaint as error:
            raise ConfigScriptError(f"{plan.provider.where}: {error}", fix=error.fix) from error
        check_inputs(self._graph, inputs)
        return settings, inputs

    def open(self, settings: ProviderSettings, file: str, count: LineCount) -> Iterator[object]:
        """Call the provider for one file; must be called on a visit."""
        with self._scripts.counting(count):
            yielded = self._plan.provider.process(settings, file)
        if not hasattr(yielded, "__iter__"):
            raise ConfigScriptError(f"{self._plan.provider.where}: {self._plan.name} must yield samples")
        samples: Iterator[object] = iter(yielded)
        return samples

    def pull(
        self, samples: Iterator[object], inputs: Sequence[InputType], turn: list[tuple[object, ...]], count: LineCount
    ) -> bool:
        """Append up to a turn's samples, each as a tuple; returns whether there may be more."""
        marks = count.marks
        with self._scripts.blame(self._plan.name), self._scripts.counting(count):
            for sample in itertools.islice(samples, _TURN):
                try:
                    turn.append(_as_tuple(sample, inputs))
                except Complaint as error:
                    raise self._misyield(samples, error) from error
                marks.append(count.line)
        return len(turn) == _TURN

    def _misyield(self, samples: Iterator[object], error: Complaint) -> ConfigScriptError:
        """Name the line of the `yield` that the provider waits in."""
        frame = getattr(samples, "gi_frame", None)
        if frame is None:
            return ConfigScriptError(f"{self._plan.provider.where}: {error}")
        file, line = frame.f_code.co_filename, frame.f_lineno
        return ConfigScriptError(f"{file}:{line}: {error}{self._scripts.quote(file, line)}")

    def _fingerprint(self, inputs: Sequence[InputType]) -> str:
        """Hash everything but the data files that decides what is yielded; '' if an argument cannot be encoded."""
        try:
            args = msgspec.json.encode(self._plan.args, order="deterministic")
        except (TypeError, ValueError):
            return ""
        digest = hashlib.sha256()
        for path in self._scripts.sources():
            content = path.read_bytes()
            digest.update(f"{path.name} {len(content)}\n".encode() + content)
        digest.update(f"{self._plan.role} {self._plan.name}\n".encode())
        digest.update(args)
        digest.update(msgspec.json.encode(inputs))
        return digest.hexdigest()


class ProviderSamples(Iterator[tuple[object, ...]]):
    """A walk over a source's samples; `where` is the file that it is in."""

    def __init__(self, source: ProviderSource, workdir: Path, seed: int) -> None:
        self.where = ""
        self._source = source
        self._workdir = workdir
        self._generators = UserGenerators(seed)
        self._walk = self._read()
        self._count = LineCount("")
        self._index = 0

    def __next__(self) -> tuple[object, ...]:
        return next(self._walk)

    @property
    def last_line(self) -> str:
        """For an error about the sample yielded last: the last line that was read for it, if that is known."""
        before, line = self._count.marks[self._index : self._index + 2]
        return self._count.words(before, line)

    def _read(self) -> Iterator[tuple[object, ...]]:
        files = self._source.files(self._workdir)
        with visiting(self._workdir, self._generators):
            settings, inputs = self._source.prepare(files)
        for file in files:
            self.where = file
            yield from self._read_file(settings, inputs, file)

    def _read_file(
        self, settings: ProviderSettings, inputs: Sequence[InputType], file: str
    ) -> Iterator[tuple[object, ...]]:
        samples: Iterator[object] | None = None
        has_more, before = True, 0
        while has_more:
            turn: list[tuple[object, ...]] = []
            failure: BiremeError | None = None
            with visiting(self._workdir, self._generators):
                try:
                    if samples is None:
                        self._count = LineCount(file)
                        samples = self._source.open(settings, file, self._count)
                    del self._count.marks[:-1]
                    has_more = self._source.pull(samples, inputs, turn, self._count)
                except BiremeError as error:
                    failure = self._explained(error, file, before + len(turn))
            for self._index, sample in enumerate(turn):  # which `last_line` looks up
                yield sample
            before += len(turn)
            if failure is not None:
                raise failure

    def _explained(self, error: BiremeError, file: str, before: int) -> BiremeError:
        """A listed file that is not there is the data's fault, not the script's; a line in it that is wrong may be."""
        cause = error.__cause__
        if isinstance(error, ConfigScriptError) and not isinstance(cause, _OF_SCRIPTS):
            count = f"{before:,} {'sample' if before == 1 else 'samples'}"
            after = f"after {count}" if before else "before its first sample"
            after += self._count.words(self._count.marks[-1], self._count.line)
            error.why = error.why or f"{error.IN_DATA} {file}, {after}: one of the two does not suit the other"
        if not isinstance(cause, FileNotFoundError) or str(cause.filename) != file:
            return error
        missing = DataError(f"data file {file} does not exist", fix="check the list file that names it")
        missing.__cause__ = cause
        return missing


def _as_tuple(sample: object, inputs: Sequence[InputType]) -> tuple[object, ...]:
    if isinstance(sample, Mapping):
        if missing := [slot.name for slot in inputs if slot.name not in sample]:
            raise Complaint(f"yields a sample without {', '.join(missing)}; it has {', '.join(map(str, sample))}")
        return tuple(sample[slot.name] for slot in inputs)
    if len(inputs) == 1:
        return (_bare(sample, inputs[0]),)
    if not isinstance(sample, list | tuple):
        raise Complaint(f"yields {type(sample).__name__}, but the network has {len(inputs)} inputs")
    if len(sample) != len(inputs):
        names = ", ".join(slot.name for slot in inputs)
        raise Complaint(f"yields {len(sample)} values, but the network has {len(inputs)} inputs: {names}")
    return tuple(sample)


def _bare(sample: object, slot: InputType) -> object:
    """Accept both `yield value` and `yield value,` from a provider with a single slot."""
    if isinstance(sample, tuple) and len(sample) == 1:
        inner = sample[0]
        is_wrapped = isinstance(inner, list) if slot.is_ragged or slot.kind == "dense" else True
        return inner if is_wrapped else sample
    return sample


def _accepted(hook: Callable[..., Any], ours: Mapping[str, Any]) -> dict[str, Any]:
    """Of what we offer to init_hook, what its signature takes; the config's own args it must take all."""
    parameters = inspect.signature(hook).parameters
    takes_all = any(item.kind is item.VAR_KEYWORD for item in parameters.values())
    return {name: value for name, value in ours.items() if takes_all or name in parameters}
