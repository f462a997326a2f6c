"""The determinism promise: one hash, whatever the layout, the load and the timing."""

from __future__ import annotations

import itertools
import json
import multiprocessing
import re
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.conftest import ONE, Cli


def train(cli: Cli, job: Path, name: str, *flags: object, **env: Any) -> str:
    done = cli.run("train", job, "--output", job.parent / name, "--json", *flags, **env)
    assert done.code == 0, done.err + done.out
    return str(done.json["hash"])


LAYOUTS = [(1, 1, 1), (2, 3, 2), (3, 2, 4)]
ALL_LAYOUTS = list(itertools.product((1, 2, 3), (1, 2, 3), (1, 2, 4)))


Layout = tuple[int, int, int]


def train_layouts(cli: Cli, job: Path, layouts: list[Layout], **env: Any) -> dict[Layout, str]:
    return {
        (t, p, n): train(cli, job, f"out-{t}-{p}-{n}", "--trainers", t, "--pservers", p, "--ports-num", n, **env)
        for t, p, n in layouts
    }


def test_every_layout_and_every_carrier_gives_the_same_model(cli: Cli, job: Path) -> None:
    by_memory = train_layouts(cli, job, LAYOUTS[:2])
    by_socket = train_layouts(cli, job, LAYOUTS[2:], BIREME_CARRIER="unix")
    by_network = train(cli, job, "by-tcp", "--trainers", 2, "--pservers", 1, BIREME_CARRIER="tcp")
    assert len({*by_memory.values(), *by_socket.values(), by_network}) == 1, (by_memory, by_socket, by_network)
    used = {
        c: carriers(job.parent / name) for c, name in (("shm", "out-2-3-2"), ("unix", "out-3-2-4"), ("tcp", "by-tcp"))
    }
    assert used == {"shm": {"shm"}, "unix": {"unix"}, "tcp": {"tcp"}}


def carriers(output: Path) -> set[str]:
    """How trainer 0 reached the lanes, by its own word."""
    found = re.search(r"carriers=(.*)$", (output / "node_0" / "train.log").read_text(), re.MULTILINE)
    assert found
    return set(found[1].split(","))


def test_one_job_twice_gives_one_model_and_another_seed_another(cli: Cli, job: Path) -> None:
    one = (*ONE, "--passes", 1)
    first = train(cli, job, "first", *one)
    assert train(cli, job, "second", *one) == first
    assert train(cli, job, "other", *one, "--seed", 2) != first


def burn() -> None:
    while True:
        pass


def test_delayed_connections_on_a_busy_machine_change_nothing(cli: Cli, job: Path) -> None:
    quiet = train(cli, job, "quiet", "--passes", 1, *ONE)
    burners = [multiprocessing.get_context("spawn").Process(target=burn, daemon=True) for _ in range(2)]
    for b in burners:
        b.start()
    try:
        disturbed = train(cli, job, "disturbed", "--passes", 1, BIREME_FAULTS="delay:seed=7,max_ms=8")
    finally:
        for b in burners:
            b.kill()
            b.join()
    assert disturbed == quiet


def test_an_empty_and_a_short_shard_give_one_model_everywhere(cli: Cli, job: Path) -> None:
    shards = job.parent
    (shards / "1" / "data" / "train.txt").write_bytes(b"")
    short = (shards / "2" / "data" / "train.txt").read_bytes().splitlines(keepends=True)[:5]
    (shards / "2" / "data" / "train.txt").write_bytes(b"".join(short))
    hashes = train_layouts(cli, job, [(1, 1, 1), (3, 2, 2)])
    assert len(set(hashes.values())) == 1, hashes
    rows = [json.loads(line) for line in (shards / "out-3-2-2" / "ledger.jsonl").read_text().splitlines()]
    assert [(r["pass"], r["shard"], r["read"], r["trained"], r["applied"]) for r in rows] == [
        (0, 0, 201, 201, 201), (0, 1, 0, 0, 0), (0, 2, 5, 5, 5),
        (1, 0, 201, 201, 201), (1, 1, 0, 0, 0), (1, 2, 5, 5, 5),
    ]  # fmt: skip


def test_paddlepaddle_gives_one_model_in_two_layouts(cli: Cli, job: Path) -> None:
    job.write_text(job.read_text().replace("trainer_config.lr.py", "trainer_config.emb.py"))
    first = train(cli, job, "one", "--passes", 1, *ONE)
    assert train(cli, job, "three", "--passes", 1, "--ports-num", 2) == first


@pytest.mark.slow
def test_all_27_layouts_of_the_demo_give_the_same_model_twice(cli: Cli, tmp_path: Path) -> None:
    assert cli.run("demo", "--prepare", tmp_path / "demo").code == 0
    job = tmp_path / "demo" / "job.yaml"
    hashes = train_layouts(cli, job, ALL_LAYOUTS)
    again = train(cli, job, "again")
    delayed = train(cli, job, "delayed", BIREME_FAULTS="delay:seed=3,max_ms=5")
    assert len({*hashes.values(), again, delayed}) == 1, hashes
