"""The demo's directory: reviews, their shards, a config with its provider, and a job.yaml.

It is the quick-start job of the original's tutorial, laid out as on its shared volume, so that
people can change any part of it and run `bireme train DIR/job.yaml`.
"""

from __future__ import annotations

from importlib import resources
from pathlib import Path

from bireme.core.errors import OutputExistsError
from bireme.core.files import storage_errors, write_atomic
from bireme.data.split import split_lines
from bireme.data.staging import Progress
from bireme.demo.reviews import ReviewFacts, write_reviews

_PROGRAM = resources.files("bireme.demo") / "quick_start"
JOB_YAML = """\
# Sentiment of (made-up) product reviews; docs/reference/job.md explains every key.
name: quick-start
program:
  config: quick_start/trainer_config.lr.py   # or trainer_config.emb.py, which needs PaddlePaddle
nodes: {shards}            # each runs one pserver and one trainer
lanes:
  ports_num: 2       # dense lanes of each pserver
passes: 10
seed: 1
output: output
"""


def prepare(
    directory: Path, *, shards: int = 3, reviews: int = 24_000, on_progress: Progress | None = None
) -> ReviewFacts:
    """Write the demo's directory; refuses one that has something in it."""
    if directory.exists() and (not directory.is_dir() or any(directory.iterdir())):
        fix = "choose another directory, or remove that one"
        raise OutputExistsError(f"{directory} exists and is not empty", fix=fix)
    with storage_errors(str(directory)):
        (directory / "quick_start").mkdir(parents=True, exist_ok=True)
        for name in program_files():
            (directory / "quick_start" / name).write_bytes((_PROGRAM / name).read_bytes())
    facts = write_reviews(directory / "reviews", train=reviews, on_progress=on_progress)
    split_lines(directory / "reviews", directory, shards)
    # The job comes last: a directory with a job.yaml is complete.
    write_atomic(directory / "job.yaml", JOB_YAML.format(shards=shards).encode())
    return facts


def program_files() -> list[str]:
    return sorted(entry.name for entry in _PROGRAM.iterdir() if entry.name.endswith(".py"))
