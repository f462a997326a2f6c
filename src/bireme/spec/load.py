"""From a YAML file to a checked job: every mistake at once, each with its line and what was expected.

The order of precedence is flag > environment (`BIREME_TRAINERS` and the like) > file > default.
No other module reads what stands for a setting of a job from the environment.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from bireme.core.errors import SpecError
from bireme.spec.job import MEANT, CarrierChoice, Job, JobFile, LocalFile
from bireme.spec.kubernetes import KubernetesFile, find_cluster_clashes
from bireme.spec.mistakes import Mistake, differs, find_mistakes, lines_of, plain, read_yaml, refusal, unknown_key
from bireme.spec.model import Snapshots, Updates, Wire

_THREAD_COUNTS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "NUMBA_NUM_THREADS")
# Sets of strings iterate by hash, files are decoded by locale, and libraries with a thread per core sum in any order.
_PINNED = {"PYTHONHASHSEED": "0", "PYTHONUTF8": "1", **dict.fromkeys(_THREAD_COUNTS, "1")}
OVERRIDES = ("trainers", "pservers", "ports_num", "passes", "seed", "output")
"""The keys that a flag `--name` or a variable `BIREME_NAME` may override."""


def find_clashes(data: Any, overrides: Mapping[str, Any]) -> list[Mistake]:
    """Find keys of a parsed file, or overrides of it, that are valid alone and conflict."""
    if not isinstance(data, Mapping):
        return []
    # Counts replace each other where they are overridden, so those of the file alone can conflict.
    others = {key: value for key, value in overrides.items() if key not in ("nodes", "pservers", "trainers")}
    lines, data = lines_of(data, 1) | dict.fromkeys(others, 0), {**data, **others}
    found, mode = [], data.get("mode")
    apart = [key for key in ("pservers", "trainers") if data.get(key) is not None]
    if apart and data.get("nodes") is not None:
        text = "`nodes` and `pservers`/`trainers` are both given"
        why = "`nodes: 3` already means 3 pservers and 3 trainers"
        found.append(Mistake(lines[apart[0]], text, why, "keep `nodes`, or count `pservers` and `trainers` apart"))
    wire: Any = data.get("wire")
    if differs(wire, Wire(), "top_k") and wire.get("gradients") != "top_k":
        text, line = "`wire.top_k` is for `wire.gradients: top_k`", lines_of(wire, lines["wire"])["top_k"]
        found.append(Mistake(line, text, fix="set that, or leave `top_k` out"))
    mode_keys = {"bounded": ("staleness", data.get("staleness") is not None)}
    mode_keys["local"] = ("local", differs(data.get("local"), LocalFile(), *LocalFile.__struct_fields__))
    for wanted, (key, is_given) in mode_keys.items():
        if is_given and mode != wanted:
            now = f"mode is {mode}" if mode else "no mode is given"
            fix = f"set `mode: {wanted}`, or leave `{key}` out"
            found.append(Mistake(lines[key], f"`{key}` is for `mode: {wanted}`, and {now}", fix=fix))
    found += find_cluster_clashes(data.get("kubernetes"), lines.get("kubernetes", 1))
    return found


def read_job_file(path: Path) -> Any:
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError as e:
        raise SpecError(f"there is no file {path}", fix="`bireme demo --prepare DIR` writes a job to start from") from e
    except IsADirectoryError as e:
        raise SpecError(f"{path} is a directory without a job.yaml in it", fix="name the job file itself") from e
    except (OSError, UnicodeDecodeError) as e:
        raise SpecError(f"cannot read {path}: {e}") from e
    data = read_yaml(text, str(path))
    return data if data is not None else {}


@dataclass(frozen=True, slots=True)
class Places:
    """Directories for this user's files that belong to no job."""

    cache: Path
    state: Path


def places(environment: Mapping[str, str] = os.environ) -> Places:
    """By the XDG rules."""
    cache = Path(environment.get("XDG_CACHE_HOME") or _home(environment) / ".cache")
    state = Path(environment.get("XDG_STATE_HOME") or _home(environment) / ".local" / "state")
    return Places(cache / "bireme", state / "bireme")


def _home(environment: Mapping[str, str]) -> Path:
    return Path(environment.get("HOME") or "~").expanduser()


def kernel_caches(package: Path, environment: Mapping[str, str] = os.environ) -> list[Path]:
    """The directories where Numba may cache compiled code of a package: NUMBA_CACHE_DIR, or beside it, or at home."""
    chosen = environment.get("NUMBA_CACHE_DIR")
    return [Path(chosen)] if chosen else [package / "__pycache__", places(environment).cache.parent / "numba"]


def child_environment() -> dict[str, str]:
    """The environment of a job's processes: this one's, with the variables pinned that could change results."""
    return os.environ | _PINNED


def is_pinned() -> bool:
    """Whether this process has the environment that a job's processes need."""
    return os.environ | _PINNED == os.environ


def command_name(environment: Mapping[str, str] = os.environ) -> str:
    """For the commands that messages suggest."""
    return environment.get("BIREME_COMMAND") or "bireme"


def aws_region(environment: Mapping[str, str] = os.environ) -> str | None:
    return environment.get("AWS_REGION") or environment.get("AWS_DEFAULT_REGION") or None


def kubeconfig_files(environment: Mapping[str, str] = os.environ) -> list[Path]:
    """Those that exist, searched as kubectl does."""
    return [path for path in _kubeconfigs(environment) if path.is_file()]


def kubeconfig_target() -> Path:
    """The kubeconfig that new clusters are added to: the first that KUBECONFIG names, or the usual one."""
    return _kubeconfigs(os.environ)[0]


def _kubeconfigs(environment: Mapping[str, str]) -> list[Path]:
    named = [Path(part) for part in environment.get("KUBECONFIG", "").split(os.pathsep) if part]
    return named or [_home(environment) / ".kube" / "config"]


def overrides_from(environment: Mapping[str, str]) -> dict[str, str]:
    return {n: environment[f"BIREME_{n.upper()}"] for n in OVERRIDES if environment.get(f"BIREME_{n.upper()}")}


class ClusterJob(NamedTuple):
    """A job file for a cluster: the job as it would run here, and its placement there."""

    job: Job
    file: JobFile
    base: Path
    """The directory of job.yaml."""
    has_data: bool
    """Whether its shards are here too."""
    has_program: bool
    has_claim: bool
    """Whether the file names a volume claim, or configures the one to create."""

    @property
    def settings(self) -> KubernetesFile:
        return self.file.kubernetes


def load_job(path: Path, flags: Mapping[str, Any], environment: Mapping[str, str] = os.environ) -> Job:
    return _load(path, flags, environment, is_elsewhere=False).job


def load_cluster_job(path: Path, flags: Mapping[str, Any], environment: Mapping[str, str] = os.environ) -> ClusterJob:
    """Resolve a job file whose data may be on a volume only, and its program in an image."""
    # A local output path means nothing on the volume.
    return _load(path, flags, {**environment, "BIREME_OUTPUT": ""}, is_elsewhere=True)


def _load(path: Path, flags: Mapping[str, Any], environment: Mapping[str, str], *, is_elsewhere: bool) -> ClusterJob:
    if path.is_dir():
        path = path / "job.yaml"
    data = read_job_file(path)
    overrides = {**overrides_from(environment), **{k: v for k, v in flags.items() if v is not None}}
    known = (*JobFile.__struct_fields__, *OVERRIDES)
    unknown = [Mistake(0, f"argument {unknown_key('', key, known, MEANT)}") for key in overrides if key not in known]
    if wrong := unknown + find_mistakes(JobFile, data, meant=MEANT):
        raise refusal(path, wrong + find_clashes(data, {}))
    if "output" in overrides:
        overrides["output"] = str(overrides["output"])
    file, base = _override(msgspec.convert(plain(data), JobFile), overrides), path.resolve().parent
    misfits = find_misfits(file, base, _key_lines(data, overrides), is_elsewhere=is_elsewhere)
    if wrong := find_clashes(data, overrides) + misfits:
        raise refusal(path, wrong)
    job = resolve(file, base, overrides, environment)
    volume = (data.get("kubernetes") or {}).get("volume") or {}
    has_claim = any(volume.get(key) is not None for key in ("claim", "size", "storage_class", "access_modes"))
    return ClusterJob(job, file, base, bool(_shards_in(Path(job.data))), Path(job.config).is_file(), has_claim)


def _override(file: JobFile, overrides: Mapping[str, Any]) -> JobFile:
    plain = msgspec.to_builtins(file)
    plain |= {name: value for name, value in overrides.items() if name != "ports_num"}
    if "ports_num" in overrides and isinstance(plain["lanes"], dict):  # else its value is refused below
        plain["lanes"] = {**plain["lanes"], "ports_num": overrides["ports_num"]}
    if "nodes" in overrides and not {"trainers", "pservers"} & set(overrides):
        plain["trainers"] = plain["pservers"] = None
    if {"trainers", "pservers"} & set(overrides) and plain["nodes"] is not None:
        # The file counts nodes; an override of one side keeps the other.
        plain["trainers"] = overrides.get("trainers", plain["nodes"])
        plain["pservers"] = overrides.get("pservers", plain["nodes"])
        plain["nodes"] = None
    try:
        return msgspec.convert(plain, JobFile, strict=False)
    except msgspec.ValidationError as e:
        problem, _, where = str(e).replace(" | null`", "`").partition(" - at `$.")
        name = where.rstrip("`").removeprefix("lanes.")
        problem = f"{problem.split(', got `')[0]}, got {overrides.get(name)!r}"
        flag = f"--{name.replace('_', '-')} (or BIREME_{name.upper()})" if name in OVERRIDES else f"argument `{name}`"
        raise SpecError(f"{flag}: {problem[0].lower()}{problem[1:]}") from e


def _key_lines(data: Mapping[str, Any], overrides: Mapping[str, Any]) -> dict[str, int]:
    """The lines of the keys that take effect, without those that are overridden."""
    lines = lines_of(data, 1)
    found = {key: line for key, line in lines.items() if key not in overrides}
    for key, section in data.items():
        if isinstance(section, Mapping):
            found |= {f"{key}.{inner}": line for inner, line in lines_of(section, lines[key]).items()}
    if {"trainers", "pservers"} & set(overrides):
        found.pop("nodes", None)
    return found


def find_misfits(file: JobFile, base: Path, lines: Mapping[str, int], *, is_elsewhere: bool = False) -> list[Mistake]:
    """Find what the file needs and this machine lacks: files, directories, shards, ports.

    The data and the program of a job that runs elsewhere may be only there.
    """
    found = []
    config, data = base / file.program.config, base / file.data.path
    if not config.is_file() and not (is_elsewhere and file.kubernetes.program):
        text, fix = f"program.config: there is no file {config}", "paths in job.yaml are relative to job.yaml"
        found.append(Mistake(lines["program.config"], text, fix=fix))
    try:
        shards = _shards_of(file, data, is_elsewhere=is_elsewhere)
    except SpecError as e:
        return [*found, Mistake(lines.get("data.path", 0), e.what, e.why, e.fix)]
    if file.data.shards not in (None, shards):
        fix = f"run `bireme data split --shards {file.data.shards}`, or set `shards: {shards}`"
        text = f"data.shards is {file.data.shards}, but {data} holds {shards}"
        found.append(Mistake(lines.get("data.shards", 0), text, fix=fix))
    trainers = file.trainers or file.nodes or shards
    key = "nodes" if file.nodes and not file.trainers else "trainers"
    if trainers > shards:
        text = f"{trainers} trainers but only {shards} data shards"
        why = f"trainers from rank {shards} up would have nothing to read"
        fix = f"split the data again with `bireme data split --shards {trainers}`, or set `{key}: {shards}`"
        found.append(Mistake(lines.get(key, 0), text, why, fix))
    pservers = file.pservers or file.nodes or (trainers if "trainers" in lines else shards)
    last = (file.lanes.port or 0) + pservers * (file.lanes.ports_num + file.lanes.ports_num_for_sparse) - 1
    if last > 65535:
        text = f"lanes.port: {pservers} pservers need ports up to {last}"
        found.append(Mistake(lines.get("lanes.port", 0), text, "ports end at 65535", "choose a smaller `port`"))
    return found


def _shards_of(file: JobFile, data: Path, *, is_elsewhere: bool) -> int:
    if not is_elsewhere or _shards_in(data):
        return count_shards(data)
    if file.data.shards is None:
        why = "they may be on the cluster's volume only, but then their number must be known"
        fix = "give their number with `data.shards: N`, or name their directory with `data.path`"
        raise SpecError(f"{data} holds no shard (a directory `0/data`)", why=why, fix=fix)
    return file.data.shards


def resolve(file: JobFile, base: Path, overrides: Mapping[str, Any], environment: Mapping[str, str]) -> Job:
    try:
        carrier: CarrierChoice = msgspec.convert(environment.get("BIREME_CARRIER") or "auto", CarrierChoice)
    except msgspec.ValidationError as e:
        raise SpecError("BIREME_CARRIER must be auto, unix or tcp") from e
    config, data = base / file.program.config, base / file.data.path
    shards = _shards_of(file, data, is_elsewhere=True)
    trainers = file.trainers or file.nodes or shards
    output = Path(overrides["output"]).absolute() if overrides.get("output") else base / file.output
    lanes = file.lanes
    # Overriding the trainers must not change the number of pservers.
    pservers = file.pservers or file.nodes or (shards if "trainers" in overrides else trainers)
    return Job(
        name=file.name,
        config=str(config),
        config_args={k: str(int(v)) if isinstance(v, bool) else str(v) for k, v in file.program.args.items()},
        front_end=file.program.front_end,
        data=str(data.resolve()),
        shards=shards,
        pservers=pservers,
        trainers=trainers,
        port=lanes.port,
        ports_num=lanes.ports_num,
        ports_num_for_sparse=lanes.ports_num_for_sparse,
        passes=file.passes,
        keep=file.keep,
        stop_after=int(file.stop_when.split()[3]) if file.stop_when else 0,
        seed=file.seed,
        output=str(output),
        log_period=file.log_period,
        connect_timeout_s=file.connect_timeout_s,
        updates=_updates(file),
        snapshots=Snapshots(path=str(output / "snapshots"), **msgspec.structs.asdict(file.snapshots)),
        restarts=file.restarts,
        logs=file.logs,
        wire=file.wire,
        carrier=carrier,
        faults=environment.get("BIREME_FAULTS", ""),
    )


def _updates(file: JobFile) -> Updates | None:
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


def is_shard_name(name: str) -> bool:
    """Whether a directory of this name is a shard: `0`, `1`, … and not `01`."""
    return name.isascii() and name.isdecimal() and name == str(int(name))


def _shards_in(data: Path) -> list[int]:
    directories = data.iterdir() if data.is_dir() else ()
    return sorted(int(d.name) for d in directories if is_shard_name(d.name) and (d / "data").is_dir())


def count_shards(data: Path) -> int:
    """How many shards a data directory holds: `0/data`, `1/data`, … without a gap."""
    if not data.is_dir():
        raise SpecError(f"data.path: there is no directory {data}", fix="paths in job.yaml are relative to job.yaml")
    found = _shards_in(data)
    if not found:
        fix = f"run `bireme data split SOURCE --shards N --out {data}`"
        raise SpecError(f"{data} holds no shard (a directory `0/data`)", fix=fix)
    if found != list(range(len(found))):
        gap = next(i for i, n in enumerate(found) if i != n)
        raise SpecError(f"shard {gap} is missing: there is no {data}/{gap}/data", fix="split the data again")
    return len(found)
