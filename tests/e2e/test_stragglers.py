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
def test_a_slow_trainer_is_named_and_nobody_else(cli: Cli, job: Path, mode: str, why: str) -> None:
    save_often(job, passes=100)
    job.write_text(job.read_text() + f"mode: {mode}\n")
    process = cli.start("train", job, "--json", "--trainers=3", "--pservers=1", BIREME_FAULTS=SLOW)
    seen: set[str] = set()

    def is_named() -> bool:
        assert process.poll() is None, process.communicate()
        done = cli.run("status", "small", "--json")
        seen.update(done.json["status"].get("stragglers", ()) if done.code == 0 else ())
        return any("all others" in one for one in seen)

    try:
        wait_until(is_named, "somebody is named")
        text, told = cli.run("status", "small").out, cli.run("why", "small").out
    finally:
        cli.run("cancel", "small")
        process.communicate(timeout=60)
    said = re.compile("trainer 1, " + why)
    # (On a busy machine somebody else may be late for once, which is told in other words.)
    slow = {one for one in seen if "all others" in one}
    assert slow and all(said.fullmatch(one) for one in slow), seen
    assert re.search(rf"^waits for .*{said.pattern}", text, re.MULTILINE), text
    assert re.search(rf"Everybody waits for .*{said.pattern}", told), told
