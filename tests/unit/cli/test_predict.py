"""A model put to use: what is given, what is left out, and a model that is not whole."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

from bireme.cli.model import predict
from bireme.core.errors import DataError, ModelError
from bireme.job.output.model import save_model
from bireme.programs.loading import ProgramSpec, load_program

CONFIG = """
from paddle.trainer_config_helpers import *
is_predict = get_config_arg('is_predict', bool, False)
define_py_data_sources2(None if is_predict else 'data/train.list', 'data/pred.list', module='words', obj='process')
settings(batch_size=4, learning_rate=0.1)
answer = fc_layer(input=data_layer(name='word', size=4), size=2, act=SoftmaxActivation())
outputs(answer if is_predict else classification_cost(input=answer, label=data_layer(name='label', size=2)))
"""
PROVIDER = """
from paddle.trainer.PyDataProvider2 import *

@provider(input_types={'word': sparse_binary_vector(4), 'label': integer_value(2)}, should_shuffle=False)
def process(settings, file_name):
    with open(file_name) as lines:
      for line in lines:
          yield {'word': [int(word) for word in line.split()], 'label': 0}
"""


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """The pass directory of a small job whose shard names nothing to predict on."""
    data = tmp_path / "shards/0/data"
    data.mkdir(parents=True)
    (data / "train.list").write_text("data/train.txt\n")
    (tmp_path / "config.py").write_text(CONFIG)
    (tmp_path / "words.py").write_text(PROVIDER)
    (tmp_path / "job.yaml").write_text("name: small\nprogram: {config: config.py}\ndata: {path: shards}\n")
    program = load_program(ProgramSpec(str(tmp_path / "config.py"), tmp_path, {}))
    values = {p.name: np.ones(p.shape, np.float32) for p in program.parameters}
    return save_model(tmp_path / "output/pass-00000", values, tmp_path / "config.py", {})


def ask(model: Path, *arguments: object, typed: str = "") -> Any:
    job = ["--job", str(model.parents[1] / "job.yaml")]
    return CliRunner().invoke(predict, [str(model), *map(str, arguments), *job], input=typed)


def test_without_a_file_or_a_list_it_asks_for_a_file_or_a_dash(model: Path) -> None:
    error = ask(model).exception
    assert isinstance(error, DataError) and error.what.startswith("cannot read test list data/pred.list")
    assert error.fix == "give a file with one sample a line, or `-` for standard input"


def test_without_a_file_it_says_what_it_predicts_on(model: Path) -> None:
    (model.parents[1] / "shards/0/data/pred.list").write_text("data/pred.txt\n")
    (model.parents[1] / "shards/0/data/pred.txt").write_text("1 2\n")
    done = ask(model)
    assert done.stdout == "0.5 0.5\n"
    assert "the config's own list; give a file, or `-` for standard input" in done.stderr


def test_standard_input_is_read_without_a_word(model: Path) -> None:
    done = ask(model, "-", typed="1 2\n3\n")
    assert (done.stdout, done.stderr) == ("0.5 0.5\n0.5 0.5\n", "")


@pytest.mark.parametrize("nbytes", [0, 40, -1])
def test_a_cut_copy_of_the_values_is_noticed(model: Path, nbytes: int) -> None:
    copy = model / "model.safetensors"
    copy.write_bytes(copy.read_bytes()[:nbytes])
    error = ask(model, "-", typed="1 2\n").exception
    assert isinstance(error, ModelError) and error.what.startswith(f"{copy} is not whole: ")
    assert error.fix == "use the model of another pass, or train this one again"
