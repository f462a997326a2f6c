"""Lanes' values on the simulated disk: in a part of a snapshot, and in the model of a pass."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from bireme.core.errors import ModelError
from bireme.core.files import storage_errors, sync_directory, volume
from bireme.job.output.model import pass_name
from bireme.ps.lanes.progress import COUNTS
from bireme.ps.snapshot.snapshot_files import SnapshotFile

VALUES = "values"
"""The key of lanes' values in the meta of a part, and the file with them in a model."""


def meta_of(lanes: dict[int, int], counts: object) -> dict[str, object]:
    """What a part of a cut holds."""
    return {COUNTS: counts, VALUES: {str(number): str(value) for number, value in lanes.items()}}


def values_of(parts: Iterable[SnapshotFile]) -> dict[int, int]:
    """What parts of a cut hold, by lane."""
    return {int(lane): int(value) for part in parts for lane, value in part.meta[VALUES].items()}


def save_model(output: Path, pass_id: int, values: tuple[int, ...], incarnation: int, *, is_exact: bool) -> None:
    """Write a model directory, in the steps of job/output/model.py; one with the same values is left as it is."""
    target = output / pass_name(pass_id)
    data = repr(values).encode()
    if (target / "done").exists():
        if is_exact and (target / VALUES).read_bytes() != data:
            raise ModelError(f"{target} exists and holds another model")
        sync_directory(target.parent)
        return
    half = target.with_name(f".{target.name}.{incarnation}.tmp")
    with storage_errors(str(target)):
        if half.is_dir():
            volume().remove_tree(half)
        half.mkdir(parents=True)
        for name, content in ((VALUES, data), ("done", b"yes\n")):
            with (half / name).open("wb") as f:
                f.write(content)
                f.flush()
                volume().sync(f)
        sync_directory(half)
        half.replace(target)
        sync_directory(target.parent)


def saved_models(output: Path) -> dict[int, str]:
    """The values of every finished model, by pass."""
    models = {}
    for path in output.glob("pass-[0-9]*"):
        if (path / "done").is_file():
            models[int(path.name[5:])] = (path / VALUES).read_bytes().decode()
    return models
