"""Each mistake gets a sentence that names it and says what to do, and changes nothing it should not."""

from __future__ import annotations

import re
import socket
from pathlib import Path

import pytest

from bireme.data.split import split_lines
from tests.e2e.conftest import Cli, lay_out

ONE = ("--trainers", 1, "--pservers", 1, "--passes", 1)


def edit(path: Path, old: str, new: str) -> None:
    text = path.read_text()
    assert old in text, f"{old!r} is not in {path}"
    path.write_text(text.replace(old, new))


CONFIG = "quick_start/trainer_config.lr.py"
PROVIDER = "quick_start/dataprovider_bow.py"
SAMPLE = '"word": [find(word, UNKNOWN) for word in text.split()], "label": int(label)'

MANUAL = "learning_method=MomentumOptimizer(0.9), learning_rate_schedule='manual', learning_rate_args='x'"

# What is in the config, what it becomes, the exit code, and what the message must say.
CONFIG_MISTAKES = {
    "a syntax error": ("words = data", "words = = data", 4, r"trainer_config.lr.py:\d+: .*invalid syntax"),
    "an unknown name": ("SoftmaxActivation", "SoftmaxAktivation", 4, r"lr.py:28: NameError.*SoftmaxAktivation"),
    "a wrong keyword": ("size=2, act", "sise=2, act", 4, r"lr.py:28: .*sise.*(size|did you mean)"),
    "a layer that is not built": ("sentiment = fc_layer(", "sentiment = lstmemory(", 4, r"lstmemory is not supported"),
    "no settings": ("settings(\n", "dict(\n", 4, r"never calls settings\(\)"),
    "a file that is not there": ("data/dict.txt", "data/words.txt", 4, r"lr.py:8: FileNotFoundError"),
    "a list that is not there": ("data/train.list", "data/training.list", 5, r"data/training.list"),
    "no provider of that name": ("read_labelled", "read_labeled", 4, r"read_labeled"),
    "no provider module": ("dataprovider_bow", "dataprovider_bag", 4, r"dataprovider_bag"),
    "L1 with momentum": ("AdamOptimizer()", "MomentumOptimizer(0.9)", 3, r"has L1 0\.1 and momentum 0\.9"),
    "a bad schedule": ("learning_method=AdamOptimizer()", MANUAL, 3, r"learning_rate_args \"x\" cannot be read"),
}


@pytest.mark.parametrize("mistake", CONFIG_MISTAKES)
def test_a_mistake_in_the_config_is_found_before_anything_starts(cli: Cli, job: Path, mistake: str) -> None:
    old, new, code, message = CONFIG_MISTAKES[mistake]
    edit(job.parent / CONFIG, old, new)
    if mistake == "L1 with momentum":
        edit(job.parent / CONFIG, "size=2, act", "param_attr=ParamAttr(l1_rate=0.1), size=2, act")
    done = cli.run("train", job, *ONE)
    assert (done.code, done.out) == (code, ""), done.err
    assert re.search(message, done.err, re.DOTALL), done.err
    assert "Traceback" not in done.err
    assert not (job.parent / "output").exists()


IDS = "[find(word, UNKNOWN) for word in text.split()]"
RAISING = "raise ValueError('bad line')\n            label, text ="
FLOATS = 'sparse_vector(len(dictionary)), "label"'

PROVIDER_MISTAKES = {
    "a provider that raises": ("label, text =", RAISING, 4, r"trainer 0: .*bow.py:22: ValueError: bad line"),
    "a sample of the wrong shape": ("yield {" + SAMPLE + "}", "yield 1, 2, 3", 4, r"3 .*(values|slots|items).*2"),
    "a word that is no id": (IDS, "text.split()", 5, r"train.txt.*sample 1.*word"),
    "an id out of range": (IDS, "[1501]", 5, r"train.txt.*sample 1.*word.*1501"),
    "a label out of range": ("int(label)", "int(label) + 1", 5, r"label.*2"),
    "numbers that overflow": (FLOATS.replace("sparse_", "sparse_binary_"), FLOATS, 11,
                              r"trainer 0: a NaN or infinity in .*round 0 .*shard 0"),
}  # fmt: skip


@pytest.mark.parametrize("mistake", PROVIDER_MISTAKES)
def test_a_providers_mistake_is_named_with_line_or_sample(cli: Cli, job: Path, mistake: str) -> None:
    old, new, code, message = PROVIDER_MISTAKES[mistake]
    edit(job.parent / PROVIDER, old, new)
    if mistake == "numbers that overflow":
        edit(job.parent / PROVIDER, IDS, "[(1, 3e38), (2, -3e38), (3, 3e38)]")
    done = cli.run("train", job, *ONE)
    assert done.code == code, done.err
    assert re.search(message, done.err, re.DOTALL), done.err
    assert "Traceback" not in done.err
    assert not list((job.parent / "output").glob("pass-*"))


def test_a_port_in_use_is_named(cli: Cli, job: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        job.write_text(job.read_text() + f"lanes:\n  port: {port}\n")
        done = cli.run("train", job, *ONE)
    assert done.code == 9
    assert f"pserver 0: port {port} on 127.0.0.1 is in use" in done.err
    assert "choose another `port`" in done.err


def test_a_finished_output_stays_and_a_failed_one_is_reused(cli: Cli, job: Path) -> None:
    edit(job.parent / PROVIDER, "int(label)", "int(label) + 1")
    assert cli.run("train", job, *ONE).code == 5
    edit(job.parent / PROVIDER, "int(label) + 1", "int(label)")
    assert cli.run("train", job, *ONE).code == 0
    done = cli.run("train", job, *ONE)
    assert done.code == 7
    assert "already holds a run up to pass-00000" in done.err
    assert "--output DIR" in done.err


def test_a_full_disk_is_named_with_the_unwritten_file(cli: Cli, job: Path) -> None:
    output = job.parent / "output"
    output.mkdir()
    (output / "ledger.jsonl").symlink_to("/dev/full")
    done = cli.run("train", job, *ONE)
    assert done.code == 8, done.err
    assert f"pserver 0: the disk is full: cannot write {output / 'ledger.jsonl'}" in done.err


def test_training_continues_where_its_curve_cannot_be_written(cli: Cli, job: Path) -> None:
    output = job.parent / "output"
    output.mkdir()
    (output / "metrics.jsonl").symlink_to("/dev/full")
    done = cli.run("train", job, *ONE)
    assert done.code == 0, done.err
    logged = (output / "node_0" / "server.log").read_text().count("effect=gap-in-curves cause='the disk is full")
    assert logged == 1, "it is logged once, not for every line"


def test_all_shards_empty_is_refused(cli: Cli, job: Path) -> None:
    for shard in "012":
        (job.parent / shard / "data" / "train.txt").write_bytes(b"")
    done = cli.run("train", job, *ONE)
    assert done.code == 5
    assert "not one training sample" in done.err


def test_more_trainers_than_shards_is_refused_with_both_ways_out(cli: Cli, job: Path) -> None:
    done = cli.run("train", job, "--trainers", 4)
    assert done.code == 3
    assert "4 trainers but only 3 data shards" in done.err
    assert "--shards 4" in done.err and "trainers: 3" in done.err


def test_one_sample_and_a_dictionary_of_one_word_train(cli: Cli, tmp_path: Path) -> None:
    source = tmp_path / "source"
    source.mkdir()
    for name, text in {
        "train.txt": "1\tword\n", "test.txt": "1\tword\n", "dict.txt": "unk\t-1\n",
        "train.list": "data/train.txt\n", "test.list": "data/test.txt\n",
    }.items():  # fmt: skip
        (source / name).write_text(text)
    job = lay_out(tmp_path / "job")
    split_lines(source, job.parent, 1)
    done = cli.run("train", job, *ONE, "--json")
    assert done.code == 0, done.err
    assert [p["samples"] for p in done.json["passes_done"]] == [1]


def test_a_trainer_by_hand_names_a_missing_pserver(cli: Cli, job: Path, tmp_path: Path) -> None:
    (tmp_path / "here").mkdir()
    (tmp_path / "here" / "data").symlink_to(job.parent / "0" / "data")
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        port = unused.getsockname()[1]
    config = job.parent / CONFIG
    done = cli.run("trainer", f"--config={config}", f"--port={port}", "--connect_timeout=0.3", cwd=tmp_path / "here")
    assert done.code == 9
    assert f"pserver 0 at 127.0.0.1:{port} does not answer" in done.err


def test_a_model_of_another_config_is_refused(cli: Cli, job: Path) -> None:
    assert cli.run("train", job, *ONE).code == 0
    model = job.parent / "output" / "pass-00000"
    edit(job.parent / CONFIG, "sentiment = fc_layer(", "sentiment = fc_layer(name='mood', ")
    done = cli.run("test", model)
    assert done.code == 6
    assert "has no parameter _mood.w0" in done.err
    (model / "___fc_layer_0__.w0").write_bytes(b"short")
    done = cli.run("model", "hash", model)
    assert done.code == 6
    assert "___fc_layer_0__.w0 is torn" in done.err


COMMANDS = {
    ("trian",): (2, "Did you mean `train`?"),
    ("train",): (2, "JOB.yaml"),
    ("train", "nothing.yaml"): (3, "there is no file nothing.yaml"),
    ("model", "show", "nowhere"): (6, "there is no model directory nowhere"),
    ("model", "hash", "."): (6, "is not a finished model"),
    ("predict", "nowhere"): (6, "there is no model directory nowhere"),
    ("status", "ghost"): (2, "no job"),
    ("cancel",): (2, "no job"),
    ("pserver", "--port=0"): (2, "port"),
    ("pserver", "--nics=nic7"): (9, "network interface 'nic7' has no IPv4 address"),
    ("trainer",): (2, "--config is missing"),
    ("trainer", "--config=none.py"): (2, "there is no file"),
    ("node",): (2, "pods are started by `bireme submit JOB.yaml`"),
    ("data", "split", "nowhere", "--shards", "2", "--out", "job"): (5, "nowhere"),
}


@pytest.mark.parametrize("arguments", COMMANDS, ids=" ".join)
def test_a_command_that_makes_no_sense_says_so(cli: Cli, arguments: tuple[str, ...]) -> None:
    code, message = COMMANDS[arguments]
    done = cli.run(*arguments)
    assert done.code == code, done
    assert message in done.err
    assert "Traceback" not in done.err
    assert {p.name for p in cli.home.iterdir()} <= {"state", "cache"}


def test_an_error_with_json_is_one_object_on_standard_output(cli: Cli) -> None:
    done = cli.run("train", "nothing.yaml", "--json")
    assert done.code == 3
    assert done.json["error"] == "SpecError"
    assert "nothing.yaml" in done.json["what"]
