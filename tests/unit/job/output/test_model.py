"""A saved model: the bytes of its files, and that there is never half of one."""

from __future__ import annotations

import errno
import hashlib
import os
import struct
import subprocess
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from bireme.core.errors import ModelError, StorageError
from bireme.job.output import model
from bireme.job.output.model import (
    hash_values,
    load_into,
    load_rows,
    load_trained,
    load_values,
    model_hash,
    parameter_names,
    pass_name,
    read_parameter,
    save_model,
    table_arrays,
    write_parameter,
)
from bireme.ps.wire.row_frames import Block
from bireme.spec.model import Init, Parameter, Rows

Values = dict[str, NDArray[np.float32]]
VALUES: Values = {
    "___fc_layer_0__.w0": np.array([[1.5, -0.0], [1e-45, 3e38]], dtype=np.float32),
    "___fc_layer_0__.wbias": np.array([0.25], dtype=np.float32),
    "Z": np.arange(3, dtype=np.float32),
}


@pytest.fixture
def config(tmp_path: Path) -> Path:
    path = tmp_path / "trainer_config.lr.py"
    path.write_text("settings()\n")
    return path


@pytest.fixture
def tiny_disk(tmp_path: Path) -> Iterator[Path]:
    place = tmp_path / "disk"
    place.mkdir()
    made = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64k", "none", place], capture_output=True, check=False)
    if made.returncode != 0:
        pytest.skip("only root can mount a tiny disk")
    try:
        yield place
    finally:
        subprocess.run(["umount", place], check=True)


def plain_hash(values: Values) -> str:
    """The rule in words: for each name in byte order the name, a NUL, the raw little-endian float32 bytes."""
    text = b""
    for name in sorted(name.encode() for name in values):
        array = values[name.decode()]
        text += name + b"\0" + struct.pack(f"<{array.size}f", *array.ravel().tolist())
    return hashlib.sha256(text).hexdigest()


def test_a_parameter_file_is_a_header_and_raw_floats(tmp_path: Path) -> None:
    write_parameter(tmp_path / "w", VALUES["___fc_layer_0__.w0"])
    wanted = struct.pack("<iIQ", 0, 4, 4) + struct.pack("<4f", 1.5, -0.0, 1e-45, 3e38)
    assert (tmp_path / "w").read_bytes() == wanted
    assert read_parameter(tmp_path / "w").tobytes() == wanted[16:]


def test_a_strided_view_is_written_in_its_own_order(tmp_path: Path) -> None:
    write_parameter(tmp_path / "w", np.arange(6, dtype=np.float32).reshape(2, 3).T)
    assert read_parameter(tmp_path / "w").tolist() == [0, 3, 1, 4, 2, 5]


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"", "is torn: 0 bytes"),
        (struct.pack("<iIQ", 0, 4, 2)[:15], "is torn: 15 bytes"),
        (struct.pack("<iIQ", 0, 4, 2) + bytes(7), "is torn: 2 values need 24 bytes, it has 23"),
        (struct.pack("<iIQ", 0, 4, 2) + bytes(9), "is torn: 2 values need 24 bytes, it has 25"),
        (struct.pack("<iIQ", 0, 4, 2**63) + bytes(8), "is torn"),
        (struct.pack("<iIQ", 1, 4, 0), "is not a float32 parameter file: version 1, value size 4"),
        (struct.pack("<iIQ", 0, 8, 1) + bytes(8), "is not a float32 parameter file: version 0, value size 8"),
        (b"\x89PNG\r\n\x1a\n0123456789", "is not a float32 parameter file"),
    ],
)
def test_a_torn_or_foreign_file_is_refused_by_name(tmp_path: Path, data: bytes, words: str) -> None:
    path = tmp_path / "w0"
    path.write_bytes(data)
    with pytest.raises(ModelError) as caught:
        read_parameter(path)
    assert str(path) in caught.value.what
    assert words in caught.value.what


def test_a_missing_file_is_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=f"cannot read {tmp_path / 'w'}: No such file"):
        read_parameter(tmp_path / "w")


def test_a_model_directory_holds_what_is_promised(tmp_path: Path, config: Path) -> None:
    target = save_model(tmp_path / "out" / pass_name(3), VALUES, config, {"cost": 0.5})
    assert target.name == "pass-00003"
    assert sorted(p.name for p in target.iterdir()) == sorted(
        [*VALUES, "done", "metrics.json", "model.safetensors", "path.txt", config.name]
    )
    assert (target / "path.txt").read_text() == config.name
    assert (target / config.name).read_bytes() == config.read_bytes()
    assert parameter_names(target) == ["Z", "___fc_layer_0__.w0", "___fc_layer_0__.wbias"]
    assert all(load_values(target)[name].tobytes() == values.tobytes() for name, values in VALUES.items())
    assert list(target.parent.iterdir()) == [target]


def test_safetensors_hold_the_same_values_with_their_shapes(tmp_path: Path, config: Path) -> None:
    from safetensors.numpy import load_file

    found = load_file(save_model(tmp_path / "m", VALUES, config, {}) / "model.safetensors")
    assert {n: (v.shape, v.tobytes()) for n, v in found.items()} == {
        n: (v.shape, v.tobytes()) for n, v in VALUES.items()
    }


def test_the_hash_follows_its_rule(tmp_path: Path, config: Path) -> None:
    target = save_model(tmp_path / "m", VALUES, config, {})
    assert model_hash(target) == hash_values(VALUES) == plain_hash(VALUES)
    assert hash_values({**VALUES, "Z": np.array([0, 1, 3], dtype=np.float32)}) != plain_hash(VALUES)
    assert hash_values({**VALUES, "Z": -VALUES["Z"]}) != plain_hash(VALUES)


FILES_BESIDES = ("model.safetensors", "config.py", "path.txt", "metrics.json", "done")


@pytest.mark.parametrize("failing", range(1, len(VALUES) + len(FILES_BESIDES) + 3))
def test_a_failure_while_writing_leaves_no_pass_directory(
    tmp_path: Path, config: Path, monkeypatch: pytest.MonkeyPatch, failing: int
) -> None:
    calls = 0
    real = os.fsync

    def fsync(fd: int) -> None:
        nonlocal calls
        calls += 1
        if calls == failing:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        real(fd)

    monkeypatch.setattr(os, "fsync", fsync)
    target = tmp_path / "out" / "pass-00000"
    if failing > len(VALUES) + len(FILES_BESIDES) + 1:  # the rename is done: what fails is only making it durable
        with pytest.raises(StorageError):
            save_model(target, VALUES, config, {})
        assert model_hash(target) == plain_hash(VALUES)
        return
    with pytest.raises(StorageError, match=f"the disk is full: cannot write {target}"):
        save_model(target, VALUES, config, {})
    assert list(target.parent.iterdir()) == []
    monkeypatch.setattr(os, "fsync", real)
    assert model_hash(save_model(target, VALUES, config, {})) == plain_hash(VALUES)


@pytest.mark.parametrize("count", [20_000, 9_000], ids=["in a parameter", "in the safetensors file"])
def test_a_full_disk_is_reported_and_earlier_models_stay(tiny_disk: Path, config: Path, count: int) -> None:
    before = save_model(tiny_disk / "pass-00000", {"w": np.ones(10, dtype=np.float32)}, config, {})
    with pytest.raises(StorageError, match="the disk is full"):
        save_model(tiny_disk / "pass-00001", {"w": np.ones(count, dtype=np.float32)}, config, {})
    assert list(tiny_disk.iterdir()) == [before]
    assert model_hash(before)


def test_the_rest_of_an_earlier_try_is_swept_away(tmp_path: Path, config: Path) -> None:
    half = tmp_path / ".pass-00000.1.tmp"
    half.mkdir()
    (half / "junk").write_text("x")
    target = save_model(tmp_path / "pass-00000", VALUES, config, {})
    assert "junk" not in parameter_names(target)
    assert not half.exists()


def test_the_same_values_twice_are_fine(tmp_path: Path, config: Path) -> None:
    target = save_model(tmp_path / "m", VALUES, config, {"cost": 1})
    metrics = (target / "metrics.json").read_bytes()
    assert save_model(target, VALUES, config, {"cost": 2}) == target
    assert (target / "metrics.json").read_bytes() == metrics


def test_other_values_over_a_finished_model_are_refused(tmp_path: Path, config: Path) -> None:
    target = save_model(tmp_path / "m", VALUES, config, {})
    with pytest.raises(ModelError, match=f"{target} exists and holds another model"):
        save_model(target, {**VALUES, "Z": VALUES["Z"] + 1}, config, {})
    assert model_hash(target) == plain_hash(VALUES)


def test_a_model_without_done_suggests_the_last_pass(tmp_path: Path, config: Path) -> None:
    for number in range(2):
        save_model(tmp_path / pass_name(number), VALUES, config, {})
    with pytest.raises(ModelError, match="is not a finished model: it has no file `done`") as caught:
        load_values(tmp_path)
    assert caught.value.fix == f"did you mean {tmp_path / 'pass-00001'}?"
    with pytest.raises(ModelError, match="there is no model directory"):
        load_values(tmp_path / "nowhere")


def test_a_model_is_loaded_into_the_programs_own_arrays(tmp_path: Path, config: Path) -> None:
    target = save_model(tmp_path / "m", VALUES, config, {})
    arrays = {n: np.zeros(v.shape, dtype=np.float32) for n, v in VALUES.items()}
    load_into(target, [Parameter(name=n, shape=v.shape) for n, v in VALUES.items()], arrays)
    assert hash_values(arrays) == plain_hash(VALUES)


def test_a_model_of_another_program_is_refused_by_parameter(tmp_path: Path, config: Path) -> None:
    target = save_model(tmp_path / "m", VALUES, config, {})
    with pytest.raises(ModelError, match=f"{target} has no parameter other"):
        load_into(target, [Parameter(name="other", shape=(1,))], {})
    with pytest.raises(ModelError, match=r"Z has 3 values, the program wants 4 \(shape \[2, 2\]\)"):
        load_into(target, [Parameter(name="Z", shape=(2, 2))], {"Z": np.zeros((2, 2), dtype=np.float32)})


def test_no_written_file_name_reads_as_a_parameter(tmp_path: Path, config: Path) -> None:
    target = save_model(tmp_path / "m", {}, config, {})
    assert parameter_names(target) == []
    assert model.config_name(target) == config.name


BOUNDED = Parameter(name="emb", shape=(6, 2), init=Init(mean=0.5), rows=Rows())
UNBOUNDED = Parameter(name="wide", shape=(2**40, 2), init=Init(mean=0.5), rows=Rows())


def rows_of(*ids: int) -> Block:
    return Block(np.array(ids, np.uint64), np.arange(2 * len(ids), dtype=np.float32).reshape(-1, 2))


def test_a_bounded_table_is_saved_in_full_with_first_values(tmp_path: Path, config: Path) -> None:
    arrays = table_arrays(BOUNDED, 1, rows_of(1, 4))
    assert arrays["emb"].tolist() == [[0.5, 0.5], [0, 1], [0.5, 0.5], [0.5, 0.5], [2, 3], [0.5, 0.5]]
    target = save_model(tmp_path / "m", arrays, config, {})
    assert parameter_names(target) == ["emb"]
    found = load_rows(target, BOUNDED)
    assert (found.ids.tolist(), found.rows.tolist()) == (list(range(6)), arrays["emb"].tolist())


@pytest.mark.parametrize("ids", [(), (0,), (3, 2**33, 2**40 - 1)])
def test_an_unbounded_tables_rows_are_saved_beside_their_ids(
    tmp_path: Path, config: Path, ids: tuple[int, ...]
) -> None:
    saved = rows_of(*ids)
    target = save_model(tmp_path / "m", table_arrays(UNBOUNDED, 1, saved), config, {})
    assert parameter_names(target) == ["wide", "wide.ids"]
    assert (target / "wide.ids").read_bytes() == struct.pack(f"<iIQ{len(ids)}Q", 0, 8, len(ids), *ids)
    found = load_rows(target, UNBOUNDED)
    assert (found.ids.tolist(), found.rows.tobytes()) == (list(ids), saved.rows.tobytes())
    assert found.rows.shape == (len(ids), 2)
    assert model_hash(target) == hash_values(table_arrays(UNBOUNDED, 1, saved))


@pytest.mark.parametrize("parameter", [BOUNDED, UNBOUNDED], ids=["bounded", "unbounded"])
def test_training_continues_with_the_rows_that_were_trained(tmp_path: Path, config: Path, parameter: Parameter) -> None:
    saved = Block(np.array([1, 4], np.uint64), np.array([[0.5, 1.0], [2.0, 3.0]], np.float32))
    target = save_model(tmp_path / "m", table_arrays(parameter, 1, saved), config, {})
    found = load_trained(target, parameter, 1)
    assert (found.ids.tolist(), found.rows.tolist()) == ([1, 4], saved.rows.tolist())


def test_an_untouched_row_of_a_bounded_table_is_not_trained(tmp_path: Path, config: Path) -> None:
    saved = Block(np.array([0, 1], np.uint64), np.array([[0.5, 0.5], [0.5, -0.5]], np.float32))
    target = save_model(tmp_path / "m", table_arrays(BOUNDED, 1, saved), config, {})
    assert load_trained(target, BOUNDED, 1).ids.tolist() == [1]


def test_rows_of_another_program_are_refused(tmp_path: Path, config: Path) -> None:
    arrays = {**table_arrays(BOUNDED, 1, rows_of(1)), **table_arrays(UNBOUNDED, 1, rows_of(7, 9))}
    target = save_model(tmp_path / "m", arrays, config, {})
    taller = Parameter(name="emb", shape=(7, 2), rows=Rows())
    with pytest.raises(ModelError, match="emb has 12 values, the program wants 7 rows of 2"):
        load_rows(target, taller)
    wider = Parameter(name="wide", shape=(2**40, 3), rows=Rows())
    with pytest.raises(ModelError, match="wide has 4 values, the program wants 2 rows of 3"):
        load_rows(target, wider)
    with pytest.raises(ModelError, match=r"cannot read .*emb\.ids: No such file"):
        load_rows(target, Parameter(name="emb", shape=(2**40, 2), rows=Rows()))


def test_a_dense_parameter_may_be_called_like_a_list_of_ids(tmp_path: Path, config: Path) -> None:
    target = save_model(tmp_path / "m", {"w.ids": VALUES["Z"]}, config, {})
    assert load_values(target)["w.ids"].tobytes() == VALUES["Z"].tobytes()
