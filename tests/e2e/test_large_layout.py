"""The determinism promise with many processes and lanes, dense and sparse parameters together."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from bireme.data.split import split_lines
from tests.e2e.conftest import Cli, lay_out

CONFIG = "trainer_config.rows.py"


@pytest.fixture
def rows_job(tmp_path: Path, reviews: Path) -> Path:
    """The small job in 16 shards: rows of a sparse parameter, and a dense bias that leaves most dense lanes empty."""
    path = lay_out(tmp_path / "job", CONFIG)
    text = (path.parent / "quick_start" / "trainer_config.lr.py").read_text()
    changes = {
        "act=SoftmaxActivation())": "act=SoftmaxActivation(), param_attr=ParamAttr(sparse_update=True))",
        "learning_method=AdamOptimizer()": "learning_method=AdaGradOptimizer()",
        "is_predict else 128": "is_predict else 8",  # five rounds a pass: a shard has 37 or 38 reviews
    }
    for old, new in changes.items():
        assert text.count(old) == 1
        text = text.replace(old, new)
    (path.parent / "quick_start" / CONFIG).write_text(text)
    split_lines(reviews, path.parent, 16)
    return path


def train(cli: Cli, job: Path, nodes: int, lanes: tuple[int, int]) -> str:
    """Train with so many trainers and pservers, each with so many dense and sparse lanes; returns the model's hash."""
    before = job.read_text()
    dense, sparse = lanes
    job.write_text(f"{before}lanes:\n  ports_num: {dense}\n  ports_num_for_sparse: {sparse}\n")
    output = job.parent / f"out-{nodes}"
    done = cli.run("train", job, "--output", output, "--json", "--trainers", nodes, "--pservers", nodes)
    job.write_text(before)
    assert done.code == 0, done.err + done.out
    assert lanes_kept(output) == {"values": nodes * dense, "rows": nodes * sparse}
    return str(done.json["hash"])


def lanes_kept(output: Path) -> dict[str, int]:
    """How many lanes kept values of dense parameters and how many kept rows, by the pservers' own words."""
    logs = "".join(log.read_text() for log in output.glob("node_*/server.log"))
    return {
        "values": len(re.findall(r"set up lane=\d+ state='\d+ values", logs)),
        "rows": len(re.findall(r"set up lane=\d+ state='rows of ", logs)),
    }


def test_four_nodes_of_four_lanes_give_one_nodes_model(cli: Cli, rows_job: Path) -> None:
    assert train(cli, rows_job, 4, (2, 2)) == train(cli, rows_job, 1, (1, 1))


@pytest.mark.slow
def test_sixteen_nodes_of_64_lanes_give_one_nodes_model(cli: Cli, rows_job: Path) -> None:
    assert train(cli, rows_job, 16, (2, 2)) == train(cli, rows_job, 1, (1, 1))
