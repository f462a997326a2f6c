"""`bireme simulate`: what it prints, where its inputs come from, and what it refuses."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from bireme.cli.simulate import _latency_s, bits_of, simulate
from bireme.core.errors import BiremeError, SpecError, UsageError

BARE = ["--parameters", "1000000", "--batch", "128", "--compute-rate", "100", "--trainers", "4", "--pservers", "2"]
CONFIG = """
from paddle.trainer_config_helpers import *
define_py_data_sources2(train_list="data/train.list", test_list=None, module="provider", obj="process")
settings(batch_size=32, learning_rate=0.1, learning_method=AdamOptimizer())
words = data_layer(name="word", size=1000)
label = data_layer(name="label", size=2)
outputs(classification_cost(input=fc_layer(input=words, size=2, act=SoftmaxActivation()), label=label))
"""
PROVIDER = """
from paddle.trainer.PyDataProvider2 import *
@provider(input_types={"word": sparse_binary_vector(1000), "label": integer_value(2)})
def process(settings, name):
    yield [1], 0
"""


def run(*arguments: str) -> str:
    done = CliRunner().invoke(simulate, list(arguments))
    if done.exception is not None and not isinstance(done.exception, SystemExit):
        raise done.exception
    return done.output


def simulated(*arguments: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(run(*arguments, "--json"))
    return found


@pytest.fixture
def job(tmp_path: Path) -> Path:
    (tmp_path / "config.py").write_text(CONFIG)
    (tmp_path / "provider.py").write_text(PROVIDER)
    for shard in "01":
        (tmp_path / shard / "data").mkdir(parents=True)
        (tmp_path / shard / "data" / "train.list").write_text("data/train.txt\n")
        (tmp_path / shard / "data" / "train.txt").write_text("x\n")
    file = tmp_path / "job.yaml"
    file.write_text("name: small\nprogram: {config: config.py}\nnodes: 2\nlanes: {ports_num: 2}\n")
    return file


def ran(job: Path, *, trainers: int = 2) -> None:
    """Leave what a run with these times would have left."""
    output = job.parent / "output"
    output.mkdir()
    (output / "job.json").write_text(json.dumps({"name": "small", "shards": 2, "trainers": trainers}))
    lines = [{"event": "view"}, *({"event": "pass", "samples": 600, "spent": {"compute": 0.5}} for _ in range(2))]
    (output / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))


def test_words_name_time_efficiency_limit_and_advice() -> None:
    said = run(*BARE, "--network", "100Mbit", "--spread", "0")
    for words in (
        "1,000,000 values, batch 128, gradients as float32; 4 trainers at 100 samples/s",
        "2 pservers with 1 lane each, 0.1 Gbit/s, 100 µs; computing times spread by 0.0%",
        "parallel efficiency",
        "what a round waits for",
        "pserver network",
        "this job needs",
        "costs measured on",
    ):
        assert words in said


def test_json_holds_everything_and_shares_add_up() -> None:
    found = simulated(*BARE)
    assert sum(found["shares"].values()) == pytest.approx(1.0)
    assert found["limit"] == "compute"
    assert found["samples_per_s"] == pytest.approx(4 * 128 / found["round_s"])
    assert found["efficiency"] == pytest.approx(found["samples_per_s"] / 400)
    assert found["cluster"]["network_bit_s"] == 10e9
    assert found["advice"]["pservers"] >= 1


def test_a_job_gives_its_own_sizes_and_flags_win(job: Path) -> None:
    own = simulated(str(job), "--compute-rate", "1000")
    assert (own["job"], own["parameters"], own["batch"]) == ("small", 2002, 32)
    assert (own["cluster"]["trainers"], own["cluster"]["pservers"], own["cluster"]["lanes"]) == (2, 2, 2)
    flags = ["--trainers", "9", "--pservers", "5", "--lanes", "1", "--batch", "8", "--gradients", "float16"]
    other = simulated(str(job), "--compute-rate", "1000", *flags)
    assert (other["cluster"]["trainers"], other["cluster"]["pservers"], other["cluster"]["lanes"]) == (9, 5, 1)
    assert (other["batch"], other["gradients"]) == (8, "float16")


def test_fewer_trainers_than_shards_share_them(job: Path) -> None:
    found = simulated(str(job), "--compute-rate", "1000", "--trainers", "1", "--spread", "0")
    assert found["samples_per_s"] == pytest.approx(2 * 32 / found["round_s"])


@pytest.mark.parametrize(("trainers", "rate"), [(2, 600.0), (1, 1200.0)])
def test_the_last_run_reports_how_fast_a_trainer_computes(job: Path, trainers: int, rate: float) -> None:
    ran(job, trainers=trainers)
    assert simulated(str(job))["cluster"]["samples_s"] == rate


def test_without_a_run_or_a_rate_it_says_how_to_get_one(job: Path) -> None:
    with pytest.raises(UsageError, match="has no record of how fast a trainer") as caught:
        run(str(job))
    assert "--compute-rate" in caught.value.fix


def test_without_a_file_all_sizes_are_needed() -> None:
    with pytest.raises(UsageError, match="--batch, --pservers, --compute-rate must be given"):
        run("--parameters", "10", "--trainers", "2")


def test_a_mode_without_rounds_is_refused(job: Path) -> None:
    job.write_text(job.read_text() + "mode: async\n")
    with pytest.raises(SpecError, match="has mode async, and only rounds"):
        run(str(job), "--compute-rate", "10")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--network", "fast"], "--network fast: not a rate"),
        (["--network", "0Gbit"], "--network 0Gbit: not a rate"),
        (["--network", "1.2.3G"], "--network 1.2.3G"),
        (["--latency", "100"], "--latency 100: not a time"),
        (["--latency", "1.2.3ms"], "--latency 1.2.3ms: not a time"),
        (["--compute-rate", "0"], "--compute-rate is 0"),
        (["--compute-rate", "-2"], "--compute-rate is -2"),
        (["--batch", "0"], "--batch is 0"),
        (["--parameters", "-5"], "--parameters is -5"),
        (["--spread", "2"], "--spread is 2"),
        (["--costs", "/nowhere/costs.json"], "cannot be read"),
    ],
)
def test_what_makes_no_sense_is_refused_by_name(arguments: list[str], said: str) -> None:
    with pytest.raises(BiremeError, match=said):
        run(*BARE, *arguments)


def test_sizes_and_a_file_do_not_go_together(job: Path) -> None:
    with pytest.raises(UsageError, match="--parameters is for a job without a file"):
        run(str(job), "--parameters", "10", "--compute-rate", "10")


@pytest.mark.parametrize(
    ("text", "value"), [("10Gbit", 10e9), ("2.5G", 2.5e9), ("800 Mbit/s", 8e8), ("56k", 56e3), ("1gbps", 1e9)]
)
def test_rates_are_read_as_people_write_them(text: str, value: float) -> None:
    assert bits_of(text) == pytest.approx(value)


@pytest.mark.parametrize("text", ["10", "0Gbit", "fast", ""])
def test_a_rate_without_its_unit_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="not a rate"):
        bits_of(text)


@pytest.mark.parametrize(("text", "value"), [("100us", 1e-4), ("50µs", 5e-5), ("0.2ms", 2e-4), ("0s", 0.0)])
def test_times_are_read_as_people_write_them(text: str, value: float) -> None:
    assert _latency_s(text) == pytest.approx(value)


def test_help_teaches_with_an_example() -> None:
    assert "bireme simulate first-job/job.yaml --trainers 64" in run("--help")


def test_the_page_about_scale_shows_what_is_printed() -> None:
    page = (Path(__file__).resolve().parents[3] / "docs" / "scale.md").read_text(encoding="utf-8")
    command, _, shown = page.split("```console\n$ bireme simulate ")[1].split("\n```")[0].partition("\n")
    assert run(*command.split()).rstrip() == shown
