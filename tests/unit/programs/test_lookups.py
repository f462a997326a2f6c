from __future__ import annotations

import numpy as np
import pytest

from bireme.programs.columns import CompactColumns, InputType, narrow_ids
from bireme.programs.lookups import Lookup, unite
from bireme.programs.packing import pack

BAG = InputType(name="bag", dim=100, kind="sparse_binary")
USER = InputType(name="user", dim=2**64 - 1, kind="index")
TEXT = InputType(name="text", dim=100, kind="index", is_sequence=True)
LABEL = InputType(name="label", dim=2, kind="index")
INPUTS = (BAG, USER, TEXT, LABEL)
WORDS = Lookup(("bag", "text"), ("words", "more_words"))
USERS = Lookup(("user",), ("users",))
IDLE = Lookup((), ("idle",))
ROWS: list[tuple[object, ...]] = [([9, 3, 9], 2**63, [7], 1), ([], 2**64 - 2, [3, 99], 0)]


def ids_of(part: CompactColumns) -> list[list[int]]:
    return [ids.tolist() for ids in part.ids]


def test_columns_of_a_lookup_are_numbered_by_one_list_of_ids() -> None:
    part = pack(ROWS, INPUTS).compact((WORDS, USERS))
    assert ids_of(part) == [[3, 7, 9, 99], [2**63, 2**64 - 2]]
    assert all(ids.dtype == np.uint64 for ids in part.ids)
    arrays = part.batch.to_arrays()
    assert arrays["bag.ids"].tolist() == [2, 0, 2]
    assert arrays["text.ids"].tolist() == [1, 0, 3]
    assert arrays["user.ids"].tolist() == [0, 1]
    assert {arrays[f"{name}.ids"].dtype for name in ("bag", "text", "user")} == {np.dtype(np.int32)}


def test_everything_but_ids_of_lookups_stays_as_it_was() -> None:
    batch = pack(ROWS, INPUTS)
    part = batch.compact((WORDS, USERS))
    assert (part.batch.inputs, len(part.batch)) == (batch.inputs, 2)
    before, after = batch.to_arrays(), part.batch.to_arrays()
    assert list(before) == list(after)
    for name in ("bag.offsets", "text.offsets", "label.ids"):
        assert after[name] is before[name]
    assert before["bag.ids"].tolist() == [9, 3, 9]


def test_lookup_without_columns_or_ids_has_an_empty_list() -> None:
    assert ids_of(pack(ROWS, INPUTS).compact((IDLE, USERS))) == [[], [2**63, 2**64 - 2]]
    part = pack([], INPUTS).compact((WORDS, USERS))
    assert ids_of(part) == [[], []]
    assert part.batch.to_arrays()["user.ids"].dtype == np.int32


def test_columns_that_a_batch_lacks_are_skipped() -> None:
    assert ids_of(pack([([5],)], (BAG,)).compact((WORDS, USERS))) == [[5], []]


def test_batches_that_share_tables_are_renumbered_by_them() -> None:
    first = pack(ROWS[:1], INPUTS).compact((WORDS, USERS))
    second = pack(ROWS[1:], INPUTS).compact((WORDS, USERS))
    tables = unite([first.ids, second.ids])
    assert [ids.tolist() for ids in tables] == [[3, 7, 9, 99], [2**63, 2**64 - 2]]
    arrays = second.renumber(tables).to_arrays()
    assert (arrays["text.ids"].tolist(), arrays["user.ids"].tolist()) == ([0, 3], [1])
    assert arrays["text.ids"].dtype == np.int32


def test_renumbering_by_its_own_lists_copies_nothing() -> None:
    part = pack(ROWS, INPUTS).compact((WORDS, USERS))
    arrays = part.renumber(unite([part.ids])).to_arrays()
    assert all(arrays[name] is array for name, array in part.batch.to_arrays().items())


@pytest.mark.parametrize("table", [[3, 7, 8, 9, 98], [0, 1, 2, 3, 4]])
def test_table_that_lacks_a_row_of_the_batch_is_a_bug(table: list[int]) -> None:
    part = pack(ROWS, INPUTS).compact((WORDS,))
    with pytest.raises(AssertionError, match="rows of the batch are missing: this is a bug"):
        part.renumber([np.array(table, dtype=np.uint64)])


def test_wide_ids_that_were_not_made_compact_are_a_bug() -> None:
    batch = pack(ROWS, INPUTS)
    with pytest.raises(AssertionError, match="slot 'user' was not made compact: this is a bug"):
        narrow_ids(batch.columns["user"])
    assert narrow_ids(batch.compact((USERS,)).batch.columns["user"]).tolist() == [0, 1]
