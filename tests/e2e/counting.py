"""A program whose updates can be counted in its result.

Every gradient is far below zero and is clipped to one step, so that each weight ends as the number of updates that
touched it times that step: exact in float32, whatever the order. A lost or doubled update changes the model's hash.
"""

from __future__ import annotations

from pathlib import Path

CONFIG = """\
from paddle.trainer_config_helpers import *

define_py_data_sources2(
    train_list="data/train.list", test_list=None, module="counted_provider", obj="read", args={"size": 1000}
)
settings(
    batch_size=4, learning_rate=1.0, learning_method=MomentumOptimizer(0.0), gradient_clipping_threshold=2.0 ** -12
)
words = data_layer(name="word", size=1000)
zero = ParamAttr(initial_std=0.0)
guess = fc_layer(input=words, size=1, act=LinearActivation(), param_attr=zero, bias_attr=zero)
outputs(mse_cost(input=guess, label=data_layer(name="label", size=1)))
"""
PROVIDER = """\
from paddle.trainer.PyDataProvider2 import *


def known(settings, size, **kwargs):
    settings.input_types = {"word": sparse_binary_vector(size), "label": dense_vector(1)}


@provider(init_hook=known, cache=CacheType.CACHE_PASS_IN_MEM)
def read(settings, file_name):
    with open(file_name) as lines:
        for line in lines:
            words = {sum(word.encode()) % 1000 for word in line.split()}
            yield {"word": sorted(words), "label": [1e6]}
"""


def count_updates(job: Path, batch_size: int = 4) -> None:
    """Let a small job train the counting program."""
    program = job.parent / "quick_start"
    (program / "counting.py").write_text(CONFIG.replace("batch_size=4", f"batch_size={batch_size}"))
    (program / "counted_provider.py").write_text(PROVIDER)
    job.write_text(job.read_text().replace("trainer_config.lr.py", "counting.py"))
