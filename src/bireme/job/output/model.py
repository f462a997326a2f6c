"""A saved model: one directory `pass-%05d`, with the original's parameter files in it.

Each parameter is a file named after it: a 16-byte header (int32 version 0, uint32 value size 4, uint64 count,
little-endian) and the raw float32 values. A sparse parameter with known rows is written in full; of an unbounded one
the rows that exist, by ascending id, with the ids in NAME.ids (value size 8). `model.safetensors` holds the same values
with shapes, `metrics.json` what the pass came to, `path.txt` the config's name. The directory appears under its name in
one rename, with `done` in it: there is no half-saved model.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import struct
from collections.abc import Iterable, Mapping
from pathlib import Path

import msgspec
import numpy as np
from numpy.typing import NDArray

from bireme import __version__
from bireme.core.errors import ModelError
from bireme.core.files import storage_errors, sync_directory
from bireme.ps.plan import IDS, RESERVED_NAMES
from bireme.ps.wire.row_frames import Block
from bireme.spec.model import Parameter

Array = NDArray[np.float32] | NDArray[np.uint64]
Values = Mapping[str, Array]
_HEADER = struct.Struct("<iIQ")
_SAME_CONFIG = "use the model with the config and the dictionary it was trained with"


def write_parameter(path: Path, values: Array) -> None:
    raw = _raw(values)
    _write(path, _HEADER.pack(0, raw.itemsize, raw.size), raw.data)


def _raw(values: Array) -> Array:
    return np.ascontiguousarray(values, dtype="<u8" if values.dtype == np.uint64 else "<f4")


def _write(path: Path, *parts: bytes | memoryview) -> None:
    with path.open("wb") as f:
        for part in parts:
            f.write(part)
        f.flush()
        os.fsync(f.fileno())


def read_parameter(path: Path) -> Array:
    """Read one parameter, or a table's ids, as a flat vector; a torn or foreign file is refused."""
    try:
        data = path.read_bytes()
    except OSError as e:
        raise ModelError(f"cannot read {path}: {e.strerror}") from e
    if len(data) < _HEADER.size:
        raise ModelError(f"{path} is torn: {len(data)} bytes, a parameter file has at least {_HEADER.size}")
    version, width, count = _HEADER.unpack_from(data)
    # A dense parameter may be called `….ids` as well.
    if version != 0 or width not in ((4, 8) if path.name.endswith(IDS) else (4,)):
        raise ModelError(f"{path} is not a float32 parameter file: version {version}, value size {width}")
    if len(data) != _HEADER.size + width * count:
        what = f"{path} is torn: {count} values need {_HEADER.size + width * count} bytes, it has {len(data)}"
        raise ModelError(what, fix="use the pass before this one")
    return np.frombuffer(data, dtype="<f4" if width == 4 else "<u8", offset=_HEADER.size).copy()


def pass_name(pass_id: int) -> str:
    return f"pass-{pass_id:05d}"


def finished_passes(output: Path) -> set[int]:
    return {int(p.name[5:]) for p in output.glob("pass-[0-9][0-9][0-9][0-9][0-9]") if (p / "done").is_file()}


def save_model(
    target: Path, values: Values, config: Path, metrics: Mapping[str, object], *, incarnation: int = 1
) -> Path:
    """Write a model directory; if it exists with the same values, it is left as it is."""
    from safetensors.numpy import save

    if (target / "done").exists():
        if model_hash(target) == hash_values(values):
            with storage_errors(str(target)):
                sync_directory(target.parent)  # its writer may have died before that
            return target
        raise ModelError(f"{target} exists and holds another model", fix="choose another output directory")
    half = target.with_name(f".{target.name}.{incarnation}.tmp")
    is_renamed = False
    with storage_errors(str(target)):
        shutil.rmtree(half, ignore_errors=True)
        try:
            half.mkdir(parents=True)
            for name, array in values.items():
                write_parameter(half / name, array)
            tensors = {name: np.ascontiguousarray(v) for name, v in values.items()}
            _write(half / "model.safetensors", save(tensors))
            _write(half / config.name, config.read_bytes())
            _write(half / "path.txt", config.name.encode())
            _write(half / "metrics.json", msgspec.json.format(msgspec.json.encode(metrics), indent=2), b"\n")
            _write(half / "done", f"bireme {__version__}, float32\n".encode())
            # Files, their directory, the name, its directory: after a power cut a named model is a whole one.
            sync_directory(half)
            half.replace(target)
            is_renamed = True
            sync_directory(target.parent)
            for left in target.parent.glob(f".{target.name}.*.tmp"):  # by writers that died
                shutil.rmtree(left, ignore_errors=True)
        except BaseException as e:
            shutil.rmtree(half, ignore_errors=True)
            # Our predecessor or successor may have been faster, and have removed our half.
            is_beaten = isinstance(e, OSError) and not is_renamed and (target / "done").exists()
            if not is_beaten or model_hash(target) != hash_values(values):
                raise
            sync_directory(target.parent)
    return target


def parameter_names(directory: Path) -> list[str]:
    """The parameters in a model directory, in byte order."""
    if not (directory / "done").is_file():
        above = directory if directory.is_dir() and finished_passes(directory) else directory.parent
        passes = finished_passes(above)
        is_there = f"did you mean {above / pass_name(max(passes))}?" if passes else ""
        hint = is_there or "name a finished pass's directory in a job's output, pass-00000 or a later one"
        if not directory.is_dir():
            raise ModelError(f"there is no model directory {directory}", fix=hint)
        raise ModelError(f"{directory} is not a finished model: it has no file `done`", fix=hint)
    config = config_name(directory)
    names = [p.name for p in directory.iterdir() if p.is_file() and p.name not in RESERVED_NAMES and p.name != config]
    return sorted((n for n in names if not n.startswith(".")), key=str.encode)


def config_name(directory: Path) -> str:
    path = directory / "path.txt"
    return path.read_text(encoding="utf-8").strip() if path.is_file() else ""


def load_values(directory: Path) -> dict[str, Array]:
    """All parameters of a model, flat, and the ids of unbounded tables."""
    return {name: read_parameter(directory / name) for name in parameter_names(directory)}


def check_copy(directory: Path) -> None:
    """Refuse a model whose copy in `model.safetensors` was cut; one that has no copy is as the original left it."""
    from safetensors import SafetensorError, safe_open

    path = directory / "model.safetensors"
    try:
        with safe_open(path, "numpy"):
            return
    except FileNotFoundError:
        return
    except SafetensorError as e:
        why = "the directory was changed after it was written, so its other files may be wrong as well"
        fix = "use the model of another pass, or train this one again"
        raise ModelError(f"{path} is not whole: {e}", why=why, fix=fix) from e


def load_into(directory: Path, parameters: Iterable[Parameter], target: Values) -> None:
    """Fill a program's arrays from a model made for it."""
    wanted = {p.name: p for p in parameters}
    there = parameter_names(directory)
    missing = sorted(set(wanted) - set(there))
    if missing:
        raise ModelError(
            f"{directory} has no parameter {missing[0]}",
            why=f"the program needs {', '.join(sorted(wanted))}; the model has {', '.join(there) or 'none'}",
            fix="use the model with the config it was trained with",
        )
    for name, p in wanted.items():
        values = read_parameter(directory / name)
        if values.size != p.size:
            what = f"{directory / name} has {values.size} values, the program wants {p.size} (shape {list(p.shape)})"
            raise ModelError(what, fix=_SAME_CONFIG)
        target[name][...] = values.reshape(p.shape)


def table_arrays(parameter: Parameter, seed: int, block: Block) -> dict[str, Array]:
    """What a sparse parameter leaves in a model: all rows of a bounded one, or those that exist and their ids."""
    from bireme.ps.sparse.table import first_values

    if parameter.is_unbounded:
        return {parameter.name: block.rows, parameter.name + IDS: block.ids}
    rows = first_values(parameter, seed, np.arange(parameter.shape[0], dtype=np.uint64))
    rows[block.ids.astype(np.int64)] = block.rows
    return {parameter.name: rows}


def load_rows(directory: Path, parameter: Parameter) -> Block:
    width = parameter.shape[1]
    values = read_parameter(directory / parameter.name)
    ids = np.arange(len(values) // width, dtype=np.uint64)
    if parameter.is_unbounded:
        ids = read_parameter(directory / f"{parameter.name}{IDS}").astype(np.uint64)
    rows = len(ids) if parameter.is_unbounded else parameter.shape[0]
    if values.size != rows * width:
        what = f"{directory / parameter.name} has {values.size} values, the program wants {rows} rows of {width}"
        raise ModelError(what, fix=_SAME_CONFIG)
    return Block(ids, values.reshape(rows, width).astype(np.float32, copy=False))


def load_trained(directory: Path, parameter: Parameter, seed: int) -> Block:
    """The rows of a saved model that training has changed: the others are where they would start anyway."""
    from bireme.ps.sparse.table import first_values

    block = load_rows(directory, parameter)
    if parameter.is_unbounded:
        return block
    is_changed = (block.rows.view(np.uint32) != first_values(parameter, seed, block.ids).view(np.uint32)).any(axis=1)
    return Block(block.ids[is_changed], block.rows[is_changed])


def hash_values(values: Values) -> str:
    """One sha256 over a model: for each file's name in byte order the name, a NUL, the raw values."""
    digest = hashlib.sha256()
    for name in sorted(values, key=str.encode):
        digest.update(name.encode() + b"\0")
        digest.update(_raw(values[name]).data)
    return digest.hexdigest()


def model_hash(directory: Path) -> str:
    return hash_values(load_values(directory))
