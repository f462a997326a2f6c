"""A small job on disk, and the command line run as a user runs it."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from bireme.data.split import split_lines
from bireme.demo import prepare
from bireme.demo.reviews import write_reviews
from bireme.job.output.model import model_hash, pass_name

if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
    # These tests were started in the background of a script; what they start must hear Ctrl-C all the same.
    signal.signal(signal.SIGINT, signal.default_int_handler)

JOB = """\
name: small
program:
  config: quick_start/{config}
passes: 2
connect_timeout_s: 30
"""
PAIR = """\
trainers: 2
pservers: 2
"""
"""As good as three for most of what is shown here, and a third cheaper."""
ONE = ("--trainers=1", "--pservers=1")
"""Half as dear again: starting processes is what most tests here spend their time on."""
MOST = 10
Undisturbed = Callable[[int], str]
"""The hash that a job ends with after so many passes."""


@dataclass(frozen=True)
class Done:
    """A finished command."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)


@dataclass(frozen=True)
class Cli:
    """`bireme` with directories of its own."""

    home: Path

    def environment(self, **extra: str) -> dict[str, str]:
        own = {
            "XDG_STATE_HOME": str(self.home / "state"),
            "XDG_CACHE_HOME": str(self.home / "cache"),
            "NUMBA_CACHE_DIR": os.environ.get("NUMBA_CACHE_DIR", ""),
        }
        # `./dev test` says what it is called; users of these tests call it by its name.
        inherited = {k: v for k, v in os.environ.items() if k != "BIREME_COMMAND"}
        return {**inherited, **{k: v for k, v in own.items() if v}, **extra}

    def start(self, *args: object, cwd: Path | None = None, **env: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [sys.executable, "-m", "bireme", *map(str, args)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            cwd=cwd or self.home,
            env=self.environment(**env),
        )

    def run(self, *args: object, cwd: Path | None = None, timeout_s: float = 240, **env: str) -> Done:
        process = self.start(*args, cwd=cwd, **env)
        out, err = process.communicate(timeout=timeout_s)
        return Done(process.returncode, out, err)


@pytest.fixture
def cli(tmp_path: Path) -> Cli:
    return Cli(tmp_path)


def lay_out(directory: Path, config: str = "trainer_config.lr.py", layout: str = PAIR) -> Path:
    """A job like the demo's, a fortieth of its size; returns its job.yaml. Without a layout it has a node a shard."""
    program = directory / "quick_start"
    program.mkdir(parents=True)
    for name in prepare.program_files():
        shutil.copy(Path(prepare.__file__).parent / "quick_start" / name, program / name)
    (directory / "job.yaml").write_text(JOB.format(config=config) + layout)
    return directory / "job.yaml"


def edit(path: Path, *changes: tuple[str, str]) -> None:
    """Replace each text wherever it is; all must be there."""
    text = path.read_text()
    for old, new in changes:
        assert old in text, f"{old!r} is not in {path}"
        text = text.replace(old, new)
    path.write_text(text)


ROW_OF = """from hashlib import blake2b


def row_of(word):
    return int.from_bytes(blake2b(word.encode(), digest_size=8).digest(), "little") % 2**63
"""


def take_rows(job: Path, *, is_unbounded: bool, method: str = "MomentumOptimizer()") -> None:
    """Let the small job's weight be a sparse parameter, by the dictionary's ids or by hashes without a range."""
    program = job.parent / "quick_start"
    config = [
        ("act=SoftmaxActivation())", "act=SoftmaxActivation(), param_attr=ParamAttr(sparse_update=True))"),
        ("AdamOptimizer()", method),
        ("is_predict else 128", "is_predict else 16"),
    ]
    if is_unbounded:
        config.append(("size=len(dictionary)", "size=2**63"))
        edit(
            program / "dataprovider_bow.py",
            ("UNKNOWN = 0\n", ROW_OF),
            ("sparse_binary_vector(len(dictionary))", "sparse_binary_vector(2**63)"),
            ("find(word, UNKNOWN)", "row_of(word)"),
        )
    edit(program / "trainer_config.lr.py", *config)


@pytest.fixture(scope="session")
def reviews(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """601 reviews: shards of 201, 200 and 200, so that one has a last batch of its own."""
    directory = tmp_path_factory.mktemp("reviews") / "reviews"
    write_reviews(directory, train=602, test=120, words=1500)
    lines = (directory / "train.txt").read_bytes().splitlines(keepends=True)
    (directory / "train.txt").write_bytes(b"".join(lines[:601]))
    return directory


@pytest.fixture
def job(tmp_path: Path, reviews: Path) -> Path:
    """A small job in three shards, ready to train."""
    path = lay_out(tmp_path / "job")
    split_lines(reviews, path.parent, 3)
    return path


@pytest.fixture
def often(job: Path) -> Path:
    """The small job, with small batches and a snapshot every few rounds."""
    return save_often(job, passes=4)


def save_often(job: Path, *, passes: int) -> Path:
    """Give a job small batches, and a snapshot every few rounds."""
    edit(job.parent / "quick_start" / "trainer_config.lr.py", ("is_predict else 128", "is_predict else 4"))
    edit(job, ("passes: 2", f"passes: {passes}"))
    job.write_text(job.read_text() + "snapshots: {every_s: 0.05, keep: 4}\n")
    return job


@pytest.fixture(scope="session")
def whole(tmp_path_factory: pytest.TempPathFactory, reviews: Path) -> Path:
    """The output of the small job with small batches, undisturbed: `MOST` passes, on one node."""
    home = tmp_path_factory.mktemp("whole")
    job = save_often(lay_out(home / "job"), passes=MOST)
    split_lines(reviews, job.parent, 3)
    done = Cli(home).run("train", job, "--output", home / "output", *ONE)
    assert done.code == 0, done.err
    return home / "output"


@pytest.fixture(scope="session")
def undisturbed(whole: Path) -> Undisturbed:
    """The hash that the same job ends with after so many passes, in whatever layout."""
    return lambda passes: model_hash(whole / pass_name(passes - 1))


def wait_until(claim: Callable[[], object], what: str, timeout_s: float = 60.0) -> None:
    """Look again and again whether a claim has become true."""
    deadline = time.monotonic() + timeout_s
    while not claim():
        assert time.monotonic() < deadline, f"waited {timeout_s:g} s until {what}"
        time.sleep(0.02)


def lines_of(path: Path) -> list[dict[str, Any]]:
    """A file of JSON lines so far, without a last one that is still being written."""
    text = path.read_text() if path.is_file() else ""
    return [json.loads(line) for line in text.splitlines(keepends=True) if line.endswith("\n")]


def assert_ledger_is_exact(output: Path, passes: int) -> None:
    """Every sample of every shard was read, trained and applied once in every pass."""
    rows = lines_of(output / "ledger.jsonl")
    assert [(row["pass"], row["shard"]) for row in rows] == [(p, s) for p in range(passes) for s in range(3)]
    assert {(row["shard"], row[what]) for row in rows for what in ("read", "trained", "applied")} == {
        (0, 201), (1, 200), (2, 200),
    }  # fmt: skip


def pids_of(output: Path) -> dict[str, int]:
    """Live processes of the job that writes there, by name, as in `trainer 1`."""
    found = {}
    for entry in Path("/proc").iterdir():
        try:
            line = (entry / "cmdline").read_text().split("\0") if entry.name.isdecimal() else []
        except OSError:
            continue  # it has just ended
        if f"--job={output}/job.json" in line:
            role, rank = line[line.index("bireme") + 1], next(a for a in line if a.startswith("--rank="))
            found[f"{role} {rank.removeprefix('--rank=')}"] = int(entry.name)
    return found


def processes_mentioning(text: str) -> list[str]:
    """Command lines of live processes that mention `text`, this one left out."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal() and int(entry.name) != os.getpid():
            try:
                line = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
            except OSError:
                continue  # it has just ended
            if text in line:
                found.append(line)
    return found
