"""How a fresh cluster's machines are waited for: until all are there, with the cloud's reason while some are not."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import pytest

from bireme.core.errors import NetworkError
from bireme.kube.api.platform import NOTE_S, REACH_S, wait_for_nodes


@dataclass
class Machines:
    """A cluster whose machines become ready one after the other; its time passes while it is waited for."""

    ready_at: tuple[float, ...]
    away: tuple[float, float] = (0.0, 0.0)
    """From when to when the API server does not answer."""
    now: float = 0.0
    notes: list[str] = field(default_factory=list)

    def nodes(self) -> list[dict[str, Any]]:
        if self.away[0] <= self.now < self.away[1]:
            raise NetworkError("cannot reach the API server")
        states = ["True" if at <= self.now else "False" for at in self.ready_at]
        condition = [{"type": "Ready", "status": state} for state in states]
        return [{"metadata": {"name": f"n{i}"}, "status": {"conditions": [c]}} for i, c in enumerate(condition)]

    def pause(self, seconds: float) -> None:
        self.now += seconds

    def wait(self, count: int, why: str = "") -> list[str]:
        return wait_for_nodes(self, count, self.notes.append, lambda: why, lambda: self.now, self.pause)  # type: ignore[arg-type]


def test_machines_are_waited_for_however_long_it_takes() -> None:
    machines = Machines((0, 0, 60, 7200))
    assert machines.wait(4) == ["n0", "n1", "n2", "n3"]
    assert machines.now >= 7200
    assert machines.notes[:2] == ["2 of 4 machines are Ready", "3 of 4 machines are Ready"]
    assert len(machines.notes) == pytest.approx(7200 / NOTE_S, abs=3)


def test_the_reason_is_named_while_machines_are_missing() -> None:
    machines = Machines((0, NOTE_S + 10))
    machines.wait(2, "trainers: AWS has no free machine")
    reason = "1 of 2 machines are Ready; still waiting for the others: trainers: AWS has no free machine"
    assert machines.notes == ["1 of 2 machines are Ready", reason]


def test_an_api_server_that_is_away_for_a_moment_is_waited_for() -> None:
    machines = Machines((0, 100), away=(50, 90))
    assert machines.wait(2) == ["n0", "n1"]
    assert "waiting for the API server: cannot reach the API server" in machines.notes


def test_an_api_server_that_stays_away_ends_the_wait() -> None:
    machines = Machines((0, 1e9), away=(50, 1e9))
    with pytest.raises(NetworkError):
        machines.wait(2)
    assert machines.now == pytest.approx(50 + REACH_S, abs=10)
