"""`bireme model` on tables without a range: rows and their ids, also where there are none yet."""

from __future__ import annotations

import json
from pathlib import Path

import msgspec
import numpy as np
import pytest
from click.testing import CliRunner
from tests.unit.cli.conftest import closed

from bireme.cli.model import model
from bireme.job.output.model import save_model, table_arrays
from bireme.ps.wire.row_frames import Block
from bireme.spec.model import Parameter, Rows

TABLE = Parameter(name="wide", shape=(2**63, 2), rows=Rows())


def saved(directory: Path, *ids: int) -> str:
    config = directory.parent / "config.py"
    config.touch()
    block = Block(np.array(ids, np.uint64), np.ones((len(ids), 2), np.float32))
    return str(save_model(directory, table_arrays(TABLE, 1, block), config, {}))


def test_a_table_without_a_row_is_shown(tmp_path: Path) -> None:
    done = CliRunner().invoke(model, ["show", saved(tmp_path / "m"), "--json"], catch_exceptions=False)
    shown = json.loads(done.output)["parameters"]
    assert [(p["name"], p["rows"], p["values"], p["mean"], p["largest"]) for p in shown] == [("wide", 0, 0, 0.0, 0.0)]


@pytest.mark.parametrize(
    ("ids", "size", "values"),
    [((), "no rows", "0 values"), ((5,), "1 row of 2", "2 values"), ((1, 7), "2 rows of 2", "4 values")],
)
def test_a_table_shows_its_rows_and_its_ids_are_no_parameter(
    tmp_path: Path, ids: tuple[int, ...], size: str, values: str
) -> None:
    lines = CliRunner().invoke(model, ["show", saved(tmp_path / "m", *ids)], catch_exceptions=False).output.splitlines()
    assert lines[0].endswith(f"config.py, {values}")
    assert len(lines) == 2
    assert size in lines[1]


def test_a_model_is_shown_with_the_results_of_its_pass(tmp_path: Path) -> None:
    (tmp_path / "config.py").touch()
    made = save_model(
        tmp_path / "m", {"w": np.ones(2, np.float32)}, tmp_path / "config.py", msgspec.to_builtins(closed(3))
    )
    shown = CliRunner().invoke(model, ["show", str(made)], catch_exceptions=False).output.splitlines()
    assert shown[-1].startswith("pass   3  cost 0.5000")


def test_an_export_counts_parameters_and_names_the_ids(tmp_path: Path) -> None:
    target = tmp_path / "m.npz"
    arguments = ["export", saved(tmp_path / "m", 1, 7), str(target)]
    lines = CliRunner().invoke(model, arguments, catch_exceptions=False).output.splitlines()
    assert lines == [f"wrote 1 parameter to {target}", "  wide: 2 rows of 2, by the ids in wide.ids"]
    assert sorted(np.load(target).files) == ["wide", "wide.ids"]


@pytest.mark.parametrize(("other", "different", "code"), [((1, 2**62), 0, 0), ((2, 2**62), 1, 1), ((1, 3), 1, 1)])
def test_each_id_that_differs_counts_once(tmp_path: Path, other: tuple[int, ...], different: int, code: int) -> None:
    paths = [saved(tmp_path / "a", 1, 2**62), saved(tmp_path / "b", *other)]
    done = CliRunner().invoke(model, ["diff", *paths, "--json"])
    assert done.exit_code == code
    assert [p["different"] for p in json.loads(done.output)["parameters"]] == [0, different]


def test_tables_of_different_rows_are_not_compared_by_value(tmp_path: Path) -> None:
    done = CliRunner().invoke(model, ["diff", saved(tmp_path / "a", 1), saved(tmp_path / "b", 1, 2)])
    assert done.exit_code == 1
    assert "cannot be compared: 1 values and 2 values" in done.output
