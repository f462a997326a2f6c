"""What holds for all tests: the number of examples, the order of tests, and that none leaves threads or processes.

Hypothesis tries 200 examples by default, 10,000 with HYPOTHESIS_PROFILE=long: other ones in each run. The first line
names the seed, and `--hypothesis-seed` with it draws them again; a failure also prints its example. With
HYPOTHESIS_PROFILE=same they are the same in every run.
"""

from __future__ import annotations

import gc
import os
import random
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import settings

settings.register_profile("default", max_examples=200, deadline=None, print_blob=True)
settings.register_profile("long", parent=settings.get_profile("default"), max_examples=10_000)
settings.register_profile("same", parent=settings.get_profile("default"), print_blob=False, derandomize=True)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "default"))

HERE = Path(__file__).parent
LONG = (HERE / "e2e", HERE / "unit" / "sim")
"""Where tests last for seconds."""
LEAVE_S = 10.0
SEED = "hypothesis_seed"


@pytest.hookimpl(tryfirst=True)  # before Hypothesis reads the option
def pytest_configure(config: pytest.Config) -> None:
    """Draw one seed for the whole run; the workers of pytest-xdist get the option from here."""
    if getattr(config.option, SEED, None) is None and not settings().derandomize:
        setattr(config.option, SEED, str(random.SystemRandom().randrange(2**32)))


def pytest_sessionstart(session: pytest.Session) -> None:
    """Print the seed: with -q pytest leaves its header out."""
    seed, reporter = getattr(session.config.option, SEED), session.config.pluginmanager.get_plugin("terminalreporter")
    if seed is not None and reporter is not None and not hasattr(session.config, "workerinput"):
        reporter.write_line(f"property tests: --hypothesis-seed={seed}")


@pytest.hookimpl(trylast=True)  # when deselected ones are gone
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Deal the long tests to the workers, module by module, so that each begins with them and ends with short ones.

    A worker is given as many tests as another, one after the other in this order, and takes some of the last ones of a
    worker that has more to do. Were long ones among the last, one worker would wait for another at the end.
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


def pytest_collection_finish() -> None:
    """Leave what all test modules have imported out of collections: tests that collect would take two seconds each."""
    gc.collect()
    gc.freeze()


@pytest.fixture(scope="session", autouse=True)
def nothing_is_left(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Fail where tests leave threads or processes behind, also such as have lost their parents.

    A thread is no better for being a daemon: two that were left once made all tests after them ten times as slow.
    """
    before = set(threading.enumerate())
    yield
    if any(item.get_closest_marker("kube") for item in request.session.items):
        return  # a cluster outlives them on purpose
    place = str(tmp_path_factory.getbasetemp())
    deadline = time.monotonic() + LEAVE_S
    while (left := [*_threads_left(before), *_processes_left(place)]) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not left, "tests have left behind: " + "; ".join(left)


def _threads_left(before: set[threading.Thread]) -> list[str]:
    return [f"thread {thread.name}" for thread in threading.enumerate() if thread not in before]


def _processes_left(place: str) -> list[str]:
    """Live processes that are our children, or were started in the directories of these tests."""
    found = []
    for entry in Path("/proc").iterdir():
        if not entry.name.isdecimal() or int(entry.name) == os.getpid():
            continue
        try:
            state, parent = (entry / "stat").read_text().rpartition(")")[2].split()[:2]
            line = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
            is_ours = int(parent) == os.getpid() or f"{place}/" in line
            is_ours = is_ours or f"={place}/".encode() in (entry / "environ").read_bytes()
        except OSError:
            continue  # it has just ended, or is not ours to look at
        # Python's own tracker of shared memory lives as long as we do.
        if is_ours and state not in "ZX" and "multiprocessing.resource_tracker" not in line:
            found.append(f"process {entry.name}: {line}")
    return found
