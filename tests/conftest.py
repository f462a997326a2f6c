"""What holds for all tests: how many examples are tried, and in which order tests run.

Hypothesis tries 200 examples by default, 10,000 with HYPOTHESIS_PROFILE=long. Both replay exactly.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import settings

settings.register_profile("default", max_examples=200, deadline=None, derandomize=True)
settings.register_profile("long", max_examples=10_000, deadline=None, derandomize=True)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "default"))

HERE = Path(__file__).parent
LONG = (HERE / "e2e", HERE / "unit" / "sim")
"""Where tests last for seconds."""


@pytest.hookimpl(trylast=True)  # when those that nobody wants are gone
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Deal the long tests to the workers, module by module, so that each begins with them and ends with short ones.

    A worker is given as many tests as another, one after the other in this order, and takes some of the last ones of
    whoever has more to do. Were long ones among the last, one worker would wait for another at the end.
    """
    workers = int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1"))
    modules = list(dict.fromkeys(item.path for item in items if any(item.path.is_relative_to(p) for p in LONG)))
    hands = [set(modules[number::workers]) for number in range(workers)]
    short = [item for item in items if item.path not in modules]
    dealt: list[pytest.Item] = []
    for number, hand in enumerate(hands):
        long = [item for item in items if item.path in hand]
        most = (len(items) - len(dealt)) // (workers - number)
        share = max(0, most - len(long))
        dealt += long + short[:share]
        del short[:share]
    items[:] = dealt + short
