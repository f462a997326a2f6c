from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from bireme.programs.columns import Columns, InputType
from bireme.programs.packing import pack

INPUTS = (
    InputType(name="bag", dim=50, kind="sparse_binary"),
    InputType(name="label", dim=5, kind="index"),
    InputType(name="dense", dim=2, kind="dense"),
    InputType(name="weighted", dim=50, kind="sparse_float"),
    InputType(name="text", dim=50, kind="index", is_sequence=True),
)
_ID = st.integers(0, 49)
_NUMBER = st.floats(-1e6, 1e6, width=32)
_SAMPLE = st.tuples(
    st.lists(_ID, max_size=6),
    st.integers(0, 4),
    st.lists(_NUMBER, min_size=2, max_size=2),
    st.lists(st.tuples(_ID, _NUMBER), max_size=4),
    st.lists(_ID, max_size=6),
)


def unpack(batch: Columns) -> list[tuple[object, ...]]:
    """Read samples back the slow way."""
    arrays = batch.to_arrays()

    def ragged(name: str, i: int) -> list[object]:
        offsets = arrays["weighted.offsets" if name == "weighted.values" else name.replace("ids", "offsets")]
        return list(arrays[name][offsets[i] : offsets[i + 1]].tolist())

    rows: list[tuple[object, ...]] = []
    for i in range(len(batch)):
        pairs = list(zip(ragged("weighted.ids", i), ragged("weighted.values", i), strict=True))
        label, dense = int(arrays["label.ids"][i]), arrays["dense.values"][i].tolist()
        rows.append((ragged("bag.ids", i), label, dense, pairs, ragged("text.ids", i)))
    return rows


@given(samples=st.lists(_SAMPLE, max_size=8))
def test_packed_samples_read_back_as_they_were(samples: list[tuple[object, ...]]) -> None:
    assert unpack(pack(samples, INPUTS)) == samples


@given(samples=st.lists(_SAMPLE, min_size=1, max_size=8), data=st.data())
def test_take_gives_exactly_the_rows_asked_for(samples: list[tuple[object, ...]], data: st.DataObject) -> None:
    rows = data.draw(st.lists(st.integers(0, len(samples) - 1), max_size=12))
    taken = pack(samples, INPUTS).take(np.array(rows, dtype=np.int64))
    assert len(taken) == len(rows)
    assert unpack(taken) == [samples[row] for row in rows]


@given(samples=st.lists(_SAMPLE, max_size=8))
def test_arrays_of_a_batch_rebuild_it(samples: list[tuple[object, ...]]) -> None:
    arrays = pack(samples, INPUTS).to_arrays()
    assert unpack(Columns.from_arrays(INPUTS, arrays)) == samples
