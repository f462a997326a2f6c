"""A trainer's stories of rounds with pservers that answer after so many seconds each."""

from __future__ import annotations

import socket
from collections.abc import Sequence
from typing import Any, cast

import numpy as np
import pytest

from bireme.ps.client import carriers, push_pull
from bireme.ps.client.memory import TrainerMemory
from bireme.ps.client.push_pull import Exchange, Identity, Link
from bireme.ps.client.push_pull_rows import RowLinks
from bireme.ps.client.slow_pservers import TURNS, SlowPservers
from bireme.ps.lanes.slow_trainers import STRAGGLES_ABOVE, WINDOW_S
from bireme.ps.plan import Layout
from bireme.ps.tree import Span
from bireme.ps.wire import frame_io
from bireme.ps.wire.frames import Head, Kind
from bireme.spec.model import Parameter, Rows


def run_rounds(
    slow_pservers: SlowPservers,
    now_s: float,
    count: int,
    answers: Sequence[float],
    compute_s: float = 0.0,
    move_s: float = 0.0,
) -> float:
    """Rounds in which each pserver's answer comes so long after the push; returns when they are over."""
    orders = slow_pservers.orders(range(len(answers)))
    for _ in range(count):
        now_s += compute_s
        pushed_s = now_s
        for pserver in orders[slow_pservers.last]:
            there_s = max(now_s, pushed_s + answers[pserver])
            slow_pservers.begun(pserver, there_s - now_s)
            slow_pservers.moved(pserver, move_s)
            now_s = there_s + move_s
        slow_pservers.answered(now_s)
    return now_s


def share(slow_pservers: SlowPservers, rank: int) -> float:
    found = slow_pservers.slowest
    assert found is not None
    return found.share if found.rank == rank else 0.0


@pytest.mark.parametrize("pservers", [2, 3, 7])
def test_a_pserver_that_answers_late_is_waited_for_by_as_much(pservers: int) -> None:
    slow_pservers = SlowPservers(pservers)
    run_rounds(slow_pservers, 100.0, 60 * pservers, [0.02] * (pservers - 1) + [0.1], compute_s=0.02)
    assert share(slow_pservers, pservers - 1) == pytest.approx(0.08 / 0.12, abs=0.03)


@pytest.mark.parametrize("first", [0, 3, 15])
def test_all_trainers_see_the_same_slow_pserver(first: int) -> None:
    slow_pservers = SlowPservers(16, first)
    now_s = run_rounds(slow_pservers, 0.0, 16 * TURNS, [0.1] * 15 + [1.0])
    assert slow_pservers.slowest is None, "some have not been last often enough"
    for _ in range(40):
        now_s = run_rounds(slow_pservers, now_s, 7, [0.1] * 15 + [1.0])
        assert share(slow_pservers, 15) == pytest.approx(0.9, abs=0.03)


def test_of_pservers_that_are_all_slow_none_is_slower() -> None:
    slow_pservers = SlowPservers(3)
    run_rounds(slow_pservers, 0.0, 60, [0.5, 0.5, 0.5], move_s=0.1)
    assert share(slow_pservers, 0) + share(slow_pservers, 1) + share(slow_pservers, 2) < 0.05


def test_a_trainer_that_is_slow_itself_waits_for_none() -> None:
    slow_pservers = SlowPservers(2)
    run_rounds(slow_pservers, 0.0, 60, [0.01, 0.1], compute_s=1.0)
    assert share(slow_pservers, 1) < 0.1


def test_one_long_wait_makes_no_straggler() -> None:
    slow_pservers = SlowPservers(8)
    now_s = run_rounds(slow_pservers, 0.0, 52, [0.05] * 8)
    assert slow_pservers.last == 3 and slow_pservers.slowest is None
    now_s = run_rounds(slow_pservers, now_s, 1, [0.05] * 3 + [2.0] + [0.05] * 4)
    run_rounds(slow_pservers, now_s, 50, [0.05] * 8)
    assert share(slow_pservers, 3) < 0.05


def test_bytes_that_trickle_count_beside_late_answers() -> None:
    slow_pservers = SlowPservers(2)
    now_s = 0.0
    for _ in range(40):
        slow_pservers.moved(0, 0.05)
        slow_pservers.moved(1, 0.45)
        now_s += 0.5
        slow_pservers.answered(now_s)
    assert share(slow_pservers, 1) == pytest.approx(0.8, abs=0.05)


def test_who_was_slow_and_is_not_any_more_is_forgotten() -> None:
    slow_pservers = SlowPservers(2)
    now_s = run_rounds(slow_pservers, 0.0, 100, [0.01, 0.1])
    assert share(slow_pservers, 1) > STRAGGLES_ABOVE
    run_rounds(slow_pservers, now_s, int(2 * WINDOW_S / 0.01) + 4, [0.01, 0.01])
    assert share(slow_pservers, 1) < 0.05


def test_what_passes_between_passes_counts_for_none() -> None:
    slow_pservers = SlowPservers(2)
    slow_pservers.begun(0, 100.0)
    now_s = run_rounds(slow_pservers, 0.0, 1, [9.0, 9.0])
    for _ in range(10):
        now_s = run_rounds(slow_pservers, now_s, 20, [0.01, 0.1])
        slow_pservers.rest()
        slow_pservers.begun(slow_pservers.last, 50.0)
        slow_pservers.answered(now_s + 50.0)
        slow_pservers.rest()
        now_s += 100.0
    found = slow_pservers.slowest
    assert found is not None and (found.rank, found.of_s < 3 * WINDOW_S) == (1, True)
    assert found.share == pytest.approx(0.85, abs=0.1)


def test_in_passes_of_two_rounds_every_pserver_is_last_once() -> None:
    slow_pservers, now_s = SlowPservers(3), 0.0
    for _ in range(40):
        now_s = run_rounds(slow_pservers, now_s, 2, [0.1, 0.35, 0.35], compute_s=0.1)
        slow_pservers.rest()
        now_s = run_rounds(slow_pservers, now_s, 1, [5.0, 5.0, 5.0])
        slow_pservers.rest()
    found = slow_pservers.slowest
    assert found is not None and found.share < 0.05, "of two equally slow ones"


def test_few_samples_name_no_straggler() -> None:
    slow_pservers = SlowPservers(2)
    run_rounds(slow_pservers, 0.0, 10, [0.01, 0.1])
    assert slow_pservers.slowest is None


def test_a_single_pserver_is_not_slower_than_others() -> None:
    slow_pservers = SlowPservers(1)
    run_rounds(slow_pservers, 0.0, 100, [1.0])
    assert slow_pservers.slowest is None


# How an exchange sees it


class Clock:
    """A clock that stands still but for what lanes let it wait."""

    now_s = 0.0

    def monotonic(self) -> float:
        return self.now_s


class Lane:
    """A connection to a lane that answers so long after it was asked."""

    family = socket.AF_INET

    def __init__(self, clock: Clock, answer_s: float) -> None:
        self._clock, self._answer_s = clock, answer_s
        self._due_s = 0.0

    def ask(self) -> None:
        self._due_s = self._clock.now_s + self._answer_s

    def wait(self) -> None:
        self._clock.now_s = max(self._clock.now_s, self._due_s)


@pytest.mark.parametrize("slow", ["dense", "rows"])
def test_an_exchange_names_the_pserver_whose_lanes_answer_late(slow: str, monkeypatch: pytest.MonkeyPatch) -> None:
    clock, pservers, lanes = Clock(), 3, 2
    owners = [i // lanes for i in range(pservers * lanes)]
    late = {"dense": [0.1 if p == 1 and slow == "dense" else 0.01 for p in owners]}
    late["rows"] = [0.1 if p == 1 and slow == "rows" else 0.01 for p in owners]
    dense, sparse = ([cast(Any, Lane(clock, each)) for each in late[kind]] for kind in ("dense", "rows"))
    table = Parameter(name="table", shape=(100, 4), rows=Rows())
    layout = Layout([Parameter(name="w", shape=(12,))])

    def send(sock: Lane, *_: object) -> None:
        sock.ask()

    def expect(sock: Lane, kind: Kind) -> Head:
        sock.wait()
        nbytes = 0 if sock in sparse else 4 * len(layout.slices(len(dense))[dense.index(sock)])
        return Head(kind, nbytes=nbytes)

    for module in (push_pull, carriers):
        monkeypatch.setattr(module, "time", clock)
    monkeypatch.setattr(frame_io, "send", send)
    monkeypatch.setattr(frame_io, "send_all", send)
    monkeypatch.setattr(frame_io, "expect", expect)
    monkeypatch.setattr(frame_io, "receive_into", lambda *_: None)
    slow_pservers = SlowPservers(pservers, last=2)
    links = [Link(sock, part, p) for sock, part, p in zip(dense, layout.slices(len(dense)), owners, strict=True)]
    memory = TrainerMemory(layout, [Span(0, 1)], is_shared=False)
    rows = RowLinks(sparse, [table], owners, slow_pservers)
    exchange = Exchange(links, memory, Identity(1, 1, 1), rows, slow_pservers=slow_pservers)
    exchange.pull_now(is_needed=lambda at: False)
    for _ in range(150):
        exchange.pull_round(0, [np.empty(0, np.uint64)])
    found = exchange.slowest_pserver
    assert found is not None and (found.rank, found.share > STRAGGLES_ABOVE) == (1, True)
