from __future__ import annotations

import json
import math
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import wire
from engines import local_cluster as lc
from engines.local_cluster import Cluster, Shape
from engines.running import RunFailedError

from bireme.core.errors import MissingError, UsageError


def samples(**rates: tuple[float, ...]) -> dict[Any, list[float]]:
    return {coding: list(rates.get(coding, (1.0,))) for coding in wire.CODINGS}


def test_a_coding_pays_below_the_rate_of_ratio_one() -> None:
    assert wire.crossing({100: 1.5, 1000: 1.5, 10000: 0.5}) == pytest.approx(math.sqrt(1000 * 10000))


def test_a_coding_that_is_slower_everywhere_never_pays() -> None:
    assert wire.crossing({100: 0.9, 1000: 0.8}) == 0.0
    assert wire.sentence("top_k", {100: 0.9, 1000: 0.8}).startswith("top_k does not pay at any of these rates")


def test_a_coding_faster_at_the_highest_rate_pays_everywhere() -> None:
    assert wire.crossing({100: 1.9, 1000: 1.1}) == math.inf
    assert "pays at all rates up to 1,000 Mbit/s" in wire.sentence("float16", {100: 1.9, 1000: 1.1})


def test_the_sentence_names_a_rate_and_the_best_ratio() -> None:
    said = wire.sentence("float16", {100: 1.3, 1000: 1.2, 3000: 0.9})
    assert said == "float16 pays below about 2,100 Mbit/s: at best 1.30 times float32's speed, at 100 Mbit/s."


def test_figures_are_medians_with_ratios_against_float32() -> None:
    found = {1000: samples(float32=(1.0, 2.0, 9.0), float16=(3.0, 3.0, 1.0))}
    figures = wire.figures_of(found, 10_000_000)
    assert figures["1000"]["steps_s"]["float16"]["ratio"] == 1.5
    assert figures["1000"]["floats"] == 10_000_000
    assert figures["1000"]["float32_steps_s_at_most"] == pytest.approx(1.5625)
    assert json.loads(json.dumps(figures)) == figures
    assert "3.00 (1.50×)" in " ".join(wire.table(figures).split())


def test_a_slow_network_gets_a_smaller_model() -> None:
    assert [wire.floats_at(mbit, 10_000_000) for mbit in (100, 999, 1000)] == [1_000_000, 1_000_000, 10_000_000]
    assert wire.rounds_in_turn(100, 10_000_000) == 1
    assert wire.rounds_in_turn(10_000, 1_000) == 8


def test_without_root_the_bench_says_loudly_what_it_needs() -> None:
    with pytest.raises(MissingError, match="it needs root, and the programs `ip` and `tc`") as caught:
        wire.check_rights(user=1000, path=str(Path("/nowhere")))
    assert "you are not root and `ip` is not installed and `tc` is not installed" in caught.value.why
    assert caught.value.exit_code == 14


def test_only_namespaces_of_benches_that_are_gone_are_swept(monkeypatch: pytest.MonkeyPatch) -> None:
    called: list[list[str]] = []
    monkeypatch.setattr("wire.subprocess.run", lambda command, **_: called.append(command))
    monkeypatch.setattr(wire, "is_alive", lambda pid: pid == 7)
    names = ["bireme-wire-7-hub", "bireme-wire-8-hub", "other", "bireme-wired"]
    assert wire.sweep(names) == ["bireme-wire-8-hub"]
    assert called == [["ip", "netns", "delete", "bireme-wire-8-hub"]]


def test_a_network_that_cannot_be_made_is_taken_down_again(monkeypatch: pytest.MonkeyPatch) -> None:
    commands: list[str] = []

    def call(*command: str) -> None:
        commands.append(" ".join(command))
        if "veth" in command:
            raise MissingError("no veth here")

    monkeypatch.setattr(wire, "_call", call)
    monkeypatch.setattr(wire, "sweep", list)
    monkeypatch.setattr("wire.subprocess.run", lambda command, **_: commands.append(" ".join(command)))
    with pytest.raises(MissingError, match="no veth here"), wire.Network():
        raise AssertionError("never entered")
    made = {line.removeprefix("ip netns add ") for line in commands if line.startswith("ip netns add ")}
    gone = {line.removeprefix("ip netns delete ") for line in commands if line.startswith("ip netns delete ")}
    assert made and made <= gone


def test_a_failed_command_reports_what_it_said() -> None:
    with pytest.raises(MissingError, match="failed: no such device"):
        wire._call("sh", "-c", "echo no such device >&2; exit 2")


class FakeCluster:
    """Answers at once; a round takes as long as its coding's name has letters."""

    log: list[str] = []  # noqa: RUF012 - one log for all of them

    def __init__(self, shape: Shape, environment: Any, seat: Any) -> None:
        self._shape = shape

    def __enter__(self) -> FakeCluster:
        return self

    def __exit__(self, *_: object) -> None:
        self.log.append(f"end {self._shape.coding}")

    def rounds(self, count: int) -> list[float]:
        return [float(len(self._shape.coding))] * count

    def check(self) -> None:
        self.log.append(f"check {self._shape.coding} {self._shape.floats}")


class FakeNetwork:
    def __init__(self) -> None:
        self.limits: list[int] = []

    def limit(self, mbit: int) -> None:
        self.limits.append(mbit)

    def seat(self, role: str, rank: int) -> None:
        raise AssertionError("no process has this seat")


def test_codings_take_turns_and_each_result_is_checked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wire, "Cluster", FakeCluster)
    monkeypatch.setattr(FakeCluster, "log", [])
    network = FakeNetwork()
    found = wire.measure(network, [100, 1000, 3000], 1000, reps=2)  # type: ignore[arg-type]
    assert network.limits == [100, 100, 10000, 1000, 3000, 1000, 3000, 10000]
    assert found[100]["top_k"] == [0.2, 0.2] and found[3000]["bfloat16"] == [0.125, 0.125]
    assert [line for line in FakeCluster.log if line.startswith("check top_k")] == [
        "check top_k 100",
        "check top_k 1000",
    ]


def test_wrong_arguments_are_refused_and_quick_runs_are_tiny() -> None:
    with pytest.raises(UsageError):
        wire.parse(["--mbit", "0"])
    given = wire.parse(["--quick", "--mbit", "300", "100", "100"])
    assert (given.mbit, given.floats, given.reps) == ([100, 300], 100_000, 1)


SHAPE = Shape(trainers=2, pservers=2, floats=600_000)


def right(rounds: int, held: Any = 0.0) -> Any:
    one = np.resize(lc.pattern(), SHAPE.floats)
    return -np.float32(lc.RATE) * (np.float32(3 * rounds) * one - held)


def test_the_dense_check_catches_one_wrong_element() -> None:
    nothing = np.zeros(SHAPE.floats, np.float32)
    lc.check_dense(right(7), SHAPE, 7, nothing)
    wrong = right(7)
    wrong[300_001] += np.float32(lc.RATE)
    with pytest.raises(ValueError, match=r"element 300001 is .* after 7 rounds"):
        lc.check_dense(wrong, SHAPE, 7, nothing)


def test_what_is_applied_and_what_is_held_back_must_add_up() -> None:
    held = np.arange(SHAPE.floats, dtype=np.float32) % 5
    lc.check_dense(right(7, held), SHAPE, 7, held)
    with pytest.raises(ValueError, match="element 1 is"):
        lc.check_dense(right(7), SHAPE, 7, held)


def test_gradients_survive_every_coding() -> None:
    from bireme.ps.wire import codec

    for rank in (0, 1):
        values = lc.pattern()[: lc.CYCLE] * np.float32(lc.factor(rank))
        halves, again = np.empty(lc.CYCLE, np.uint16), np.empty(lc.CYCLE, np.float32)
        for coding in ("float16", "bfloat16"):
            assert codec.encode(coding, values, halves) == 0
            codec.decode(coding, halves, again)
            assert np.array_equal(again, values)


@contextmanager
def cluster(**fields: Any) -> Iterator[Cluster]:
    with Cluster(
        Shape(**{"trainers": 2, "pservers": 2, "floats": 5000, "place": "tcp", **fields}), os.environ
    ) as found:
        yield found


@pytest.mark.parametrize("coding", ["float32", "top_k"])
def test_a_real_cluster_does_its_rounds_and_proves_them(coding: str) -> None:
    with cluster(coding=coding) as found:
        assert len(found.rounds(3)) == 3
        found.check()
        found.rounds_done += 1
        with pytest.raises(RunFailedError, match="a wrong result: element 0 is"):
            found.check()


def test_a_member_that_dies_fails_the_run_with_its_last_words() -> None:
    with cluster(trainers=1, pservers=1) as found:
        found.trainers[0].ask(do="nonsense")
        with pytest.raises(RunFailedError, match=r"trainer-0 ended; it said last: .*nonsense"):
            found.trainers[0].fetch()
