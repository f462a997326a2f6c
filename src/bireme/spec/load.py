"""From a YAML file to a checked job: every mistake at once, each with its line and what was expected.

The order of precedence is flag > environment (`BIREME_TRAINERS` and the like) > file > default.
This is the only module that reads the environment.
"""

from __future__ import annotations

import difflib
import os
from collections.abc import Mapping
from dataclasses import dataclass
from io import StringIO
from pathlib import Path
from typing import Any, get_args, get_origin, get_type_hints

import msgspec

from bireme.core.errors import SpecError
from bireme.spec.job import CarrierChoice, Job, JobFile, LanePorts, LocalFile, WireFile
from bireme.spec.model import Snapshots, Updates, Wire

_THREAD_COUNTS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "NUMBA_NUM_THREADS")
# Sets of strings iterate by hash, files are decoded by locale, libraries with a thread per core add in their own order.
_PINNED = {"PYTHONHASHSEED": "0", "PYTHONUTF8": "1", **dict.fromkeys(_THREAD_COUNTS, "1")}
OVERRIDES = ("trainers", "pservers", "ports_num", "passes", "seed", "output")
"""What a flag `--name` or a variable `BIREME_NAME` may replace."""


@dataclass(frozen=True, slots=True)
class Mistake:
    """One thing wrong with a file, and where."""

    line: int
    text: str


def read_yaml(text: str, name: str) -> Any:
    """Parse YAML, keeping line numbers; syntax errors are told with theirs."""
    from ruamel.yaml import YAML
    from ruamel.yaml.error import YAMLError

    try:
        return YAML(typ="rt", pure=True).load(StringIO(text))
    except ValueError as e:
        raise SpecError(f"{name}: not valid YAML: a value that is not what it looks like: {e}") from e
    except YAMLError as e:
        mark = getattr(e, "problem_mark", None)
        line = mark.line + 1 if mark else 1
        problem = str(getattr(e, "problem", None) or str(e).splitlines()[0]).rstrip()
        raise SpecError(
            f"{name}:{line}: not valid YAML: {problem}",
            fix="check the indentation and quotes around that line",
        ) from e


def plain(value: Any) -> Any:
    """What a YAML reader keeps of styles and anchors, taken off: dicts, lists, strings and numbers remain."""
    if isinstance(value, Mapping):
        return {plain(k): plain(v) for k, v in value.items()}
    if isinstance(value, list):
        return [plain(v) for v in value]
    for kind in (bool, int, float, str):
        if isinstance(value, kind):
            return kind(value)
    return value


def find_mistakes(struct: type[msgspec.Struct], value: Any, path: str = "", line: int = 1) -> list[Mistake]:
    """Compare a parsed mapping with a struct, field by field."""
    if not isinstance(value, Mapping):
        where = f"`{path}` must hold" if path else "the file must hold"
        return [Mistake(line, f"{where} keys and values, not {_name_of(value)}")]
    hints = get_type_hints(struct, include_extras=True)
    lines = _lines_of(value, line)
    found = [Mistake(lines[key], _unknown_key(path, key, hints)) for key in value if key not in hints]
    for info in msgspec.structs.fields(struct):
        full = f"{path}.{info.name}" if path else info.name
        if info.name not in value:
            if info.required:
                found.append(Mistake(line, f"`{full}` is missing{_expected(hints[info.name])}"))
            continue
        found += _check_field(hints[info.name], value[info.name], full, lines[info.name])
    return found


def _check_field(hint: Any, value: Any, path: str, line: int) -> list[Mistake]:
    inner = get_args(hint)[0] if get_origin(hint) is not None and hasattr(hint, "__metadata__") else hint
    if isinstance(inner, type) and issubclass(inner, msgspec.Struct):
        return find_mistakes(inner, value, path, line)
    value = plain(value)
    try:
        msgspec.convert(value, hint)
    except msgspec.ValidationError as e:
        problem = str(e).split(" - at `")[0].split(", got `")[0].replace(" | null`", "`")
        if "regex" in problem:
            problem = _expected(hint).lstrip(": ")
        if "enum value" in problem:
            problem = "expected one of the known words"
        return [
            Mistake(
                line,
                f"`{path}`: {problem[0].lower()}{problem[1:]}, got {value!r}{_did_you_mean(value, inner)}",
            )
        ]
    return []


def _did_you_mean(value: Any, hint: Any) -> str:
    # The words themselves, or those of a choice that may also be left out.
    found = [word for choice in get_args(hint) for word in (choice, *get_args(choice))]
    choices = [word for word in found if isinstance(word, str)]
    close = difflib.get_close_matches(str(value), choices, n=1)
    return f" (did you mean `{close[0]}`?)" if close else f" (one of: {', '.join(choices)})" if choices else ""


def _unknown_key(path: str, key: Any, known: Mapping[str, Any]) -> str:
    full = f"{path}.{key}" if path else str(key)
    close = difflib.get_close_matches(str(key), list(known), n=1)
    hint = f"did you mean `{close[0]}`?" if close else f"known keys: {', '.join(known)}"
    return f"`{full}` is not a known key; {hint}"


def _expected(hint: Any) -> str:
    for meta in getattr(hint, "__metadata__", ()):
        if meta.description:
            return f": {meta.description[0].lower()}{meta.description[1:].rstrip('.')}"
    return ""


def _name_of(value: Any) -> str:
    if value is None:
        return "nothing"
    return "a list" if isinstance(value, list) else f"{value!r}"


def _lines_of(value: Any, default: int) -> dict[Any, int]:
    marks = getattr(value, "lc", None)
    if marks is None:
        return dict.fromkeys(value, default)
    # A key that came by a merge (`<<: *other`) stands elsewhere: it gets the mapping's own line.
    return {key: marks.key(key)[0] + 1 if key in (marks.data or {}) else default for key in value}


def load_job_file(path: Path) -> JobFile:
    """Read and check a job.yaml; one SpecError tells all mistakes."""
    if path.is_dir() and (path / "job.yaml").is_file():
        path = path / "job.yaml"
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError as e:
        raise SpecError(f"there is no file {path}", fix="`bireme demo --prepare DIR` writes a job to start from") from e
    except IsADirectoryError as e:
        raise SpecError(f"{path} is a directory without a job.yaml in it", fix="name the job file itself") from e
    except (OSError, UnicodeDecodeError) as e:
        raise SpecError(f"cannot read {path}: {e}") from e
    data = read_yaml(text, str(path))
    mistakes = find_mistakes(JobFile, data if data is not None else {})
    if mistakes:
        told = "\n".join(f"{path}:{m.line}: {m.text}" for m in sorted(mistakes, key=lambda m: m.line))
        raise SpecError(told, fix="docs/reference/job.md lists every key")
    return msgspec.convert(plain(data), JobFile)


@dataclass(frozen=True, slots=True)
class Places:
    """Where this user's files go that belong to no job."""

    cache: Path
    state: Path


def places(environment: Mapping[str, str] | None = None) -> Places:
    """The user's cache and state directories, by the XDG rules."""
    env = os.environ if environment is None else environment
    home = Path(env.get("HOME") or "~").expanduser()
    cache = Path(env.get("XDG_CACHE_HOME") or home / ".cache")
    state = Path(env.get("XDG_STATE_HOME") or home / ".local" / "state")
    return Places(cache / "bireme", state / "bireme")


def child_environment(environment: Mapping[str, str] | None = None) -> dict[str, str]:
    """What a job's processes inherit: all we have, and what keeps bits from depending on it."""
    env = dict(os.environ if environment is None else environment)
    return env | _PINNED


def is_pinned(environment: Mapping[str, str] | None = None) -> bool:
    """Whether this process has the environment that a job's processes need."""
    env = os.environ if environment is None else environment
    return all(env.get(name) == value for name, value in _PINNED.items())


def command_name(environment: Mapping[str, str] | None = None) -> str:
    """What the user types to run bireme here, for commands that we suggest."""
    env = os.environ if environment is None else environment
    return env.get("BIREME_COMMAND") or "bireme"


def overrides_from(environment: Mapping[str, str]) -> dict[str, str]:
    """The overrides that variables such as BIREME_TRAINERS ask for."""
    return {n: environment[f"BIREME_{n.upper()}"] for n in OVERRIDES if environment.get(f"BIREME_{n.upper()}")}


def load_job(path: Path, flags: Mapping[str, Any], environment: Mapping[str, str] | None = None) -> Job:
    """Resolve a job file, with overrides, to the job that processes run."""
    environment = os.environ if environment is None else environment
    if path.is_dir():
        path = path / "job.yaml"
    file = load_job_file(path)
    overrides = {**overrides_from(environment), **{k: v for k, v in flags.items() if v is not None}}
    if "output" in overrides:
        overrides["output"] = str(overrides["output"])
    job = resolve(_override(file, overrides), path.resolve().parent, overrides)
    return msgspec.structs.replace(job, faults=environment.get("BIREME_FAULTS", ""), carrier=_carrier(environment))


def _carrier(environment: Mapping[str, str]) -> CarrierChoice:
    try:
        choice: CarrierChoice = msgspec.convert(environment.get("BIREME_CARRIER") or "auto", CarrierChoice)
    except msgspec.ValidationError as e:
        raise SpecError("BIREME_CARRIER must be auto, unix or tcp") from e
    return choice


def _override(file: JobFile, overrides: Mapping[str, Any]) -> JobFile:
    plain = msgspec.to_builtins(file)
    for name, value in overrides.items():
        target = plain["lanes"] if name == "ports_num" else plain
        target[name] = value
    if {"trainers", "pservers"} & set(overrides) and plain["nodes"] is not None:
        # The file counts nodes; an override counts one side apart and leaves the other as it was.
        plain["trainers"] = overrides.get("trainers", plain["nodes"])
        plain["pservers"] = overrides.get("pservers", plain["nodes"])
        plain["nodes"] = None
    try:
        return msgspec.convert(plain, JobFile, strict=False)
    except msgspec.ValidationError as e:
        problem, _, where = str(e).replace(" | null`", "`").partition(" - at `$.")
        name = where.rstrip("`").removeprefix("lanes.")
        problem = f"{problem.split(', got `')[0]}, got {overrides.get(name)!r}"
        raise SpecError(
            f"--{name.replace('_', '-')} (or BIREME_{name.upper()}): {problem[0].lower()}{problem[1:]}"
        ) from e


def resolve(file: JobFile, base: Path, overrides: Mapping[str, Any]) -> Job:
    """Settle paths and counts; refuse what cannot run."""
    if file.nodes is not None and (file.pservers is not None or file.trainers is not None):
        raise SpecError(
            "`nodes` and `pservers`/`trainers` are both given",
            why="`nodes: 3` already means 3 pservers and 3 trainers",
            fix="keep `nodes`, or count `pservers` and `trainers` apart",
        )
    config = base / file.program.config
    if not config.is_file():
        raise SpecError(f"program.config: there is no file {config}", fix="paths in job.yaml are relative to job.yaml")
    data = base / file.data.path
    shards = count_shards(data)
    if file.data.shards not in (None, shards):
        raise SpecError(
            f"data.shards is {file.data.shards}, but {data} holds {shards}",
            fix=f"run `bireme data split --shards {file.data.shards}`, or set `shards: {shards}`",
        )
    trainers = file.trainers or file.nodes or shards
    output = Path(overrides["output"]).absolute() if overrides.get("output") else base / file.output
    _check_trainers(trainers, shards, "nodes" if file.nodes else "trainers")
    lanes = file.lanes
    # A flag that changes the trainers leaves the pservers as they would have been without it.
    pservers = file.pservers or file.nodes or (shards if "trainers" in overrides else trainers)
    _check_ports(lanes, pservers)
    return Job(
        name=file.name,
        config=str(config),
        config_args={k: _as_arg(v) for k, v in file.program.args.items()},
        data=str(data.resolve()),
        shards=shards,
        pservers=pservers,
        trainers=trainers,
        port=lanes.port,
        ports_num=lanes.ports_num,
        ports_num_for_sparse=lanes.ports_num_for_sparse,
        passes=file.passes,
        seed=file.seed,
        output=str(output),
        log_period=file.log_period,
        connect_timeout_s=file.connect_timeout_s,
        updates=_updates(file),
        snapshots=Snapshots(path=str(output / "snapshots"), every_s=file.snapshots.every_s, keep=file.snapshots.keep),
        wire=Wire(gradients=file.wire.gradients, top_k=file.wire.top_k),
    )


def _updates(file: JobFile) -> Updates | None:
    if file.wire.top_k != WireFile().top_k and file.wire.gradients != "top_k":
        raise SpecError("`wire.top_k` is for `wire.gradients: top_k`", fix="set that, or leave `top_k` out")
    given = {"bounded": ("staleness", file.staleness is not None), "local": ("local", file.local != LocalFile())}
    for mode, (key, is_given) in given.items():
        if is_given and file.mode != mode:
            now = f"mode is {file.mode}" if file.mode else "no mode is given"
            fix = f"set `mode: {mode}`, or leave `{key}` out"
            raise SpecError(f"`{key}` is for `mode: {mode}`, and {now}", fix=fix)
    if file.mode is None:
        return None
    local = file.local
    return Updates(
        mode=file.mode,
        staleness=4 if file.staleness is None else file.staleness,
        every=local.every,
        is_elastic=local.method == "elastic",
        rate=local.rate if local.rate is not None else 0.5 if local.method == "elastic" else 1.0,
    )


def _check_ports(lanes: LanePorts, pservers: int) -> None:
    last = (lanes.port or 0) + pservers * (lanes.ports_num + lanes.ports_num_for_sparse) - 1
    if last > 65535:
        raise SpecError(
            f"lanes.port: {pservers} pservers need ports up to {last}",
            why="ports end at 65535",
            fix="choose a smaller `port`",
        )


def _as_arg(value: str | int | float | bool) -> str:
    return str(int(value)) if isinstance(value, bool) else str(value)


def _check_trainers(trainers: int, shards: int, key: str) -> None:
    if trainers > shards:
        raise SpecError(
            f"{trainers} trainers but only {shards} data shards",
            why=f"trainers from rank {shards} up would have nothing to read",
            fix=f"split the data again with `bireme data split --shards {trainers}`, or set `{key}: {shards}`",
        )


def is_shard_name(name: str) -> bool:
    """Whether a directory of this name is a shard: `0`, `1`, … and not `01`."""
    return name.isascii() and name.isdecimal() and name == str(int(name))


def count_shards(data: Path) -> int:
    """How many shards a data directory holds: `0/data`, `1/data`, … without a gap."""
    if not data.is_dir():
        raise SpecError(f"data.path: there is no directory {data}", fix="paths in job.yaml are relative to job.yaml")
    found = sorted(int(d.name) for d in data.iterdir() if is_shard_name(d.name) and (d / "data").is_dir())
    if not found:
        raise SpecError(
            f"{data} holds no shard (a directory `0/data`)",
            fix=f"run `bireme data split SOURCE --shards N --out {data}`",
        )
    if found != list(range(len(found))):
        gap = next(i for i, n in enumerate(found) if i != n)
        raise SpecError(f"shard {gap} is missing: there is no {data}/{gap}/data", fix="split the data again")
    return len(found)
