"""A job on the cluster that is to be disturbed, and the check that it ended as if it had not been.

It is paced by short waits at every message, so that it lasts long enough and costs no processor time.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from tools.kube.cluster import Cluster
from tools.kube.machine import wait_for
from tools.kube.victim import Victim

from bireme.data.split import split_lines
from bireme.job.output.model import model_hash, pass_name
from tests.e2e.conftest import Cli, edit, lay_out
from tests.kube.sharing import once
from tests.kube.stage import There, small_job

MOST_PASSES = 16
PACE = "delay:seed=7,max_ms=100"
HOPE_S = 400.0
"""For a job to end, on a busy machine."""
LOST_S = 5
"""How long pods of a machine that does not answer are left alone."""


def disturbed(path: Path, passes: int) -> Path:
    """Give a job small batches, so many passes and a snapshot every other second."""
    edit(path.parent / "quick_start/trainer_config.lr.py", ("is_predict else 128", "is_predict else 4"))
    edit(path, ("passes: 2", f"passes: {passes}\nsnapshots: {{every_s: 2, keep: 2}}"))
    return path


@pytest.fixture
def passes() -> int:
    """How long a job is, in passes of about ten seconds; tests that need more time ask for more."""
    return 3


@pytest.fixture(scope="session")
def expected(reviews: Path, tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """The hashes of the same job after each pass, run on this machine in peace."""

    def train() -> list[str]:
        cli = Cli(tmp_path_factory.mktemp("here"))
        path = disturbed(lay_out(cli.home / "job", layout=""), MOST_PASSES)
        split_lines(reviews, path.parent, 3)
        done = cli.run("train", path, "--output", cli.home / "output")
        assert done.code == 0, done.out + done.err
        return [model_hash(cli.home / "output" / pass_name(number)) for number in range(MOST_PASSES)]

    found: list[str] = once(tmp_path_factory, "expected", train)
    return found


def hash_of(cli: Cli, output: Path, number: int) -> str:
    """The hash of a pass's model."""
    return str(cli.run("model", "hash", output / f"pass-{number:05d}", "--json").json["hash"])


@pytest.fixture
def victim(there: There, reviews: Path, whole: Cluster, passes: int) -> Victim:
    """The job, at work on a cluster that is made whole again afterwards."""
    path = disturbed(small_job(there, reviews, more=f"  lost_node_s: {LOST_S}\n"), passes)
    edit(path, ("memory: 200Mi}", "memory: 200Mi}, limits: {memory: 700Mi}"))
    return at_work(there, path)


def at_work(there: There, path: Path, pace: str = PACE) -> Victim:
    """Send a job that is paced, and wait until it trains."""
    there.do("data", "push", path)
    there.do("submit", path, BIREME_FAULTS=pace)
    victim = Victim(there.cluster, there.namespace, "small")
    victim.await_rounds(after=0.0)
    return victim


@pytest.fixture
def ends_well(there: There, expected: list[str], passes: int) -> Callable[[], None]:
    """Check that the job ends as it does here, and that nothing was lost nor done twice."""

    def check() -> None:
        wait_for("the job to end", lambda: there.state("small") in ("finished", "failed"), seconds=HOPE_S, every=1)
        assert there.state("small") == "finished", there.do("why", "small").out
        brought = there.home / "brought"
        there.do("fetch", "small", brought, "--all")
        verified = there.run("verify", brought)
        assert verified.code == 0, verified.out + verified.err
        assert hash_of(there, brought, passes - 1) == expected[passes - 1]

    return check
