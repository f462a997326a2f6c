"""A user's folder with a config and a provider, and a shard's working directory next to it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from textwrap import dedent

import numpy as np
import pytest

from bireme.programs.columns import Columns
from bireme.programs.config.load import ConfigProgram
from bireme.programs.loading import ProgramSpec, load_program
from bireme.programs.program import Computation

CONFIG = """
from paddle.trainer_config_helpers import *
is_predict = get_config_arg('is_predict', bool, False)
define_py_data_sources2(
    None if is_predict else 'data/train.list',
    'data/pred.list' if is_predict else 'data/test.list',
    module='reviews', obj='process_predict' if is_predict else 'process', args={'size': 10})
settings(batch_size=4, learning_rate=0.1, learning_method=AdamOptimizer(),
         regularization=L2Regularization(8e-4), gradient_clipping_threshold=25)
words = data_layer(name='word', size=10)
answer = fc_layer(input=words, size=2, act=SoftmaxActivation())
if is_predict:
    outputs([maxid_layer(answer), answer])
else:
    outputs(classification_cost(input=answer, label=data_layer(name='label', size=2)))
"""
PROVIDER = """
from paddle.trainer.PyDataProvider2 import *

def hook(settings, size, is_train, file_list, **kwargs):
    settings.size = size
    settings.input_types = [sparse_binary_vector(size), integer_value(2)]

@provider(init_hook=hook, cache=CacheType.CACHE_PASS_IN_MEM)
def process(settings, file_name):
    with open(file_name) as lines:
        for line in lines:
            label, text = line.rstrip('\\n').split('\\t')
            yield [int(word) for word in text.split()], int(label)

def predict_hook(settings, size, **kwargs):
    settings.input_types = [sparse_binary_vector(size)]

@provider(init_hook=predict_hook, should_shuffle=False)
def process_predict(settings, file_name):
    with open(file_name) as lines:
        for line in lines:
            yield [int(word) for word in line.split()]
"""


class Home:
    """What a user has on disk."""

    def __init__(self, root: Path) -> None:
        self.folder, self.workdir = root / "quick_start", root / "0"
        (self.workdir / "data").mkdir(parents=True)
        self.folder.mkdir()
        self.write("config.py", CONFIG)
        self.write("reviews.py", PROVIDER)
        self.data("train.txt", "1\t1 2 2\n0\t7 8\n1\t1 3\n0\t\n0\t9\n")
        self.data("train.list", "data/train.txt\n")
        self.data("test.txt", "1\t2\n0\t8\n")
        self.data("test.list", "data/test.txt\n")
        self.data("pred.txt", "1 2\n8\n")
        self.data("pred.list", "data/pred.txt\n")

    def write(self, name: str, text: str) -> Path:
        path = self.folder / name
        path.write_text(dedent(text).lstrip("\n"))
        return path

    def data(self, name: str, text: str) -> None:
        (self.workdir / "data" / name).write_text(text)

    def load(self, config: str | None = None, args: Mapping[str, str] | None = None) -> ConfigProgram:
        """Load config.py, or this text in its place."""
        if config is not None:
            self.write("config.py", config)
        program = load_program(ProgramSpec(str(self.folder / "config.py"), self.workdir, args or {}))
        assert isinstance(program, ConfigProgram)
        return program


@pytest.fixture
def home(tmp_path: Path) -> Home:
    return Home(tmp_path)


Model = tuple[Computation[Columns], dict[str, "np.ndarray"], dict[str, "np.ndarray"]]


@pytest.fixture
def start() -> Callable[[ConfigProgram], Model]:
    """Give a program memory: parameters from a fixed generator, gradients full of rubbish."""

    def start(program: ConfigProgram) -> Model:
        rng = np.random.default_rng(7)
        values = {p.name: rng.normal(0, 0.5, p.shape).astype(np.float32) for p in program.parameters}
        grads = {name: np.full_like(value, np.nan) for name, value in values.items()}
        return program.bind(values, grads), values, grads

    return start


def _rows_of(program: ConfigProgram, batch: Columns) -> dict[str, np.ndarray]:
    """For each sparse parameter, the rows that a batch needs."""
    pairs = zip(program.lookups, batch.compact(program.lookups).ids, strict=True)
    return {name: ids.astype(np.int64) for lookup, ids in pairs for name in lookup.parameters}


@pytest.fixture
def check_compact() -> Callable[[ConfigProgram, Model, Columns, int], None]:
    """Compute a batch from whole tables and from compact ones with spare rows: the bits must be the same."""

    def check(program: ConfigProgram, whole: Model, batch: Columns, spare: int) -> None:
        bound, values, grads = whole
        rows, part = _rows_of(program, batch), batch.compact(program.lookups).batch
        small = {name: value[rows[name]] if name in rows else value.copy() for name, value in values.items()}
        for name in rows:
            small[name] = np.concatenate([small[name], np.full((spare, small[name].shape[1]), 9, dtype=np.float32)])
        small_grads = {name: np.full_like(value, np.nan) for name, value in small.items()}
        again = program.bind(small, small_grads)
        assert bound.step(batch) == again.step(part)
        for name, grad in grads.items():
            expected = grad[rows[name]] if name in rows else grad
            assert small_grads[name][: len(expected)].tobytes() == expected.tobytes(), name
        assert bound.evaluate(batch) == again.evaluate(part)
        left, right = bound.predict(batch), again.predict(part)
        assert {name: array.tobytes() for name, array in left.items()} == {
            name: array.tobytes() for name, array in right.items()
        }

    return check
