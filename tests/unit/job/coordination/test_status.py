from __future__ import annotations

import msgspec
import pytest
from tests.unit.job.story import ADDRESSES, Story, lines, progress

from bireme.job.coordination import messages as m
from bireme.job.coordination.status import SILENT_S, status_of, waits_for
from bireme.job.status import PserverStatus
from bireme.ps.lanes.slow_trainers import Awaited, Slowest


def test_progress_is_written_as_means_and_shown_in_the_status() -> None:
    story = Story().train()
    story.now_s += 3
    (line,) = lines("metrics.jsonl", story.deliver(11, progress(1)))
    assert (line["cost"], line["t"], line["trainer"]) == (0.5, 3.0, 1)
    status = status_of(story.machine, story.now_s + 1)
    assert (status.phase, status.seconds, status.trainers_missing) == ("training", 4.0, ())
    assert (status.pass_id, status.round, status.job, status.passes) == (0, 2, "demo", 2)
    first, second = status.trainers
    assert (second.evals, second.silent_s, first.silent_s) == ((0.25,), 1.0, 4.0)


def test_the_first_status_waits_for_the_trainers() -> None:
    status = status_of(Story().machine, 1.0)
    assert (status.phase, status.trainers_missing, status.seconds) == ("gathering", (0, 1), 0.0)


def test_the_status_has_the_addresses_of_pservers() -> None:
    story = Story().train()
    pservers = status_of(story.machine, story.now_s).pservers
    assert pservers == tuple(PserverStatus(pserver=r, host=a.host, ports=a.ports) for r, a in enumerate(ADDRESSES))


def test_missing_members_are_named_with_their_reasons() -> None:
    story = Story().train()
    assert waits_for(story.machine, story.now_s) == []
    story.lose(11)
    story.lose(20)
    story.machine.pserver_out_of_reach(0, "connection refused")
    assert waits_for(story.machine, story.now_s) == ["trainer 1", "pserver 0 (connection refused)"]
    assert status_of(story.machine, story.now_s).waits_for == ("trainer 1", "pserver 0 (connection refused)")


def test_a_silent_member_is_named_until_its_next_message() -> None:
    story = Story().train()
    story.now_s += SILENT_S + 4
    for connection in (10, 20):
        story.deliver(connection, m.Alive())
    said = f"silent for {SILENT_S + 4:.0f} s"
    assert waits_for(story.machine, story.now_s) == [f"trainer 1, {said}", f"pserver 1, {said}"]
    story.deliver(11, progress(1))
    story.deliver(21, m.Alive())
    assert waits_for(story.machine, story.now_s) == []


def test_a_straggler_is_named_beside_a_longer_number() -> None:
    story = Story(trainers=13, shards=13)
    for rank in range(13):
        story.join(rank, 100 + rank)
    for pserver in range(2):
        story.reach(pserver)
    story.load()
    story.ready()
    story.now_s += SILENT_S + 1
    for connection in (20, 21, *range(100, 112)):
        story.deliver(connection, m.Alive())
    said = waits_for(story.machine, story.now_s, Awaited(missing=[1, 12], seconds=5.0))
    assert said == [
        f"trainer 12, silent for {SILENT_S + 1:.0f} s",
        "trainer 1, which the round has waited for 5 s",
    ]


@pytest.mark.parametrize(
    ("late", "said"),
    [
        (None, []),
        (Awaited([1], seconds=SILENT_S - 0.1), []),
        (Awaited([1], seconds=SILENT_S + 1), ["trainer 1, which the round has waited for 4 s"]),
        (Awaited([], 0.0, Slowest(1, 0.49, 8.0)), []),
        (Awaited([0], 0.2, Slowest(1, 0.72, 8.4)), ["trainer 1, which all others waited for 72 % of the last 8 s"]),
        (
            Awaited([], 0.0, Slowest(1, 0.9, 8.4), behind=0),
            ["trainer 1, which all others were far ahead of 90 % of the last 8 s"],
        ),
        (
            Awaited([1], 0.0, Slowest(1, 0.9, 8.4), behind=12),
            ["trainer 1, which all others were far ahead of 90 % of the last 8 s (by 12 batches now)"],
        ),
        (
            Awaited([0], 5.0, Slowest(1, 0.72, 8.4)),
            [
                "trainer 0, which the round has waited for 5 s",
                "trainer 1, which all others waited for 72 % of the last 8 s",
            ],
        ),
    ],
)
def test_a_trainer_slower_than_all_others_is_named(late: Awaited | None, said: list[str]) -> None:
    story = Story().train()
    status = status_of(story.machine, story.now_s, late)
    assert (status.stragglers, status.waits_for) == (tuple(said), tuple(said))
    story.lose(11)
    status = status_of(story.machine, story.now_s, late)
    assert (status.stragglers, status.waits_for) == ((), ("trainer 1",))


@pytest.mark.parametrize(
    ("reports", "said"),
    [
        (
            (Slowest(1, 0.82, 7.0), Slowest(1, 0.71, 8.0)),
            ["pserver 1, which all trainers waited for 71 % of the last 8 s"],
        ),
        ((Slowest(1, 0.82, 7.0), Slowest(1, 0.3, 8.0)), []),
        ((Slowest(1, 0.82, 7.0), Slowest(0, 0.8, 8.0)), []),
        ((Slowest(1, 0.82, 7.0), None), []),
    ],
)
def test_a_pserver_that_all_trainers_wait_for_is_named(reports: tuple[Slowest | None, ...], said: list[str]) -> None:
    story = Story().train()
    for rank, slowest in enumerate(reports):
        story.deliver(10 + rank, msgspec.structs.replace(progress(rank, story.machine.view), slowest_pserver=slowest))
    status = status_of(story.machine, story.now_s)
    assert (status.stragglers, status.waits_for) == (tuple(said), tuple(said))
    story.deliver(11, progress(1, story.machine.view - 1))
    assert waits_for(story.machine, story.now_s) == [], "that was in an earlier view"


def test_a_job_that_is_over_waits_for_no_member() -> None:
    story = Story().train()
    story.lose(11)
    story.machine.cancelled()
    assert waits_for(story.machine, story.now_s + 100) == []
