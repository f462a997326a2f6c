from __future__ import annotations

import pytest

from bireme.core.errors import SpecError
from bireme.ps.plan import BORDER, Layout, Piece, Slice, check_names
from bireme.spec.model import Parameter, Rows

W = Parameter(name="w", shape=(2, 10))
B = Parameter(name="b", shape=(3,))
LONG = Parameter(name="long", shape=(3, 700))


def test_each_parameter_starts_on_a_64_byte_border() -> None:
    layout = Layout([W, B])
    assert layout.offsets == {"w": 0, "b": 32}
    assert layout.size == BORDER == 1024


@pytest.mark.parametrize(("floats", "size"), [(1, 1024), (1024, 1024), (1025, 2048), (4096, 4096)])
def test_the_flat_vector_ends_on_the_next_page_border(floats: int, size: int) -> None:
    assert Layout([Parameter(name="x", shape=(floats,))]).size == size


def test_a_parameter_that_reaches_over_a_cut_is_in_two_pieces() -> None:
    layout = Layout([LONG, B])
    first, second = layout.slices(2)
    assert (first, second) == (Slice(0, 1024), Slice(1024, 3072))
    assert layout.pieces(first) == [Piece(LONG, 0, 1024, 0)]
    assert layout.pieces(second) == [Piece(LONG, 0, 1076, 1024), Piece(B, 1088, 1091, 0)]


def test_more_lanes_than_pages_leave_some_lanes_empty() -> None:
    slices = Layout([B]).slices(4)
    assert [len(s) for s in slices] == [0, 0, 0, 1024]
    assert Layout([B]).pieces(slices[0]) == []


def test_two_parameters_of_one_name_are_refused_by_name() -> None:
    with pytest.raises(SpecError, match="parameter 'w' is defined twice"):
        Layout([W, B, W])


@pytest.mark.parametrize("shape", [(0,), (3, 0), (-1, 2)])
def test_a_shape_without_elements_is_refused_by_name(shape: tuple[int, ...]) -> None:
    with pytest.raises(SpecError, match=r"parameter 'x' has shape .*: every side must be at least 1"):
        Layout([Parameter(name="x", shape=shape)])


def test_a_program_without_parameters_has_an_empty_plan() -> None:
    layout = Layout([])
    assert layout.size == 0
    assert [len(s) for s in layout.slices(3)] == [0, 0, 0]


@pytest.mark.parametrize("name", ["a/b", "../x", "done", ".hidden", "", "model.safetensors", "x" * 300, "nul\0"])
def test_a_name_that_cannot_be_a_file_in_a_model_is_refused(name: str) -> None:
    with pytest.raises(SpecError, match="a parameter cannot be called"):
        Layout([Parameter(name=name, shape=(2,))])


@pytest.mark.parametrize("name", ["../x", "done", ""])
def test_a_sparse_parameter_is_a_file_in_a_model_too(name: str) -> None:
    with pytest.raises(SpecError, match="a parameter cannot be called") as caught:
        check_names([W, Parameter(name=name, shape=(9, 2), rows=Rows())])
    assert "its file in a saved model" in caught.value.why


@pytest.mark.parametrize("other", [W, Parameter(name="w", shape=(9, 2), rows=Rows())], ids=["dense", "sparse"])
def test_a_sparse_parameter_needs_a_name_of_its_own(other: Parameter) -> None:
    with pytest.raises(SpecError, match="parameter 'w' is defined twice"):
        check_names([Parameter(name="w", shape=(2**40, 2), rows=Rows()), B, other])


def test_no_parameter_may_be_named_as_a_tables_file_of_ids() -> None:
    taken = Parameter(name="emb.ids", shape=(4,))
    with pytest.raises(SpecError, match=r"parameter emb\.ids and the ids of emb would be one file"):
        check_names([taken, Parameter(name="emb", shape=(2**63, 2), rows=Rows())])
    check_names([taken, Parameter(name="emb", shape=(9, 2), rows=Rows())])
