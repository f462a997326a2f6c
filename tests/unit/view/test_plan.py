from __future__ import annotations

from bireme.view.plan import render


def test_a_plan_speaks_of_one_thing_in_the_singular() -> None:
    parameters = [
        {"name": "w", "shape": [50, 2], "values": 100, "is_sparse": True},
        {"name": "b", "shape": [2], "values": 2, "is_sparse": False},
    ]
    plan = {
        "job": "small", "program": "c.py", "parameters": parameters, "passes": 1, "batch_size": 4, "mode": "sync",
        "processes": 1, "bytes_per_round": 9, "output": "out", "pservers": [], "trainers": [],
    }  # fmt: skip
    assert render(plan).splitlines() == [
        "small: c.py, 2 values in 1 dense parameter, 1 pass, batch 4 per shard",
        "mode sync, 1 process, 9 bytes per round, output in out",
        "w: 50 rows of 2, on the sparse lanes of all pservers",
    ]
