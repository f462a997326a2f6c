"""A network between two machines that goes away and comes back, or loses packets; processes that stand still for long.

Two network namespaces and a cable. Pulling it leaves connections half-open on both sides, without a reset.
Needs root, `ip netns` and, to lose packets, iptables. tests/integration/test_half_open.py is the short form.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from bireme.job.output.model import model_hash
from tests.cable import Cable, cable
from tests.e2e.conftest import Cli, save_often, wait_until

pytestmark = [pytest.mark.slow, pytest.mark.chaos]
PASSES = 30


@pytest.fixture
def between() -> Iterator[Cable]:
    """The cable between two machines; 10.77.0.1 and 10.77.0.2."""
    with cable() as laid:
        yield laid


class Machines:
    """Starts bireme's processes by hand in either namespace, and ends what is left of them."""

    def __init__(self, cli: Cli, between: Cable) -> None:
        self._cli = cli
        self._cable = between
        self.running: list[subprocess.Popen[str]] = []

    def start(self, end: int, cwd: Path, *words: str) -> subprocess.Popen[str]:
        command = ["ip", "netns", "exec", self._cable.ends[end], sys.executable, "-m", "bireme", *words]
        with (cwd / f"{words[0]}-{len(self.running)}.log").open("w") as log:
            process = subprocess.Popen(
                command, cwd=cwd, stdout=log, stderr=log, text=True, env=self._cli.environment()
            )  # fmt: skip
        self.running.append(process)
        return process

    def pull(self, seconds: float) -> None:
        """Pull the cable for a while."""
        self._cable.pull()
        time.sleep(seconds)
        self._cable.plug_in()


def train(cli: Cli, job: Path, between: Cable, place: Path, pulls: tuple[float, ...]) -> str:
    """One pserver on one machine, three trainers on the other; the cable is pulled for these many seconds."""
    machines = Machines(cli, between)
    try:
        place.mkdir()
        machines.start(0, place, "pserver", "--port=7164", "--num_gradient_servers=3")
        for rank in range(3):
            work = place / str(rank)
            shutil.copytree(job.parent / "quick_start", work)
            shutil.copytree(job.parent / str(rank) / "data", work / "data")
            machines.start(
                1, work, "trainer", "--config=trainer_config.lr.py", "--pservers=10.77.0.1", "--port=7164",
                f"--trainer_id={rank}", f"--num_passes={PASSES}", f"--save_dir={place / 'model'}",
            )  # fmt: skip
        for seconds in pulls:
            wait_until(lambda: (place / "model" / "pass-00000" / "done").is_file(), "the first pass is saved")
            machines.pull(seconds)
        codes = [process.wait(120) for process in machines.running]
        logs = [path.read_text() for path in place.rglob("*.log")]
        assert codes == [0] * 4, logs
        if pulls:
            assert any("lost lane" in text or "lost coordinator" in text for text in logs), logs
        return model_hash(place / "model" / f"pass-{PASSES - 1:05d}")
    finally:
        for process in machines.running:
            process.kill()
            process.wait()


def test_a_network_that_loses_packets_changes_nothing(cli: Cli, job: Path, between: Cable, tmp_path: Path) -> None:
    save_often(job, passes=PASSES)
    undisturbed = train(cli, job, between, tmp_path / "undisturbed", ())
    lose = ("iptables", "-A", "INPUT", "-i", "cable", "-m", "statistic", "--mode", "random", "--probability", "0.03")
    for end in between.ends:
        subprocess.run(["ip", "netns", "exec", end, *lose, "-j", "DROP"], check=True)
    assert train(cli, job, between, tmp_path / "disturbed", ()) == undisturbed
    asked = ["ip", "netns", "exec", between.ends[0], "iptables", "-nvxL", "INPUT"]
    counts = subprocess.run(asked, check=True, capture_output=True, text=True).stdout
    lost = int(next(line for line in counts.splitlines() if "DROP" in line).split()[0])
    assert lost > 100, f"only {lost} packets were lost"


@pytest.mark.parametrize("who", ["trainer:1", "pserver:1", "coordinator"])
def test_a_process_that_stands_still_for_30_s_is_awaited(cli: Cli, job: Path, who: str) -> None:
    save_often(job, passes=4)
    output = job.parent / "drill"
    asked = ("--pause", f"{who}@round=20,30s", "--output", output, "--json")
    done = cli.run("drill", job, *asked, timeout_s=250, BIREME_CARRIER="tcp")
    assert done.code == 0, done.err
    assert done.json["hash"] == done.json["undisturbed"] and done.json["never"] == []
    assert done.json["seconds"] > 30.0
    sound = cli.run("verify", output / "disturbed")
    assert sound.code == 0, sound.out


def test_a_cable_pulled_until_all_give_up_changes_nothing(cli: Cli, job: Path, between: Cable, tmp_path: Path) -> None:
    save_often(job, passes=PASSES)
    undisturbed = train(cli, job, between, tmp_path / "undisturbed", ())
    assert train(cli, job, between, tmp_path / "disturbed", (25.0,)) == undisturbed
