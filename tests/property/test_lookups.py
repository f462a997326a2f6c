from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from bireme.programs.columns import InputType
from bireme.programs.lookups import Lookup, unite
from bireme.programs.packing import pack

EDGES = [0, 1, 2**31 - 1, 2**32, 2**63 - 1, 2**63, 2**64 - 2]
ID = st.one_of(st.sampled_from(EDGES), st.integers(0, 2**64 - 2))
INPUTS = (
    InputType(name="bag", dim=2**64 - 1, kind="sparse_binary"),
    InputType(name="narrow", dim=2**31 - 1, kind="index", is_sequence=True),
    InputType(name="user", dim=2**64 - 1, kind="index"),
)
LOOKUPS = (Lookup(("bag", "narrow"), ("a",)), Lookup(("user",), ("b",)))
SAMPLES = st.lists(
    st.tuples(st.lists(ID, max_size=5), st.lists(st.integers(0, 2**31 - 2), max_size=3), ID), max_size=6
)  # fmt: skip


@given(shards=st.lists(SAMPLES, min_size=1, max_size=3))
def test_positions_in_shared_lists_name_every_batchs_ids(shards: list[list[tuple[object, ...]]]) -> None:
    batches = [pack(samples, INPUTS) for samples in shards]
    parts = [batch.compact(LOOKUPS) for batch in batches]
    tables = unite([part.ids for part in parts])
    for batch, part in zip(batches, parts, strict=True):
        for lookup, own, table in zip(LOOKUPS, part.ids, tables, strict=True):
            assert (np.diff(own) > 0).all() and (np.diff(table) > 0).all()
            for numbered, ids in ((part.batch, own), (part.renumber(tables), table)):
                for name in lookup.columns:
                    positions = numbered.to_arrays()[f"{name}.ids"]
                    assert ids[positions].tolist() == batch.to_arrays()[f"{name}.ids"].tolist()
    needed = {
        id_ for batch in batches for name in LOOKUPS[0].columns for id_ in batch.to_arrays()[f"{name}.ids"].tolist()
    }
    assert tables[0].tolist() == sorted(needed)
