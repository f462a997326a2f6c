"""Pods that stand still are replaced, and pods that are asked to leave save what they did: no bit changes."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path

import pytest
from tools.kube.cluster import Cluster
from tools.kube.victim import Victim

from bireme.job.output.snapshots import candidates
from tests.e2e.conftest import edit
from tests.kube.ordeal import at_work, disturbed
from tests.kube.stage import There, small_job

BATCHES = 50
"""In each pass at least."""
SLOW = "delay:seed=7,max_ms=150"
"""A pass lasts so long that a command is done within it, on a busy machine too."""


@pytest.mark.slow
def test_a_pod_that_its_probe_ends_changes_no_bit(
    victim: Victim, whole: Cluster, ends_well: Callable[[], None]
) -> None:
    before, processes = victim.name_of(1), victim.processes(1)
    assert set(processes) == {"entry", "pserver", "trainer"}
    for pid in processes.values():
        os.kill(pid, signal.SIGSTOP)
    victim.await_another(1, before)
    about = f"involvedObject.name={before}"
    events = whole.get("events", "-n", victim.namespace, "--field-selector", about)["items"]
    lines = [f"{event['reason']}: {event['message']}".strip() for event in events]
    assert "Unhealthy: Liveness probe failed:" in lines and any(line.startswith("Killing") for line in lines), lines
    ends_well()


@pytest.fixture
def unsaved(there: There, reviews: Path, passes: int) -> Victim:
    """The job, at work, which takes a snapshot once an hour."""
    path = disturbed(small_job(there, reviews), passes)
    edit(path, ("every_s: 2", "every_s: 3600"))
    return at_work(there, path, pace=SLOW)


@pytest.mark.parametrize("passes", [1])
def test_a_job_stopped_within_a_pass_continues_from_there(
    unsaved: Victim, there: There, ends_well: Callable[[], None]
) -> None:
    there.wait(lambda: max(row["round"] for row in unsaved.lines()) >= 5, "some rounds are done")
    assert unsaved.lines("pass") == [] and candidates(unsaved.output / "snapshots")[0] == []
    assert there.ask("cancel", "small")["state"] == "suspended"
    saved = candidates(unsaved.output / "snapshots")[0][0]
    assert saved.round >= 5 and saved.ended is None
    assert 0 < saved.batch < BATCHES, "it was to be stopped within a pass"
    reached = max(row["round"] for row in unsaved.lines())
    assert reached - saved.round <= BATCHES, "what was done before the stop is saved"
    # Whichever pod was asked first; the others may have been asked when there was nothing left to save.
    said = "".join(path.read_text() for path in unsaved.output.glob("node_*/node.log"))
    assert "requested snapshot" in said and f"snapshot committed round={saved.round}" in said

    views = len(unsaved.lines("view"))
    there.do("resume", "small")
    there.wait(lambda: len(unsaved.lines("view")) > views, "it trains again")
    assert unsaved.lines("view")[views]["round"] == saved.round
    ends_well()
    after = [row["round"] for row in unsaved.lines() if row["view"] > unsaved.lines("view")[views - 1]["view"]]
    assert min(after) >= saved.round, "nothing that was saved is done again"
