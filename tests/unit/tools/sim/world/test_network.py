"""Connections of the simulated world: late, torn or cut, but never out of order."""

from __future__ import annotations

import random
from typing import Any

import pytest
from tools.sim.world.clocks import Clocks
from tools.sim.world.network import End, Process, World


class Reader(Process):
    """Notes what comes on each connection."""

    def __init__(self, world: World, name: str) -> None:
        super().__init__(world, name)
        self.read: dict[End, list[Any]] = {}

    def accept(self, end: End, port: int) -> None:
        end.on_message = lambda end, message: self.read.setdefault(end, []).append(message)


@pytest.mark.parametrize("seed", range(60))
def test_one_connection_is_read_in_order_around_pauses(seed: int) -> None:
    world = World(random.Random(seed), 0.2, Clocks(seed))
    writer, reader = Reader(world, "writer"), Reader(world, "reader")
    lines = [end for port in range(3) if (end := world.connect(writer, reader, port)) is not None]
    for number in range(60):
        for line in lines:
            world.at(0.001 * number, line.send, number)
    for pause_s in (0.005, 0.02, 0.04):
        world.at(pause_s, world.pause, reader)
        world.at(pause_s + 0.01, world.wake, reader)
    world.run(600.0)
    assert list(reader.read.values()) == [list(range(60))] * 3
