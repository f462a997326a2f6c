"""A small job on disk, and the command line run as a user runs it."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from bireme.data.reviews import write_reviews
from bireme.data.split import split_lines
from bireme.local import demo

JOB = """\
name: small
program:
  config: quick_start/{config}
passes: 2
connect_timeout_s: 30
"""


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
        return {**os.environ, **{k: v for k, v in own.items() if v}, **extra}

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

    def run(self, *args: object, cwd: Path | None = None, **env: str) -> Done:
        process = self.start(*args, cwd=cwd, **env)
        out, err = process.communicate(timeout=240)
        return Done(process.returncode, out, err)


@pytest.fixture
def cli(tmp_path: Path) -> Cli:
    return Cli(tmp_path)


def lay_out(directory: Path, config: str = "trainer_config.lr.py") -> Path:
    """A job like the demo's, a fortieth of its size; returns its job.yaml."""
    program = directory / "quick_start"
    program.mkdir(parents=True)
    for name in demo.program_files():
        shutil.copy(Path(demo.__file__).parent / "quick_start" / name, program / name)
    (directory / "job.yaml").write_text(JOB.format(config=config))
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
