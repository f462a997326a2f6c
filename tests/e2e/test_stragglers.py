"""A trainer that keeps up badly, but lives, is named in the status."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from tests.e2e.conftest import Cli, save_often, wait_until

SLOW = json.dumps([{"action": "delay", "who": "trainer:1", "seed": 3, "max_ms": 200}])
"""At each of its points trainer 1 waits now and then: some tenths of a second in a round, never as long as 3 s."""


@pytest.mark.parametrize(
    ("mode", "why"),
    [
        ("sync", r"which all others waited for \d+ % of the last \d+ s"),
        pytest.param("bounded", r"which all others waited for \d+ % of the last \d+ s", marks=pytest.mark.slow),
        ("async", r"which all others were far ahead of \d+ % of the last \d+ s( \(by \d+ batches now\))?"),
    ],
)
def test_a_slow_trainer_is_named(cli: Cli, job: Path, mode: str, why: str) -> None:
    save_often(job, passes=100)
    job.write_text(job.read_text() + f"mode: {mode}\n")
    process = cli.start("train", job, "--json", "--trainers=3", "--pservers=1", BIREME_FAULTS=SLOW)
    said = re.compile("trainer 1, " + why)
    seen: set[str] = set()
    unsaid = {"status": rf"(?m)^waits for .*{said.pattern}", "why": rf"Everybody waits for .*{said.pattern}"}

    def is_named() -> bool:
        """Whether each command has named it; between passes nobody is waited for, so they are asked until they do."""
        assert process.poll() is None, process.communicate()
        done = cli.run("status", "small", "--json")
        seen.update(done.json["status"].get("stragglers", ()) if done.code == 0 else ())
        for command, words in list(unsaid.items()):
            if re.search(words, cli.run(command, "small").out):
                del unsaid[command]
        return not unsaid and any("all others" in one for one in seen)

    try:
        wait_until(is_named, "it is named", 120.0)
    finally:
        cli.run("cancel", "small")
        process.communicate(timeout=60)
    # (On a busy machine somebody else may be late for once.)
    slow = [one for one in seen if "all others" in one]
    assert sum(bool(said.fullmatch(one)) for one in slow) > len(slow) / 2, seen
