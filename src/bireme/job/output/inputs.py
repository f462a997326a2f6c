"""A job's inputs: their hashes, and an *origin* with enough detail to name what has changed since.

A snapshot is not resumed with other inputs; hashes in its manifest decide that. A hash does not show what changed, so
each run also writes its origin beside the snapshots, `inputs-<incarnation>.json`, sealed with a hash of its own, and
`bireme resume` compares origins before it starts a process. Without an origin, only the hashes are compared.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator, Mapping, Sequence
from itertools import count, takewhile, zip_longest
from pathlib import Path

import msgspec

from bireme import __version__
from bireme.core.errors import SnapshotError
from bireme.core.files import storage_errors, write_atomic
from bireme.core.text import LISTED_CHANGES, first_of
from bireme.job.output.data_hash import files_of, fingerprint_of
from bireme.job.output.manifest import Inputs, Manifest, rules_hash, seal
from bireme.job.preflight import updates_of
from bireme.programs.program import Program
from bireme.spec.job import Job
from bireme.spec.model import Optimizer, Parameter, Updates, Wire

VERSION = 2
_NAME = re.compile(r"inputs-([0-9]{8})\.json")


class Origin(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A run's inputs in detail, to be compared with those of a later one."""

    version: int = VERSION
    inputs: Inputs
    bireme: str
    config: str
    args: dict[str, str]
    scripts: dict[str, str]
    """The config and the user's scripts that it names, each with its hash."""
    batch_size: int
    parameters: tuple[Parameter, ...]
    optimizer: Optimizer
    updates: Updates
    wire: Wire
    shards: tuple[dict[str, tuple[int, str]], ...]
    """The files of each shard with lengths and hashes, shards that the job does not use included."""


class _Sealed(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    sha256: str
    origin: msgspec.Raw


def origin_of(job: Job, program: Program) -> Origin:
    """The origin of a job that started now; reads the shards' files."""
    updates, data = updates_of(program, job.updates, job.wire), Path(job.data)
    folders = takewhile(Path.is_dir, (data / str(shard) / "data" for shard in count()))
    with storage_errors(str(data)):
        shards = tuple(files_of(folder) for folder in folders)
    return Origin(
        inputs=Inputs(
            program=program.fingerprint,
            data=fingerprint_of(data, shards[: job.shards]),
            rules=rules_hash(program.parameters, program.optimizer, updates, job.wire),
            shards=job.shards,
            seed=job.seed,
        ),
        bireme=__version__,
        config=Path(job.config).name,
        args=job.config_args,
        scripts=_scripts_of(Path(job.config)),
        batch_size=program.batch_size,
        parameters=program.parameters,
        optimizer=program.optimizer,
        updates=updates,
        wire=job.wire,
        shards=shards,
    )


def _scripts_of(config: Path) -> dict[str, str]:
    """The config and all scripts beside it that it mentions, or that those mention, with their hashes."""
    beside = {path.stem: path for path in config.parent.glob("*.py") if path != config}
    waiting, hashes = [config], {}
    while waiting:
        path = waiting.pop()
        content = path.read_bytes()
        hashes[path.name] = hashlib.sha256(content).hexdigest()
        for name in set(re.findall(r"\w+", content.decode(errors="replace"))) & set(beside):
            waiting.append(beside.pop(name))
    return dict(sorted(hashes.items()))


def write_origin(snapshots: Path, run_incarnation: int, origin: Origin) -> None:
    with storage_errors(str(snapshots)):
        snapshots.mkdir(parents=True, exist_ok=True)
    write_atomic(snapshots / f"inputs-{run_incarnation:08d}.json", seal(origin, "origin"))


def ensure_origin(job: Job, program: Program) -> None:
    """Write the origin of a job with snapshots, unless its runner has."""
    snapshots = Path(job.snapshots.path)
    if job.snapshots.path and not (snapshots / f"inputs-{job.run_incarnation:08d}.json").is_file():
        write_origin(snapshots, job.run_incarnation, origin_of(job, program))


def read_origin(snapshots: Path, incarnation: int) -> Origin | None:
    """The origin of the run in which a process took this incarnation; None if it is missing or damaged."""
    runs = {int(match[1]) for path in snapshots.glob("inputs-*.json") if (match := _NAME.fullmatch(path.name))}
    began = max((number for number in runs if number <= incarnation), default=None)
    if began is None:
        return None
    try:
        sealed = msgspec.json.decode((snapshots / f"inputs-{began:08d}.json").read_bytes(), type=_Sealed)
        body = bytes(sealed.origin)
        origin = msgspec.json.decode(body, type=Origin)
    except (OSError, msgspec.MsgspecError, UnicodeDecodeError):
        return None
    is_whole = hashlib.sha256(body).hexdigest() == sealed.sha256 and origin.version == VERSION
    return origin if is_whole else None


def refuse_changes(job: Job, base: Manifest | None, now: Origin) -> None:
    """Refuse to resume from `base`, or from the beginning, if inputs have changed; the error lists the changes."""
    then = read_origin(Path(job.snapshots.path), job.run_incarnation if base is None else base.incarnation)
    if then is None or (base is not None and then.inputs != base.inputs):
        return  # nothing to compare with: the coordinator compares the hashes
    changes = list(changes_between(then, now))
    if changes:
        raise SnapshotError(
            f"the snapshot {base.name} was made from other inputs" if base else "the job was begun with other inputs",
            why=first_of(changes, LISTED_CHANGES, "; "),
            fix="put back what was changed, or resume all the same with --accept-changes",
        )


def changes_between(then: Origin, now: Origin) -> Iterator[str]:
    """Describe each change that affects the result; the layout does not."""
    was, is_ = then.inputs, now.inputs
    if was.program != is_.program:
        yield from _change("bireme", then.bireme, now.bireme)
        if then.scripts.get(then.config) != now.scripts.get(now.config):
            yield f"{now.config} has changed"
        for name in sorted({*then.args, *now.args}):
            yield from _change(f"argument {name}:", then.args.get(name, "none"), now.args.get(name, "none"))
    if was.rules != is_.rules:
        yield from _rules(then, now)
    yield from _change("batch_size", then.batch_size, now.batch_size)
    for name in sorted(({*then.scripts} & {*now.scripts}) - {then.config, now.config}):
        if then.scripts[name] != now.scripts[name]:
            yield f"{name} has changed"
    if was.data != is_.data:
        yield from _data(then.shards, now.shards) if then.shards != now.shards else ["shards.json has changed"]
    yield from _change("seed", was.seed, is_.seed)


def _change(what: str, then: object, now: object) -> Iterator[str]:
    if then != now:
        yield f"{what} {_plain(then)} → {_plain(now)}"


def _plain(value: object) -> str:
    if isinstance(value, msgspec.Struct):
        return ", ".join(f"{name} {_plain(v)}" for name, v in msgspec.structs.asdict(value).items())
    return f"{value:g}" if isinstance(value, float) else str(value)


def _rules(then: Origin, now: Origin) -> Iterator[str]:
    yield from _fields("optimizer: ", then.optimizer, now.optimizer)
    yield from _fields("updates: ", then.updates, now.updates)
    yield from _fields("wire: ", then.wire, now.wire)
    before, after = ({p.name: p for p in origin.parameters} for origin in (then, now))
    for name in [n for n in before if n not in after]:
        yield f"parameter `{name}` is gone"
    for name in [n for n in after if n not in before]:
        yield f"parameter `{name}` is new"
    # One setting of the config often changes all parameters alike.
    alike: dict[str, list[str]] = {}
    for name in [n for n in before if n in after]:
        for change in _fields("", before[name], after[name]):
            alike.setdefault(change, []).append(name)
    for change, names in alike.items():
        whose = f"`{names[0]}`" if len(names) == 1 else f"`{names[0]}` and {len(names) - 1} more"
        yield f"regularization of {whose}: {change}" if change[:3] in ("l1 ", "l2 ") else f"{whose}: {change}"


def _fields(title: str, then: msgspec.Struct, now: msgspec.Struct) -> Iterator[str]:
    for name, value in msgspec.structs.asdict(then).items():
        yield from _change(title + name, value, getattr(now, name))


def _data(then: Sequence[Mapping[str, tuple[int, str]]], now: Sequence[Mapping[str, tuple[int, str]]]) -> Iterator[str]:
    for shard, (before, after) in enumerate(zip_longest(then, now)):
        if before is None or after is None:
            yield f"shard {shard} is {'new' if before is None else 'gone'}"
            continue
        for name in sorted({*before, *after}):
            if name not in before or name not in after:
                yield f"shard {shard}: {name} is {'gone' if name in before else 'new'}"
            elif before[name] != after[name]:
                was, is_ = before[name][0], after[name][0]
                lengths = f"{was:,} → {is_:,} bytes" if was != is_ else "its length has not"
                yield f"shard {shard}: {name} has changed ({lengths})"
