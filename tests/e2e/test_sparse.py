"""Jobs with sparse parameters: continuing from a pass, models of tables without a range, and every way of dying."""

from __future__ import annotations

import os
import re
import signal
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bireme.data.split import split_lines
from tests.e2e.conftest import Cli, edit, lay_out, pids_of, take_rows, wait_until
from tests.e2e.test_lifecycle import LONG, nothing_left

W, BIAS = "___fc_layer_0__.w0", "___fc_layer_0__.wbias"
DECAY = "regularization=L2Regularization(8e-4)"


def train(cli: Cli, job: Path, *flags: object) -> Any:
    done = cli.run("train", job, "--json", *flags)
    assert done.code == 0, done.err + done.out
    return done.json


@pytest.mark.parametrize(
    ("is_unbounded", "has_decay"),
    [pytest.param(False, False, marks=pytest.mark.slow), (True, True)],
    ids=["plain, by the dictionary", "L2, by hashes"],
)
def test_two_passes_are_one_pass_and_another_that_starts_from_it(
    cli: Cli, job: Path, is_unbounded: bool, has_decay: bool
) -> None:
    take_rows(job, is_unbounded=is_unbounded)
    edit(job.parent / "quick_start" / "trainer_config.lr.py", ("2e-3", "1e-2"))
    if not has_decay:
        edit(job.parent / "quick_start" / "trainer_config.lr.py", (f"    {DECAY},\n", ""))
    whole = train(cli, job, "--output", job.parent / "whole", "--trainers", 2, "--pservers", 1)
    train(cli, job, "--passes", 1, "--trainers", 1, "--pservers", 1)
    assert train(cli, job, "--start-pass", 1, "--trainers", 1, "--pservers", 2)["hash"] == whole["hash"]


@pytest.fixture(scope="module")
def hashed(tmp_path_factory: pytest.TempPathFactory, reviews: Path) -> Path:
    """Models of two passes over a table of 2**63 rows; returns the output directory."""
    home = tmp_path_factory.mktemp("hashed")
    job = lay_out(home / "job")
    split_lines(reviews, job.parent, 3)
    take_rows(job, is_unbounded=True, method="AdaGradOptimizer()")
    train(Cli(home), job)
    return job.parent / "output"


def test_a_model_with_an_unbounded_table_serves_all_commands(cli: Cli, hashed: Path) -> None:
    first, last = hashed / "pass-00000", hashed / "pass-00001"
    assert {p.name for p in last.iterdir()} >= {W, f"{W}.ids", BIAS}
    shown = cli.run("model", "show", last, "--json").json["parameters"]
    values, rows = {row["name"]: row["values"] for row in shown}, {row["name"]: row.get("rows") for row in shown}
    assert 1000 < rows[W] <= 1502 and values == {W: 2 * rows[W], BIAS: 2}
    assert f"{rows[W]:,} rows of 2" in cli.run("model", "show", last).out
    assert re.fullmatch(r"[0-9a-f]{64}\n", cli.run("model", "hash", last).out)
    same, other = cli.run("model", "diff", last, last), cli.run("model", "diff", first, last, "--json")
    assert (same.code, same.out.count("equal, bit for bit"), other.code) == (0, 3, 1)
    different = {row["name"]: row["different"] for row in other.json["parameters"]}
    # No word is new in the second pass, and all that have a row are trained again.
    assert different[f"{W}.ids"] == 0 and 1000 < different[W] <= values[W]
    for ending in ("npz", "safetensors"):
        assert cli.run("model", "export", last, hashed.parent / f"model.{ending}").code == 0
    with np.load(hashed.parent / "model.npz") as arrays:
        ids = arrays[f"{W}.ids"]
        assert (arrays[W].shape, ids.dtype) == ((rows[W], 2), np.uint64)
        assert (ids[1:] > ids[:-1]).all() and ids.max() > 2**62


def test_a_model_of_a_table_without_a_range_tests_and_predicts(cli: Cli, hashed: Path) -> None:
    model = hashed / "pass-00001"
    measured = cli.run("test", model, "--json").json
    metrics = cli.run("model", "show", model, "--json").json["metrics"]
    assert (measured["samples"], measured["cost"]) == (120, metrics["test_cost"])
    assert metrics["test_cost"] < 0.69
    lines = cli.run("predict", model).out.splitlines()
    assert len(lines) == 8
    assert all(re.fullmatch(r"[01];[\d.e-]+ [\d.e-]+", line) for line in lines), lines
    mine = hashed.parent / "mine.txt"
    mine.write_text("words-that-no-shard-contains\n\n")
    predictions = cli.run("predict", model, mine, "--json").json["predictions"]
    assert len(predictions) == 2


NAMES = {"../x": "a parameter cannot be called '../x'", "done": "a parameter cannot be called 'done'"}


@pytest.mark.parametrize("name", NAMES)
def test_a_sparse_name_that_is_no_file_name_is_refused_first(cli: Cli, job: Path, name: str) -> None:
    take_rows(job, is_unbounded=False)
    edit(job.parent / "quick_start" / "trainer_config.lr.py", ("ParamAttr(", f"ParamAttr(name={name!r}, "))
    done = cli.run("train", job)
    assert (done.code, done.out) == (3, "")
    assert NAMES[name] in done.err
    assert not (job.parent / "output").exists()


def test_a_trainer_by_hand_learns_how_to_get_sparse_lanes(cli: Cli, job: Path) -> None:
    take_rows(job, is_unbounded=False)
    here = job.parent / "quick_start"
    (here / "data").symlink_to(job.parent / "0" / "data")
    done = cli.run("trainer", "--config=trainer_config.lr.py", "--pservers=127.0.0.1:1", "--num_passes=1", cwd=here)
    assert done.code == 3, done.err
    assert f"has a sparse parameter, {W}, and pservers have no sparse lane" in done.err
    assert "--ports_num_for_sparse, on pservers too" in done.err
    assert "Traceback" not in done.err


class Traces:
    """What a job's processes hold: ports, names of Unix sockets, segments of memory."""

    def __init__(self, job: Path) -> None:
        logs = "".join(log.read_text() for log in (job.parent / "output").glob("node_*/server.log"))
        self.ports = [int(port) for port in re.findall(r"(?:dense|sparse) lane on port (\d+)", logs)]
        processes = [p for p in Path("/proc").iterdir() if p.name.isdecimal() and str(job.parent) in words_of(p)]
        self.segments = {inode for process in processes for inode in segments_of(process)}

    def left(self) -> list[str]:
        """Which of all this is still there, in any process."""
        names, listening = Path("/proc/net/unix").read_text(), Path("/proc/net/tcp").read_text()
        found = [f"@bireme-lane-127.0.0.1-{port}" for port in self.ports]
        found = [name for name in found if f"{name}\n" in names]
        found += [f"port {port}" for port in self.ports if f" 0100007F:{port:04X} 00000000:0000 0A " in listening]
        processes = [p for p in Path("/proc").iterdir() if p.name.isdecimal()]
        return found + sorted({i for process in processes for i in segments_of(process)} & self.segments)


def words_of(process: Path) -> str:
    try:
        return (process / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
    except OSError:
        return ""  # it has just ended


def segments_of(process: Path) -> set[str]:
    """Segments that a process maps or holds open, by inode."""
    try:
        maps = (process / "maps").read_text(errors="replace").splitlines()
        open_files = [link for link in (process / "fd").iterdir() if "memfd:bireme-" in str(link.readlink())]
        held = {str(link.stat().st_ino) for link in open_files}
    except OSError:
        return set()  # it has just ended, or is not ours to look at
    return held | {line.split()[4] for line in maps if "memfd:bireme-" in line}


@pytest.fixture
def running(cli: Cli, job: Path) -> subprocess.Popen[str]:
    """A long sparse job on two nodes that has finished its first pass, and in which no process is restarted."""
    job.write_text(job.read_text() + "restarts: {limit: 0}\n")
    take_rows(job, is_unbounded=True, method="AdaGradOptimizer()")
    process = cli.start("train", job, *LONG, "--trainers", 2, "--pservers", 2)
    wait_until((job.parent / "output" / "pass-00000").is_dir, "the first pass is saved")
    return process


@pytest.mark.parametrize("who", ["trainer 1", "pserver 1", pytest.param("node 0", marks=pytest.mark.slow), "runner"])
def test_nothing_is_left_of_a_sparse_job_after_a_kill(job: Path, running: subprocess.Popen[str], who: str) -> None:
    traces = Traces(job)
    assert len(traces.ports) == 4 and len(traces.left()) >= 10  # four lanes with two sockets each, and memory
    os.kill(running.pid if who == "runner" else pids_of(job.parent / "output")[who], signal.SIGKILL)
    _, err = running.communicate(timeout=30)
    # A process loses its command line a moment before the kernel has closed what it held.
    wait_until(lambda: nothing_left(job) and not traces.left(), "all processes and files are gone", 10)
    assert running.returncode == (-signal.SIGKILL if who == "runner" else 13), err
    assert who == "runner" or f"{who} was killed by SIGKILL" in err
    assert (job.parent / "output" / "pass-00000" / "done").is_file()
