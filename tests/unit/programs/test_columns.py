from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest

from bireme.core.errors import DataError
from bireme.programs.columns import MAX_DIM, Columns, InputType, Kind
from bireme.programs.packing import pack

WORD = InputType(name="word", dim=10, kind="sparse_binary")
LABEL = InputType(name="label", dim=2, kind="index")
PIXELS = InputType(name="pixels", dim=3, kind="dense")
WEIGHTED = InputType(name="weighted", dim=10, kind="sparse_float")
TEXT = InputType(name="text", dim=10, kind="index", is_sequence=True)
EDGES = [0, 2**31 - 1, 2**31, 2**63 - 1, 2**63, 2**64 - 2]


def wide(kind: Kind, is_sequence: bool = False) -> InputType:
    return InputType(name="wide", dim=MAX_DIM, kind=kind, is_sequence=is_sequence)


def test_each_kind_packs_into_its_arrays() -> None:
    rows = [([1, 1], 0, [1, 2, 3], [(4, 0.5)], [9]), ([], 1, np.zeros(3), [], (1, 2))]
    batch = pack(rows, (WORD, LABEL, PIXELS, WEIGHTED, TEXT))
    arrays = batch.to_arrays()
    assert len(batch) == 2
    assert arrays["word.ids"].tolist() == [1, 1]
    assert arrays["word.offsets"].tolist() == [0, 2, 2]
    assert arrays["label.ids"].tolist() == [0, 1]
    assert arrays["pixels.values"].tolist() == [[1, 2, 3], [0, 0, 0]]
    assert arrays["weighted.values"].tolist() == [0.5]
    assert arrays["text.offsets"].tolist() == [0, 1, 3]
    assert arrays["text.ids"].dtype == np.int32


def test_no_samples_pack_to_an_empty_batch() -> None:
    batch = pack([], (WORD, LABEL, PIXELS, WEIGHTED))
    assert len(batch) == 0
    assert len(batch.take(np.zeros(0, dtype=np.int64))) == 0
    assert batch.to_arrays()["pixels.values"].shape == (0, 3)


@pytest.mark.parametrize(
    ("slot", "value", "said"),
    [
        (WORD, [1, 10], "expected ids from 0 to 9, got 10"),
        (WORD, [-1], "expected ids from 0 to 9, got -1"),
        (WORD, [2**40], "expected ids from 0 to 9, got 1099511627776"),
        (WORD, [1, 2.5], "expected a list of ids below 10, got 2.5 (float) in it"),
        (WORD, "12", "expected a list of ids below 10, got '12' (str)"),
        (LABEL, 2, "expected ids from 0 to 1, got 2"),
        (LABEL, 1.0, "expected an integer below 2, got 1.0 (float)"),
        (PIXELS, [1.0, 2.0], "expected 3 numbers, got 2"),
        (PIXELS, [1.0, 2.0, float("nan")], "expected finite numbers, got"),
        (PIXELS, [1.0, 2.0, 1e300], "expected finite numbers, got"),
        (PIXELS, [float("inf"), float("-inf"), 0.0], "expected finite numbers, got"),
        (PIXELS, ["1", "2", "3"], "expected 3 numbers, got ['1', '2', '3'] (list)"),
        (WEIGHTED, [(1, 2.0), (1, 2.0, 3.0)], "expected a list of (id below 10, number) pairs"),
        (WEIGHTED, [1, 2], "expected a list of (id below 10, number) pairs"),
        (WORD, [2**40, "x"], "expected ids from 0 to 9, got 1099511627776"),
        (wide("index"), -1, f"expected ids from 0 to {2**64 - 2}, got -1"),
        (wide("index"), 2**64 - 1, f"expected ids from 0 to {2**64 - 2}, got {2**64 - 1}"),
        (wide("index"), 2**64, f"expected ids from 0 to {2**64 - 2}, got {2**64}"),
        (wide("sparse_binary"), [1, 2**64 - 1], f"expected ids from 0 to {2**64 - 2}, got {2**64 - 1}"),
        (wide("sparse_binary"), [1, 2**64, "x"], f"expected ids from 0 to {2**64 - 2}, got {2**64}"),
        (wide("sparse_binary"), [1, -1], f"expected ids from 0 to {2**64 - 2}, got -1"),
        (wide("sparse_binary"), [1, 0.5], f"expected a list of ids below {2**64 - 1}, got 0.5 (float) in it"),
        (wide("sparse_float"), [(2**64, 1.0)], f"expected ids from 0 to {2**64 - 2}, got {2**64}"),
    ],
)
def test_a_bad_value_is_refused_with_the_expected_and_the_actual(slot: InputType, value: object, said: str) -> None:
    with pytest.raises(DataError) as caught:
        pack([(value,)], (slot,))
    assert f"sample 1: slot {slot.name!r}: {said}" in str(caught.value)


class Files:
    """Labels file by file, like a provider's samples."""

    def __init__(self, files: dict[str, list[int]]) -> None:
        self.where = ""
        self._files = files

    def __iter__(self) -> Iterator[tuple[object, ...]]:
        for name, labels in self._files.items():
            self.where = name
            yield from ((label,) for label in labels)


def test_error_counts_samples_from_the_start_of_each_file() -> None:
    with pytest.raises(DataError, match=r"b\.txt: sample 2: slot 'label'"):
        pack(Files({"a.txt": [0], "b.txt": [1, 5]}), (LABEL,))


def test_wrong_number_of_values_is_refused() -> None:
    with pytest.raises(DataError, match="expected 2 values, got 1"):
        pack([([1],)], (WORD, LABEL))


def test_sequence_of_vectors_is_refused_before_reading() -> None:
    samples = iter([([0.0],)])
    with pytest.raises(DataError, match="not supported yet"):
        pack(samples, (InputType(name="x", dim=3, kind="dense", is_sequence=True),))
    assert len(list(samples)) == 1


def test_take_refuses_rows_that_are_not_there() -> None:
    batch = pack([([1], 0)], (WORD, LABEL))
    for row in (-1, 1):
        with pytest.raises(IndexError):
            batch.take(np.array([row]))


def test_arrays_of_another_program_are_refused() -> None:
    arrays = pack([([1], 0)], (WORD, LABEL)).to_arrays()
    with pytest.raises(DataError, match="lack an array of slot 'weighted'"):
        Columns.from_arrays((WEIGHTED, LABEL), arrays)


@pytest.mark.parametrize(("dim", "dtype"), [(2**31 - 1, np.int32), (2**31, np.uint64), (MAX_DIM, np.uint64)])
def test_ids_are_as_wide_as_the_dimension_needs(dim: int, dtype: type) -> None:
    slot = InputType(name="id", dim=dim, kind="index")
    assert pack([(dim - 1,)], (slot,)).to_arrays()["id.ids"].dtype == dtype
    with pytest.raises(DataError, match=f"expected ids from 0 to {dim - 1}, got {dim}"):
        pack([(dim,)], (slot,))


def test_wide_ids_survive_packing_taking_and_a_file() -> None:
    from safetensors.numpy import load, save

    slots = (
        wide("index"),
        InputType(name="bag", dim=MAX_DIM, kind="sparse_binary"),
        InputType(name="text", dim=MAX_DIM, kind="index", is_sequence=True),
        InputType(name="weighted", dim=MAX_DIM, kind="sparse_float"),
    )
    rows = [(id_, EDGES[:place], np.array(EDGES, dtype=np.uint64), [(id_, 0.5)]) for place, id_ in enumerate(EDGES)]
    batch = pack(rows, slots)
    kept = Columns.from_arrays(slots, load(save(batch.to_arrays()))).take(np.array([5, 2]))
    arrays = kept.to_arrays()
    assert {arrays[f"{slot.name}.ids"].dtype for slot in slots} == {np.dtype(np.uint64)}
    assert arrays["wide.ids"].tolist() == [2**64 - 2, 2**31]
    assert arrays["bag.ids"].tolist() == [*EDGES[:5], *EDGES[:2]]
    assert arrays["text.ids"].tolist() == EDGES * 2
    assert arrays["weighted.ids"].tolist() == [2**64 - 2, 2**31]


def test_narrow_arrays_of_a_wide_slot_are_refused() -> None:
    narrow = InputType(name="wide", dim=9, kind="index")
    for packed, wanted in ((narrow, wide("index")), (wide("index"), narrow)):
        with pytest.raises(DataError, match="lack an array of slot 'wide'"):
            Columns.from_arrays((wanted,), pack([(1,)], (packed,)).to_arrays())
