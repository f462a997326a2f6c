"""What job.yaml may say, which source of a value wins, and the message for every mistake."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from bireme.core.errors import SpecError
from bireme.spec.job import Job
from bireme.spec.load import command_name, kernel_caches, load_job, places
from bireme.spec.model import Snapshots, Updates, Wire

GOOD = "name: demo\nprogram:\n  config: quick/config.py\n"
Make = Callable[[str], Path]


@pytest.fixture
def make(tmp_path: Path) -> Make:
    """Write a job.yaml beside a config and three shards."""

    def write(text: str) -> Path:
        (tmp_path / "quick").mkdir()
        (tmp_path / "quick/config.py").write_text("")
        for shard in range(3):
            (tmp_path / str(shard) / "data").mkdir(parents=True)
        (tmp_path / "job.yaml").write_text(text)
        return tmp_path / "job.yaml"

    return write


def load(path: Path, environment: dict[str, str] | None = None, **flags: object) -> Job:
    return load_job(path, flags, environment or {})


# What is in the file, and what the message must say (all parts of it).
MISTAKES: dict[str, tuple[str, tuple[str, ...]]] = {
    "unknown key": (GOOD + "trainrs: 3\n", (":4: `trainrs` is not a known key; did you mean `trainers`?",)),
    "unknown key far from any": (GOOD + "zebra: 3\n", (":4: `zebra` is not a known key; known keys: name, program",)),
    "key of another system": (GOOD + "epochs: 3\n", (":4: `epochs` is not a known key; did you mean `passes`?",)),
    "patience": (GOOD + "patience: 3\n", (":4: `patience` is not a known key; did you mean `stop_when`?",)),
    "early stopping": (GOOD + "early_stopping: yes\n", ("did you mean `stop_when`?",)),
    "a model in the program": (
        GOOD + "  model: m.py\n",
        (":4: `program.model` is not a known key; did you mean `program.config`?",),
    ),
    "a directory of data": (GOOD + "data: {dir: x}\n", ("`data.dir` is not a known key; did you mean `data.path`?",)),
    "workers": (GOOD + "workers: 3\n", (":4: `workers` is not a known key; did you mean `trainers`?",)),
    "key of the config": (
        GOOD + "learning_rate: 0.1\n",
        ("`learning_rate` is not a known key; it is set in the config: settings(learning_rate=…)",),
    ),
    "key of a section": (GOOD + "shards: 3\n", ("did you mean `data.shards`?",)),
    "another rule to stop": (
        GOOD + "stop_when: worse\n",
        (":4: `stop_when`: `no better for N passes` ends the job", "got 'worse'"),
    ),
    "unknown inner key": (
        GOOD + "lanes:\n  port: 7164\n  port_num: 2\n",
        (":6: `lanes.port_num` is not a known key; did you mean `ports_num`?",),
    ),
    "key that is a number": (GOOD + "3: x\n", (":4: `3` is not a known key",)),
    "two mistakes at once": (GOOD + "pases: 3\nseed: x\n", (":4: `pases`", ":5: `seed`: expected `int`, got 'x'")),
    "missing name": ("program: {config: quick/config.py}\n", (":1: `name` is missing", "lower-case letters")),
    "missing program": ("name: demo\n", (":1: `program` is missing",)),
    "missing config": ("name: demo\nprogram:\n  args: {}\n", (":2: `program.config` is missing", "trainer_config")),
    "empty file": ("", (":1: `name` is missing", ":1: `program` is missing")),
    "only a comment": ("# nothing\n", (":1: `name` is missing",)),
    "list at top": ("- name: demo\n", (":1: the file must hold keys and values, not a list",)),
    "text at top": ("hello\n", (":1: the file must hold keys and values, not 'hello'",)),
    "duplicate key": ("name: a\nname: b\n", (":2: not valid YAML: found duplicate key",)),
    "bad YAML": ("name: [\n", ("not valid YAML", "check the indentation and quotes")),
    "tab": ("name: demo\nprogram:\n\tconfig: x\n", (":3: not valid YAML", "'\\t'")),
    "second document": (GOOD + "---\nname: other\n", ("not valid YAML", "another document")),
    "control character": ("name: \x07\n", ("not valid YAML",)),
    "bad name": (GOOD.replace("demo", "My_Job"), (":1: `name`", "lower-case letters, digits and dashes", "'My_Job'")),
    "number for a name": (GOOD.replace("demo", "12"), (":1: `name`: expected `str`, got 12",)),
    "text for a count": (GOOD + "trainers: many\n", (":4: `trainers`: expected `int`, got 'many'",)),
    "yes for a count": (GOOD + "passes: true\n", (":4: `passes`: expected `int`, got True",)),
    "half a pass": (GOOD + "passes: 2.5\n", (":4: `passes`: expected `int`, got 2.5",)),
    "no pass": (GOOD + "passes: 0\n", (":4: `passes`: expected `int` >= 1, got 0",)),
    "too many lanes": (GOOD + "lanes: {ports_num: 65}\n", (":4: `lanes.ports_num`: expected `int` <= 64, got 65",)),
    "port out of range": (GOOD + "lanes: {port: 70000}\n", (":4: `lanes.port`", "<= 65535", "got 70000")),
    "negative seed": (GOOD + "seed: -1\n", (":4: `seed`: expected `int` >= 0, got -1",)),
    "a date for a number": (GOOD + "seed: 2001-01-01\n", (":4: `seed`: expected `int`",)),
    "a date that is none": (GOOD + "seed: 2001-99-99\n", ("job.yaml:",)),
    "a tagged number that is none": (GOOD + "seed: !!int abc\n", ("job.yaml:",)),
    "a python object": (GOOD + "passes: !!python/object:os.system x\n", (":4: `passes`: expected `int`",)),
    "no time": (GOOD + "connect_timeout_s: .nan\n", (":4: `connect_timeout_s`: expected `float`", "nan")),
    "unknown mode": (GOOD + "mode: snyc\n", (":4: `mode`", "did you mean `sync`?")),
    "a mode like no other": (GOOD + "mode: zebra\n", (":4: `mode`", "one of: sync, bounded, async, local")),
    "unknown coding": (GOOD + "wire: {gradients: float61}\n", (":4: `wire.gradients`", "did you mean `float16`?")),
    "more than half": (GOOD + "wire: {top_k: 0.6}\n", (":4: `wire.top_k`: expected `float` <= 0.5, got 0.6",)),
    "top_k without its coding": (GOOD + "wire: {top_k: 0.1}\n", ("`wire.top_k` is for `wire.gradients: top_k`",)),
    "top_k with another coding": (
        GOOD + "wire: {gradients: float16, top_k: 0.1}\n",
        ("`wire.top_k` is for `wire.gradients: top_k`", "fix: set that, or leave `top_k` out"),
    ),
    "ahead by less than none": (GOOD + "staleness: -1\n", (":4: `staleness`: expected `int` >= 0, got -1",)),
    "never meeting": (GOOD + "local: {every: 0}\n", (":4: `local.every`: expected `int` >= 1, got 0",)),
    "taking nothing over": (GOOD + "local: {rate: 0}\n", (":4: `local.rate`: expected `float` > 0", "got 0")),
    "text for a section": ("name: demo\nprogram: quick/config.py\n", (":2: `program` must hold keys and values",)),
    "empty section": (GOOD + "data:\n", (":4: `data` must hold keys and values, not nothing",)),
    "list for an argument": (
        "name: demo\nprogram:\n  config: quick/config.py\n  args: {a: [1]}\n",
        (":4: `program.args`: expected",),
    ),
    "nodes and trainers": (GOOD + "nodes: 2\ntrainers: 2\n", (":5: `nodes` and `pservers`/`trainers` are both given",)),
    "staleness without its mode": (GOOD + "staleness: 2\n", (":4: `staleness` is for `mode: bounded`, and no",)),
    "local with another mode": (
        GOOD + "mode: sync\nlocal: {every: 3}\n",
        (":5: `local` is for `mode: local`, and mode is sync", "fix: set `mode: local`, or leave `local` out"),
    ),
    "keys that do not fit, and more": (
        GOOD.replace("config.py", "no.py")
        + "nodes: 5\ntrainers: 4\nstaleness: 1\nwire: {top_k: 0.1}\ndata: {shards: 2}\n",
        (
            "job.yaml:3: program.config: there is no file",
            "job.yaml:5: `nodes` and `pservers`/`trainers` are both given; keep `nodes`, or count",
            "job.yaml:5: 4 trainers but only 3 data shards; split the data again",
            "job.yaml:6: `staleness` is for `mode: bounded`",
            "job.yaml:7: `wire.top_k` is for `wire.gradients: top_k`; set that",
            "job.yaml:8: data.shards is 2, but",
            "fix: docs/reference/job.md lists every key",
        ),
    ),
    "keys that do not fit, and a mistake": (
        GOOD + "pases: 3\nstaleness: 1\n",
        (":4: `pases` is not a known key", ":5: `staleness` is for `mode: bounded`"),
    ),
    "nodes and pservers": (GOOD + "nodes: 2\npservers: 2\n", ("fix: keep `nodes`, or count",)),
    "more trainers than shards": (
        GOOD + "trainers: 4\n",
        (":4: 4 trainers but only 3 data shards", "why: trainers from rank 3 up", "--shards 4"),
    ),
    "more nodes than shards": (GOOD + "nodes: 4\n", (":4: 4 trainers but only 3 data shards",)),
    "config that is not there": (GOOD.replace("config.py", "no.py"), (":3: program.config: there is no file", "no.py")),
    "data that is not there": (GOOD + "data: {path: nowhere}\n", (":4: data.path: there is no directory", "nowhere")),
    "directory without shards": (GOOD + "data: {path: quick}\n", ("quick holds no shard (a directory `0/data`)",)),
    "other number of shards": (GOOD + "data: {shards: 5}\n", (":4: data.shards is 5, but", "holds 3", "--shards 5")),
}  # fmt: skip


@pytest.mark.parametrize(("text", "wanted"), MISTAKES.values(), ids=MISTAKES.keys())
def test_a_mistake_is_reported_with_place_and_what_was_expected(make: Make, text: str, wanted: tuple[str, ...]) -> None:
    path = make(text)
    with pytest.raises(SpecError) as caught:
        load(path)
    for part in wanted:
        assert part in str(caught.value)


def test_a_plain_file_has_one_trainer_and_pserver_per_shard(make: Make) -> None:
    path = make(GOOD)
    job = load(path)
    assert (job.shards, job.trainers, job.pservers, job.ports_num) == (3, 3, 3, 1)
    assert (job.passes, job.seed, job.port, job.nodes) == (10, 1, None, 3)
    assert job.config == str(path.parent / "quick/config.py")
    assert job.data == str(path.parent)
    assert job.output == str(path.parent / "output")


# Valid YAML that says what `GOOD` plus one line in its plainest spelling says.
SPELLINGS: dict[str, tuple[str, str, object]] = {
    "hexadecimal": (GOOD + "passes: 0x10\n", "passes", 16),
    "underscores": (GOOD + "seed: 1_000\n", "seed", 1000),
    "a whole number of seconds": (GOOD + "connect_timeout_s: 5\n", "connect_timeout_s", 5.0),
    "a fraction of a second": (GOOD + "connect_timeout_s: 0.5\n", "connect_timeout_s", 0.5),
    "an exponent": (GOOD + "connect_timeout_s: 1e1\n", "connect_timeout_s", 10.0),
    "quotes": (GOOD + "output: 'out'\n", "output", "out"),
    "a literal block": (GOOD + "output: |-\n  out\n", "output", "out"),
    "an anchor": (GOOD + "output: &o out\n", "output", "out"),
    "an anchored number": (GOOD + "passes: &p 3\nseed: *p\n", "seed", 3),
    "a merge key": (GOOD + "lanes:\n  <<: {ports_num: 2}\n", "ports_num", 2),
    "a front end": (GOOD + "  front_end: mine\n", "front_end", "mine"),
    "a fraction as an argument": (GOOD + "  args: {rate: 0.5}\n", "config_args", {"rate": "0.5"}),
    "yes, a count and text as arguments": (
        GOOD + "  args: {a: true, b: 2, c: '01'}\n",
        "config_args",
        {"a": "1", "b": "2", "c": "01"},
    ),
}


@pytest.mark.parametrize(("text", "key", "wanted"), SPELLINGS.values(), ids=SPELLINGS.keys())
def test_every_way_to_write_a_value_in_yaml_is_understood(make: Make, text: str, key: str, wanted: object) -> None:
    job = load(make(text))
    found = Path(job.output).name if key == "output" else getattr(job, key)
    assert found == wanted
    assert type(found) is type(wanted)


def test_a_flag_beats_environment_file_and_default_in_order(make: Make) -> None:
    path = make(GOOD + "passes: 3\n")
    assert load(path).passes == 3
    assert load(path, {"BIREME_PASSES": "4"}).passes == 4
    assert load(path, {"BIREME_PASSES": "4"}, passes=5).passes == 5
    assert load(path, {"BIREME_PASSES": ""}, passes=None).passes == 3


def test_every_override_reaches_the_job(make: Make, tmp_path: Path) -> None:
    values = {"TRAINERS": "1", "PSERVERS": "2", "PORTS_NUM": "4", "PASSES": "6", "SEED": "7", "OUTPUT": "/out"}
    job = load(make(GOOD), {f"BIREME_{name}": value for name, value in values.items()})
    assert (job.trainers, job.pservers, job.ports_num, job.passes, job.seed, job.output) == (1, 2, 4, 6, 7, "/out")


@pytest.mark.parametrize(
    ("name", "value", "expected"),
    [
        ("TRAINERS", "many", "--trainers (or BIREME_TRAINERS): expected `int`, got 'many'"),
        ("PASSES", "0", "--passes (or BIREME_PASSES): expected `int` >= 1"),
        ("PORTS_NUM", "99", "--ports-num (or BIREME_PORTS_NUM): expected `int` <= 64"),
        ("SEED", "1.5", "--seed (or BIREME_SEED): expected `int`"),
    ],
)
def test_a_bad_override_is_named_by_flag_and_variable(make: Make, name: str, value: str, expected: str) -> None:
    with pytest.raises(SpecError) as caught:
        load(make(GOOD), {f"BIREME_{name}": value})
    assert expected in str(caught.value)


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("epochs", "argument `epochs` is not a known key; did you mean `passes`?"),
        ("learning_rate", "argument `learning_rate` is not a known key; it is set in the config"),
        ("trainrs", "argument `trainrs` is not a known key; did you mean `trainers`?"),
        ("ports_nums", "argument `ports_nums` is not a known key; did you mean `ports_num`?"),
    ],
)
def test_an_unknown_argument_is_refused_like_an_unknown_key(make: Make, name: str, expected: str) -> None:
    with pytest.raises(SpecError) as caught:
        load_job(make(GOOD), {name: 9}, {})
    assert caught.value.what.startswith(expected)


def test_a_wrong_value_without_a_flag_names_the_argument(make: Make) -> None:
    path = make(GOOD)
    with pytest.raises(SpecError) as caught:
        load(path, log_period=0)
    assert caught.value.what == "argument `log_period`: expected `int` >= 1, got 0"
    assert load(path, keep="best").keep == "best"


@pytest.mark.parametrize(
    ("overrides", "expected"),
    [
        ({"staleness": 3}, "`staleness` is for `mode: bounded`, and no mode is given"),
        ({"local": {"every": 4}}, "`local` is for `mode: local`"),
        ({"wire": {"top_k": 0.1}}, "`wire.top_k` is for `wire.gradients: top_k`"),
        ({"data": {"path": ".", "shards": 5}}, "data.shards is 5, but"),
        ({"lanes": 3, "ports_num": 2}, "argument `lanes`: expected `object`, got 3"),
        ({"ports_num": 2, "lanes": 3}, "argument `lanes`: expected `object`, got 3"),
    ],
)
def test_arguments_that_conflict_are_refused_like_keys(make: Make, overrides: dict[str, Any], expected: str) -> None:
    with pytest.raises(SpecError) as caught:
        load_job(make(GOOD), overrides, {})
    assert expected in str(caught.value)


def test_arguments_may_complete_a_mode_and_count_anew(make: Make) -> None:
    path = make(GOOD + "trainers: 3\npservers: 2\n")
    assert load_job(path, {"mode": "bounded", "staleness": 3}, {}).updates == Updates(mode="bounded", staleness=3)
    job = load_job(path, {"nodes": 1}, {})
    assert (job.trainers, job.pservers) == (1, 1)


def test_fewer_trainers_by_flag_leave_the_pservers_as_they_were(make: Make) -> None:
    path = make(GOOD + "nodes: 3\n")
    assert (load(path).trainers, load(path).pservers) == (3, 3)
    fewer = load(path, trainers=1)
    assert (fewer.trainers, fewer.pservers, fewer.nodes) == (1, 3, 3)


def test_fewer_trainers_by_flag_keep_the_default_pservers(make: Make) -> None:
    fewer = load(make(GOOD), trainers=1)
    assert (fewer.trainers, fewer.pservers) == (1, 3)


def test_what_a_flag_asks_for_is_not_blamed_on_a_line(make: Make) -> None:
    path = make(GOOD + "trainers: 2\n")
    with pytest.raises(SpecError) as caught:
        load(path, trainers=4)
    assert caught.value.what == "4 trainers but only 3 data shards"


def test_ports_that_end_too_high_are_named_with_the_first_line(make: Make) -> None:
    with pytest.raises(SpecError, match=r":5: lanes.port: 3 pservers need ports up to 65536") as caught:
        load(make(GOOD + "lanes:\n  port: 65531\n"))
    assert caught.value.fix == "choose a smaller `port`"


def test_kernels_are_kept_in_numbas_place_beside_or_at_home() -> None:
    places = kernel_caches(Path("/p"), {"NUMBA_CACHE_DIR": "/n", "HOME": "/me"})
    assert places == [Path("/n")]
    assert kernel_caches(Path("/p"), {"HOME": "/me"}) == [Path("/p/__pycache__"), Path("/me/.cache/numba")]


def test_a_gap_in_the_shards_is_named(make: Make) -> None:
    path = make(GOOD)
    (path.parent / "1/data").rmdir()
    with pytest.raises(SpecError, match=f"shard 1 is missing: there is no {path.parent}/1/data"):
        load(path)


def test_a_directory_with_leading_zeros_is_not_a_shard(make: Make) -> None:
    path = make(GOOD)
    (path.parent / "03/data").mkdir(parents=True)
    assert load(path).shards == 3


def test_a_directory_may_be_named_for_the_job_in_it(make: Make) -> None:
    path = make(GOOD)
    assert load(path.parent) == load(path)


@pytest.mark.parametrize("name", ["nothing.yaml", "0"])
def test_a_missing_job_is_reported_with_how_to_make_one(make: Make, name: str) -> None:
    with pytest.raises(SpecError, match="there is no file") as caught:
        load(make(GOOD).parent / name)
    assert "bireme demo --prepare" in caught.value.fix


def test_a_file_that_is_not_utf_8_is_refused(make: Make) -> None:
    path = make(GOOD)
    path.write_bytes(b"name: \xff\xfe\n")
    with pytest.raises(SpecError, match=f"cannot read {path}"):
        load(path)


def test_faults_come_from_the_environment_alone(make: Make) -> None:
    path = make(GOOD)
    assert load(path).faults == ""
    assert load(path, {"BIREME_FAULTS": "delay:seed=1"}).faults == "delay:seed=1"


def test_places_follow_the_xdg_rules() -> None:
    found = places({"HOME": "/home/me"})
    assert (found.cache, found.state) == (Path("/home/me/.cache/bireme"), Path("/home/me/.local/state/bireme"))
    found = places({"HOME": "/home/me", "XDG_CACHE_HOME": "/c", "XDG_STATE_HOME": "/s"})
    assert (found.cache, found.state) == (Path("/c/bireme"), Path("/s/bireme"))


def test_commands_are_suggested_as_the_user_types_them() -> None:
    assert command_name({}) == "bireme"
    assert command_name({"BIREME_COMMAND": "./dev bireme"}) == "./dev bireme"


MODES = {
    "": None,
    "mode: sync\n": Updates(staleness=4),
    "mode: async\n": Updates(mode="async", staleness=4),
    "mode: bounded\n": Updates(mode="bounded", staleness=4),
    "mode: bounded\nstaleness: 0\n": Updates(mode="bounded", staleness=0),
    "mode: local\n": Updates(mode="local", staleness=4),
    "mode: local\nlocal: {rate: 0.3}\n": Updates(mode="local", staleness=4, rate=0.3),
    "mode: local\nlocal: {method: elastic}\n": Updates(mode="local", staleness=4, is_elastic=True, rate=0.5),
    "mode: local\nlocal: {every: 3, method: elastic, rate: 0.25}\n": Updates(
        mode="local", staleness=4, every=3, is_elastic=True, rate=0.25
    ),
}


@pytest.mark.parametrize(("text", "wanted"), MODES.items())
def test_a_mode_decides_how_a_job_updates_or_the_program_does(make: Make, text: str, wanted: Updates | None) -> None:
    assert load(make(GOOD + text)).updates == wanted


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("", Snapshots()),
        ("snapshots: {every_rounds: 7}\n", Snapshots(every_rounds=7)),
        ("snapshots: {every_s: 0, every_rounds: 7, keep: 3}\n", Snapshots(every_s=0.0, every_rounds=7, keep=3)),
    ],
)
def test_snapshots_are_taken_by_the_clock_by_rounds_or_by_both(make: Make, text: str, wanted: Snapshots) -> None:
    found = load(make(GOOD + text)).snapshots
    assert found == msgspec.structs.replace(wanted, path=found.path)
    assert found.path.endswith("/output/snapshots")


def test_gradients_go_as_they_are_unless_the_file_says_otherwise(make: Make) -> None:
    path = make(GOOD)
    assert load(path).wire == Wire()
    path.write_text(GOOD + "wire: {gradients: top_k, top_k: 0.02}\n")
    assert load(path).wire == Wire(gradients="top_k", top_k=0.02)


@pytest.mark.parametrize(
    ("text", "stop_after"),
    [("", 0), ("stop_when: no better for 3 passes\n", 3), ("stop_when: no better for 1 pass\n", 1)],
)
def test_a_job_may_stop_when_it_gets_no_better(make: Make, text: str, stop_after: int) -> None:
    assert load(make(GOOD + text)).stop_after == stop_after


@pytest.mark.parametrize("keep", ["all", "best", "last 3"])
def test_a_job_may_keep_some_of_its_models_only(make: Make, keep: str) -> None:
    assert load(make(GOOD + f"keep: {keep}\n")).keep == keep


def test_no_model_at_all_cannot_be_kept(make: Make) -> None:
    with pytest.raises(SpecError, match="`keep`: which passes' models are kept"):
        load(make(GOOD + "keep: last 0\n"))
