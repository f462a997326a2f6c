"""Runs the tasks of one stack operation in the order of their dependencies, in parallel where they allow it."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from tests.aws.double.model import ApiError

if TYPE_CHECKING:
    from tests.aws.double.world import World

Begin = Callable[[str], "float | None"]
End = Callable[[str, float], "float | None"]
OnError = Callable[[str, ApiError], None]


class Phase:
    """Tasks by name.

    begin(name): seconds until the task ends, or None when there is nothing to do; raises ApiError.
    end(name, waited_s): None when complete, or seconds until the next look; raises ApiError.
    then(failed, in_flight): called once: at the first failure, or with `past_failures` after the last task.
    """

    def __init__(self, world: World, needs: dict[str, set[str]], begin: Begin, end: End, on_error: OnError) -> None:
        self._world, self._begin, self._end, self._on_error = world, begin, end, on_error
        self._needs = {name: needs[name] & set(needs) for name in needs}
        self._pending = list(needs)
        self._finished: set[str] = set()
        self._in_flight: dict[str, float] = {}
        self._failed: list[str] = []
        self._closed = False

    def run(self, then: Callable[[list[str], list[str]], None], *, past_failures: bool) -> None:
        self._then, self._past_failures = then, past_failures
        self._step()

    def abandon(self) -> list[str]:
        """Stop without calling `then`; returns what was in flight. For a delete during a create."""
        self._closed = True
        return list(self._in_flight)

    def is_closed(self) -> bool:
        return self._closed

    def _step(self) -> None:
        moved = True
        while moved and not self._closed:
            moved = False
            for name in [n for n in self._pending if self._needs[n] <= self._finished]:
                self._pending.remove(name)
                self._start(name)
                moved = True
                if self.is_closed():
                    return
        if not self._closed and not self._pending and not self._in_flight:
            self._closed = True
            self._then(self._failed, [])

    def _start(self, name: str) -> None:
        try:
            seconds = self._begin(name)
        except ApiError as e:
            self._fail(name, e)
            return
        if seconds is None:
            self._finished.add(name)
            return
        self._in_flight[name] = self._world.now()
        self._world.later(seconds, lambda: self._land(name))

    def _land(self, name: str) -> None:
        if self._closed:
            return
        try:
            again = self._end(name, self._world.now() - self._in_flight[name])
        except ApiError as e:
            del self._in_flight[name]
            self._fail(name, e)
            self._step()
            return
        if again is not None:
            self._world.later(again, lambda: self._land(name))
            return
        del self._in_flight[name]
        self._finished.add(name)
        self._step()

    def _fail(self, name: str, error: ApiError) -> None:
        self._failed.append(name)
        self._on_error(name, error)
        if self._past_failures:
            # CloudFormation continues with what the failed resource depends on (seen in eksctl issue 616).
            self._finished.add(name)
            return
        self._closed = True
        self._then(self._failed, list(self._in_flight))
