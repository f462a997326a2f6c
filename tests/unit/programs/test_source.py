from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bireme.core.errors import ConfigScriptError, DataError
from bireme.programs.packing import pack

TYPES = "[sparse_binary_vector(10), integer_value(2)]"


def write_provider(home: Any, body: str, options: str = f"input_types={TYPES}") -> None:
    lines = "\n".join(f"    {line}" for line in body.splitlines())
    head = "from paddle.trainer.PyDataProvider2 import *\ndef hook(s, **_): pass\n"
    home.write("reviews.py", f"{head}@provider({options}, init_hook=hook)\ndef process(settings, name):\n{lines}\n")


def test_samples_come_file_after_file_in_input_order(home: Any) -> None:
    home.data("train.list", "data/train.txt\n\ndata/test.txt\n")
    stream = home.load().source("train").samples(home.workdir, seed=0)
    assert next(stream) == ([1, 2, 2], 1)
    assert stream.where == "data/train.txt"
    assert list(stream)[-2:] == [([2], 1), ([8], 0)]
    assert stream.where == "data/test.txt"


def test_facts_read_no_sample(home: Any) -> None:
    (home.workdir / "data" / "train.txt").unlink()
    facts = home.load().source("train").facts(home.workdir)
    assert facts.files == ("data/train.txt",)
    assert (facts.should_shuffle, facts.is_cacheable) == (True, True)
    assert [slot.name for slot in facts.inputs] == ["word", "label"]


def test_test_source_is_not_shuffled(home: Any) -> None:
    assert home.load().source("test").facts(home.workdir).should_shuffle is False


@pytest.mark.parametrize("sample", ["{'label': 1, 'word': [3]}", "[[3], 1]", "([3], 1)"])
def test_samples_may_be_dicts_lists_and_tuples(home: Any, sample: str) -> None:
    write_provider(home, f"yield {sample}")
    assert list(home.load().source("train").samples(home.workdir, 0)) == [([3], 1)]


def test_types_may_be_a_dict_in_any_order(home: Any) -> None:
    write_provider(home, "yield [3], 1", "input_types={'label': integer_value(2), 'word': sparse_binary_vector(10)}")
    facts = home.load().source("train").facts(home.workdir)
    assert [slot.name for slot in facts.inputs] == ["word", "label"]


def test_single_slot_may_be_yielded_bare(home: Any) -> None:
    source = home.load(args={"is_predict": "true"}).source("predict")
    assert list(source.samples(home.workdir, 0)) == [([1, 2],), ([8],)]


def test_train_and_test_may_have_modules_of_their_own(home: Any) -> None:
    home.write("others.py", (home.folder / "reviews.py").read_text().replace("int(label)", "1"))
    config = (home.folder / "config.py").read_text().replace("module='reviews'", "module=['reviews', 'others']")
    program = home.load(config)
    assert [label for _, label in program.source("test").samples(home.workdir, 0)] == [1, 1]
    assert [label for _, label in program.source("train").samples(home.workdir, 0)] == [1, 0, 1, 0, 0]


def test_list_of_files_may_stand_in_the_config(home: Any) -> None:
    config = (home.folder / "config.py").read_text().replace("'data/train.list'", "['data/test.txt']")
    assert home.load(config).source("train").facts(home.workdir).files == ("data/test.txt",)


def test_import_inside_a_provider_finds_the_users_files(home: Any) -> None:
    home.write("near_by.py", "WORD = 4")
    write_provider(home, "from near_by import WORD\nimport paddle.trainer.PyDataProvider2\nyield [WORD], 1")
    assert list(home.load().source("train").samples(home.workdir, 0)) == [([4], 1)]


def test_providers_randomness_follows_the_seed_and_stays_its_own(home: Any) -> None:
    words = "[random.randrange(10), numpy.random.randint(10)]"
    write_provider(home, f"import random, numpy\nfor _ in range(600):\n    yield {words}, 1")
    source = home.load().source("train")
    random.seed(5)
    np.random.seed(5)
    before = random.getstate()
    stream = source.samples(home.workdir, 3)
    first = [next(stream)]
    assert random.getstate() == before
    random.random()
    first.extend(stream)
    assert first == list(source.samples(home.workdir, 3))
    assert first != list(source.samples(home.workdir, 4))


def test_two_walks_at_the_same_time_do_not_disturb_each_other(home: Any) -> None:
    write_provider(home, "import random\nfor _ in range(1100):\n    yield [random.randrange(10)], 1")
    source = home.load().source("train")
    left, right = source.samples(home.workdir, 3), source.samples(home.workdir, 3)
    assert all(a == b for a, b in zip(left, right, strict=True))


def test_callers_directory_is_back_between_samples(home: Any) -> None:
    here = Path.cwd()
    for _ in home.load().source("train").samples(home.workdir, 0):
        assert Path.cwd() == here


@pytest.mark.parametrize(
    ("body", "line", "said"),
    [
        ("yield [1], 1\nraise ValueError('torn')", 6, "ValueError: torn"),
        ("yield [1], 1\nyield [1], 1, 2", 6, "yields 3 values, but the network has 2 inputs: word, label"),
        ("yield 7", 5, "yields int, but the network has 2 inputs"),
        ("yield {'word': [1]}", 5, "yields a sample without label"),
    ],
)
def test_failing_provider_is_blamed_at_its_line(home: Any, body: str, line: int, said: str) -> None:
    write_provider(home, body)
    with pytest.raises(ConfigScriptError) as caught:
        list(home.load().source("train").samples(home.workdir, 0))
    assert str(caught.value).startswith(f"{home.folder / 'reviews.py'}:{line}: {said}")
    assert f"{line} | {body.splitlines()[line - 5]}" in str(caught.value)


def test_provider_that_yields_nothing_at_all_is_refused(home: Any) -> None:
    write_provider(home, "return None")
    with pytest.raises(ConfigScriptError, match="must yield samples"):
        list(home.load().source("train").samples(home.workdir, 0))


def test_wrong_value_before_a_crash_is_reported_first(home: Any) -> None:
    write_provider(home, "yield [1], 1\nyield [99], 1\nraise ValueError('later')")
    source = home.load().source("train")
    with pytest.raises(DataError, match=r"data/train\.txt: sample 2: slot 'word'"):
        pack(source.samples(home.workdir, 0), source.facts(home.workdir).inputs)


def test_a_crash_names_the_providers_place_in_the_data(home: Any) -> None:
    write_provider(home, "yield [1], 1\nyield [2], 0\nint('five')")
    with pytest.raises(ConfigScriptError, match=r"reviews\.py:\d+: ValueError") as said:
        list(home.load().source("train").samples(home.workdir, 0))
    assert said.value.why.startswith("the provider was in data/train.txt, after 2 samples: ")
    write_provider(home, "yield wrod, 1")
    with pytest.raises(ConfigScriptError, match="NameError") as said:
        list(home.load().source("train").samples(home.workdir, 0))
    assert said.value.why == "", "which no data can cause"


def test_a_hook_runs_once_to_open_a_shard_and_once_for_each_walk(home: Any) -> None:
    text = (home.folder / "reviews.py").read_text()
    note = "    with open('ran', 'a') as ran:\n        ran.write('x')\n"
    home.write("reviews.py", text.replace("    settings.size", f"{note}    settings.size", 1))
    ran = home.workdir / "ran"
    reader = home.load().source("train").reader(home.workdir, 0, seed=1, batch_size=2, cache=None)
    assert ran.read_text() == "x"
    reader.open(0)
    assert ran.read_text() == "xx", "a hook may draw random numbers, and those of a walk have its own seed"


def test_failing_init_hook_is_blamed_at_its_line(home: Any) -> None:
    text = (home.folder / "reviews.py").read_text().replace("settings.size = size", "settings.size = size / 0")
    home.write("reviews.py", text)
    with pytest.raises(ConfigScriptError, match=r"reviews\.py:4: ZeroDivisionError"):
        home.load().source("train").facts(home.workdir)


def test_listed_file_that_is_missing_is_the_datas_fault(home: Any) -> None:
    (home.workdir / "data" / "train.txt").unlink()
    with pytest.raises(DataError, match=r"data file data/train\.txt does not exist"):
        list(home.load().source("train").samples(home.workdir, 0))


def test_fingerprint_changes_with_scripts_and_arguments_only(home: Any) -> None:
    def fingerprint() -> str:
        return str(home.load().source("train").facts(home.workdir).fingerprint)

    first = fingerprint()
    home.data("train.txt", "1\t3\n")
    assert fingerprint() == first
    home.write("near_by.py", "X = 1")
    second = fingerprint()
    assert second != first
    home.write("config.py", (home.folder / "config.py").read_text().replace("args={'size': 10}", "args={'size': 9}"))
    assert fingerprint() != second


def test_a_source_with_unwritable_arguments_is_not_kept(home: Any) -> None:
    config = (home.folder / "config.py").read_text()
    program = home.load(config.replace("args={'size': 10}", "args={'size': 10, 'lookup': object()}"))
    assert program.source("train").facts(home.workdir).fingerprint == ""


def test_unsupported_options_are_refused_and_pool_ones_ignored(home: Any) -> None:
    write_provider(home, "yield [1], 1", f"input_types={TYPES}, pool_size=3, min_pool_size=0, use_seq=False")
    home.load()
    write_provider(home, "yield [1], 1", f"input_types={TYPES}, calc_batch_size=len")
    with pytest.raises(ConfigScriptError, match="calc_batch_size"):
        home.load()
