"""An output directory as a job would have left it, without running one."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import msgspec
import numpy as np
import pytest

from bireme.job.output.model import pass_name, save_model
from bireme.job.status import PassSummary
from bireme.spec.job import Job
from bireme.spec.model import Snapshots

Leave = Callable[..., Path]


@pytest.fixture(autouse=True)
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Runs are recorded here, and nowhere else."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "no-cluster"))
    monkeypatch.delenv("BIREME_COMMAND", raising=False)
    return tmp_path / "state"


@pytest.fixture
def leave(tmp_path: Path) -> Leave:
    """Write the output of a job with some passes done; returns the directory."""

    def write(
        name: str = "out", *, done: int = 0, passes: int = 4, has_snapshot: bool = False, stop_after: int = 0
    ) -> Path:
        output = tmp_path / name
        output.mkdir()
        config = tmp_path / "config.py"
        config.touch()
        job = Job(
            name="small", config=str(config), config_args={}, data=str(tmp_path), shards=2, pservers=1, trainers=1,
            port=None, ports_num=1, ports_num_for_sparse=1, passes=passes, seed=1, output=str(output), log_period=50,
            connect_timeout_s=1.0, snapshots=Snapshots(path=str(output / "snapshots")),
            stop_after=stop_after,
        )  # fmt: skip
        (output / "job.json").write_bytes(msgspec.json.encode(job))
        rows = [{"pass": p, "shard": s} for p in range(done) for s in range(2)]
        (output / "ledger.jsonl").write_bytes(b"".join(msgspec.json.encode(row) + b"\n" for row in rows))
        for number in range(done):
            values = {"w": np.full(2, number, np.float32)}
            save_model(output / pass_name(number), values, config, msgspec.to_builtins(closed(number)))
        if has_snapshot:
            (output / "snapshots/000000000007-0000000200000001").mkdir(parents=True)
            (output / "snapshots/000000000007-0000000200000001/manifest.json").touch()
        return output

    return write


def closed(number: int) -> PassSummary:
    """The results of a pass."""
    return PassSummary(
        pass_id=number, round=number + 1, samples=100, samples_so_far=100 * (number + 1), seconds=0.5, cost=0.5,
        evals={},
    )  # fmt: skip
