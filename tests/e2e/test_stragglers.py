"""Who keeps up badly, but lives, is named in the status."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from tests.e2e.conftest import Cli, save_often, wait_until

WAITED = r"waited for \d+ % of the last \d+ s"
AHEAD = r"were far ahead of \d+ % of the last \d+ s( \(by \d+ batches now\))?"


def slow(who: str) -> str:
    """At each of its points a process waits now and then: some tenths of a second in a round, never as long as 3 s."""
    return json.dumps([{"action": "delay", "who": who, "seed": 3, "max_ms": 200}])


@pytest.mark.parametrize(
    ("mode", "who", "why"),
    [
        ("sync", "trainer 1", rf"which all others {WAITED}"),
        pytest.param("bounded", "trainer 1", rf"which all others {WAITED}", marks=pytest.mark.slow),
        ("async", "trainer 1", rf"which all others {AHEAD}"),
        ("sync", "pserver 1", rf"which all trainers {WAITED}"),
        pytest.param("async", "pserver 1", rf"which all trainers {WAITED}", marks=pytest.mark.slow),
    ],
)
def test_who_is_slow_is_named(cli: Cli, job: Path, mode: str, who: str, why: str) -> None:
    save_often(job, passes=100)
    job.write_text(job.read_text() + f"mode: {mode}\n")
    members = ("--trainers=3", "--pservers=1") if who.startswith("trainer") else ("--trainers=2", "--pservers=2")
    process = cli.start("train", job, "--json", *members, BIREME_FAULTS=slow(who.replace(" ", ":")))
    said = re.compile(f"{who}, {why}")
    seen: set[str] = set()
    unsaid = {"status": rf"(?m)^waits for .*{said.pattern}", "why": rf"The job waits for .*{said.pattern}"}

    def is_named() -> bool:
        """Whether each command has named it; between passes there are no waits, so they are asked until they do."""
        assert process.poll() is None, process.communicate()
        done = cli.run("status", "small", "--json")
        seen.update(done.json["status"].get("stragglers", ()) if done.code == 0 else ())
        for command, words in list(unsaid.items()):
            if re.search(words, cli.run(command, "small").out):
                del unsaid[command]
        return not unsaid and any(said.fullmatch(one) for one in seen)

    try:
        wait_until(is_named, "it is named", 120.0)
    finally:
        cli.run("cancel", "small")
        process.communicate(timeout=60)
    # (On a busy machine another process may be late for once; a slow pserver may keep one trainer behind the others.)
    late = [one for one in seen if "all " in one and one.split()[0] == who.split()[0]]
    assert sum(bool(said.fullmatch(one)) for one in late) > len(late) / 2, seen
