"""Rounds in virtual time: what must hold whatever the costs are, and the page of figures."""

from __future__ import annotations

import json
import math
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bireme.core.errors import UsageError
from bireme.ps.wire.frames import HEAD_NBYTES, RECORD_NBYTES
from bireme.scale.model import Costs, Limit, Machines, Outcome, Workload, advise, load_costs, simulate
from bireme.scale.plan import GOODPUT, Plan
from bireme.scale.ports import START, Port, Rate, Turn, after, spent
from bireme.scale.rounds import Rounds
from bireme.spec.model import Wire

ROOT = Path(__file__).resolve().parents[3]
PAGE = (ROOT / "docs" / "scale.md").read_text(encoding="utf-8")
MEASURED = load_costs(ROOT / "bench" / "results" / "costs.json")
COSTS = Costs(
    kernel={"momentum": 1e-9},
    kernel_row=0.5e-9,
    kernel_start=30e-6,
    encode={"float16": 0.4e-9},
    decode={"float16": 0.3e-9},
    send=0.1e-9,
    receive=0.2e-9,
    frame=20e-6,
    wake=10e-6,
)
LOAD = Workload("vgg", 1 << 20, 32)
FREE = Costs()


def simulate_quietly(load: Workload, cluster: Machines, costs: Costs = COSTS) -> Outcome:
    return simulate(load, cluster, costs, rounds=3)


def test_one_trainer_and_one_pserver_take_the_sum_of_all_parts() -> None:
    cluster = Machines(1, 1, network_bit_s=1e9, latency_s=1e-3, samples_s=100.0)
    rate = 1e9 / 8 * GOODPUT
    nbytes = 4 * LOAD.values + HEAD_NBYTES
    compute = LOAD.batch / 100.0 + COSTS.frame
    push = (nbytes + RECORD_NBYTES) / rate + 1e-3
    lane = COSTS.wake + COSTS.frame + COSTS.kernel_start + 1e-9 * LOAD.values + COSTS.frame
    pull = 1e-3 + COSTS.wake + nbytes / rate + COSTS.frame
    found = simulate_quietly(LOAD, cluster)
    assert found.round_s == pytest.approx(compute + push + lane + pull, rel=1e-12)
    assert found.efficiency == pytest.approx(LOAD.batch / 100.0 / found.round_s)


def test_a_slow_processor_sets_the_pace_of_payloads() -> None:
    cluster = Machines(1, 1, network_bit_s=1e15, latency_s=0.0, samples_s=1e12)
    found = simulate_quietly(LOAD, cluster, Costs(send=2e-9, receive=3e-9))
    nbytes = 4 * LOAD.values + HEAD_NBYTES
    assert found.round_s == pytest.approx(3e-9 * (2 * nbytes + RECORD_NBYTES), rel=1e-6)


@pytest.mark.parametrize("coding", ["float32", "float16", "top_k"])
@pytest.mark.parametrize(("trainers", "shards", "pservers", "lanes"), [(1, 1, 1, 1), (3, 3, 2, 2), (3, 8, 5, 1)])
def test_every_byte_that_is_sent_is_received(
    coding: str, trainers: int, shards: int, pservers: int, lanes: int
) -> None:
    load = replace(LOAD, shards=shards, wire=Wire(gradients=coding))  # type: ignore[arg-type]
    cluster = Machines(trainers, pservers, lanes)
    plan = Plan(load, cluster, COSTS)
    rounds = Rounds(plan, 3)
    rounds.run()
    pushed = sum(plan.push_nbytes(k, row) for k in range(pservers * lanes) for rows in plan.rows for row in rows)
    pulled = trainers * (4 * LOAD.values + pservers * lanes * HEAD_NBYTES)
    assert sum(port.nbytes for port in rounds.inward) == 3 * pushed
    assert sum(port.nbytes for port in rounds.outward) == 3 * pulled
    if coding == "float32":
        rows = sum(map(len, plan.rows))
        heads = pservers * lanes * (rows * HEAD_NBYTES + shards * RECORD_NBYTES)
        assert pushed == rows * 4 * LOAD.values + heads


clusters = st.builds(
    Machines,
    st.integers(1, 9),
    st.integers(1, 5),
    st.integers(1, 2),
    st.sampled_from([1e8, 1e9, 1e10]),
    st.sampled_from([0.0, 1e-4, 1e-2]),
    st.sampled_from([10.0, 1e3, 1e6]),
)


@settings(max_examples=60, deadline=None)
@given(clusters, st.sampled_from([0.0, 0.1]))
def test_shares_add_up_and_no_round_is_shorter_than_its_parts(cluster: Machines, spread: float) -> None:
    found = simulate_quietly(LOAD, cluster, replace(COSTS, spread=spread))
    assert math.fsum(found.shares.values()) == pytest.approx(1.0)
    assert all(share >= 0 for share in found.shares.values())
    compute = LOAD.batch / cluster.samples_s
    card = cluster.network_bit_s / 8 * GOODPUT
    busiest = max(1, cluster.trainers / cluster.pservers) * 2 * 4 * LOAD.values / card
    assert spread or found.round_s >= (compute + busiest) * (1 - 1e-3)


@settings(max_examples=40, deadline=None)
@given(clusters, st.floats(1.0, 20.0))
def test_a_faster_network_never_makes_a_round_longer(cluster: Machines, times: float) -> None:
    faster = replace(cluster, network_bit_s=cluster.network_bit_s * times)
    slow, fast = (simulate_quietly(LOAD, c, FREE).round_s for c in (cluster, faster))
    assert fast <= slow * (1 + 1e-9)


@pytest.mark.parametrize("better", [{"latency_s": 0.0}, {"samples_s": 200.0}, {"pservers": 4}])
def test_better_machines_make_rounds_shorter(better: dict[str, Any]) -> None:
    cluster = Machines(8, 2, latency_s=0.05, samples_s=100.0, network_bit_s=1e8)
    assert simulate_quietly(LOAD, replace(cluster, **better)).round_s < simulate_quietly(LOAD, cluster).round_s


@pytest.mark.parametrize(
    ("limit", "cluster", "costs"),
    [
        (Limit.COMPUTE, Machines(4, 2, samples_s=1.0), COSTS),
        (Limit.PSERVER_NIC, Machines(8, 1, network_bit_s=1e7, samples_s=1e6), COSTS),
        (Limit.TRAINER_NIC, Machines(1, 8, network_bit_s=1e7, samples_s=1e6), replace(COSTS, send=0.0)),
        (Limit.LANE_CPU, Machines(4, 1, network_bit_s=1e12, samples_s=1e6), replace(COSTS, kernel_row=1e-6)),
        (Limit.LANE_CPU, Machines(4, 1, network_bit_s=1e12, samples_s=1e6), replace(COSTS, frame=1.0)),
        (Limit.TRAINER_CPU, Machines(1, 8, network_bit_s=1e12, samples_s=1e6), replace(COSTS, send=1e-6)),
        (Limit.LATENCY, Machines(2, 2, latency_s=10.0), COSTS),
    ],
)
def test_the_limit_is_named(limit: Limit, cluster: Machines, costs: Costs) -> None:
    found = simulate_quietly(LOAD, cluster, costs)
    if limit is Limit.TRAINER_NIC:  # cards of one speed tie where a pserver has one trainer at a time
        assert found.shares[Limit.TRAINER_NIC] + found.shares[Limit.PSERVER_NIC] > 0.9
    else:
        assert found.limit is limit and found.shares[limit] > 0.5


def test_a_port_shares_equally_and_says_who_was_slow() -> None:
    port = Port(Rate(100.0, Limit.PSERVER_NIC), Rate(60.0, Limit.TRAINER_NIC))
    port.start(START, owner=0, lane=0, nbytes=120)
    port.start(after(START, Limit.COMPUTE, 1.0), owner=1, lane=0, nbytes=100)
    assert port.next_end() == pytest.approx(1.0 + 60 / 50)
    flow, end = port.finish(2.2)
    assert flow.owner == 0
    assert spent(end)[Limit.TRAINER_NIC] == pytest.approx(1.0)
    assert spent(end)[Limit.PSERVER_NIC] == pytest.approx(1.2)
    assert port.next_end() == pytest.approx(2.2 + 40 / 60)


def test_who_comes_while_a_turn_is_taken_waits() -> None:
    turn = Turn(Limit.LANE_CPU)
    assert turn.take(after(START, Limit.LATENCY, 1.0), 2.0).at == 3.0
    second = turn.take(after(START, Limit.LATENCY, 1.5), 2.0)
    assert second.at == 5.0
    assert spent(second)[Limit.LANE_CPU] == 4.0


def test_one_seed_gives_one_outcome_and_another_another() -> None:
    costs, cluster = replace(COSTS, spread=0.1), Machines(5, 2, samples_s=10.0)
    first, again, other = (simulate(LOAD, cluster, costs, seed=seed) for seed in (1, 1, 2))
    assert first == again != other


def test_half_the_gradients_bytes_save_a_quarter_of_exchange() -> None:
    cluster = Machines(4, 1, network_bit_s=1e8, latency_s=0.0, samples_s=1e9)
    whole, half = (
        simulate_quietly(replace(LOAD, wire=Wire(gradients=coding)), cluster, FREE) for coding in ("float32", "float16")
    )
    assert half.round_s / whole.round_s == pytest.approx(0.75, rel=1e-3)


def test_trainers_with_several_shards_send_sums_of_subtrees() -> None:
    shared, alone = Plan(replace(LOAD, shards=8), Machines(2, 1), FREE), Plan(LOAD, Machines(8, 1), FREE)
    assert [len(rows) for rows in shared.rows] == [1, 1]
    assert [len(rows) for rows in alone.rows] == [1] * 8


def test_the_advice_is_the_fewest_pservers_nearly_as_good() -> None:
    cluster = Machines(16, 1, samples_s=10.0, network_bit_s=1e9)
    advice = advise(LOAD, cluster, COSTS)
    times = {n: simulate_quietly(LOAD, replace(cluster, pservers=n)).in_step_s for n in range(1, 17)}
    good = [n for n, seconds in times.items() if seconds <= 1.05 * min(times.values())]
    assert advice.pservers == good[0]
    assert advice.round_s == times[good[0]]


def test_a_job_that_only_computes_needs_one_pserver() -> None:
    assert advise(LOAD, Machines(16, 4, samples_s=0.1), COSTS).pservers == 1


@pytest.mark.parametrize(
    ("wrong", "word"),
    [
        ({"trainers": 0}, "--trainers"),
        ({"pservers": -1}, "--pservers"),
        ({"network_bit_s": 0.0}, "--network"),
        ({"latency_s": -1.0}, "--latency"),
        ({"samples_s": math.nan}, "--compute-rate"),
    ],
)
def test_a_cluster_that_cannot_be_is_refused_by_name(wrong: dict[str, Any], word: str) -> None:
    with pytest.raises(UsageError, match=word):
        simulate(LOAD, replace(Machines(2, 2), **wrong), COSTS)


def test_no_rounds_are_refused() -> None:
    with pytest.raises(UsageError, match="--rounds is 0"):
        simulate(LOAD, Machines(1, 1), COSTS, rounds=0)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("{", "is not a file of measured costs"),
        ('{"bench": "wire", "machine": {"cpu": "c", "date": "d"}, "figures": {}}', "the result of another bench, wire"),
        ('{"bench": "costs", "machine": {"cpu": "c", "date": "d"}, "figures": {}}', "lacks 'kernel momentum"),
    ],
)
def test_a_file_that_holds_no_costs_is_refused(tmp_path: Path, text: str, said: str) -> None:
    file = tmp_path / "costs.json"
    file.write_text(text)
    with pytest.raises(UsageError, match=said) as caught:
        load_costs(file)
    assert "./dev bench costs" in caught.value.fix


def test_a_job_is_refused_whose_optimizer_was_not_measured(tmp_path: Path) -> None:
    content = json.loads((ROOT / "bench" / "results" / "costs.json").read_text(encoding="utf-8"))
    del content["figures"]["kernel adamax, ns per float"]
    (tmp_path / "costs.json").write_text(json.dumps(content))
    costs = load_costs(tmp_path / "costs.json")
    assert costs.kernel_of("adam") > 0
    with pytest.raises(UsageError, match="adamax was not measured"):
        costs.kernel_of("adamax")


def test_a_cost_below_zero_is_refused(tmp_path: Path) -> None:
    costs = json.loads((ROOT / "bench" / "results" / "costs.json").read_text(encoding="utf-8"))
    costs["figures"]["frame, µs"]["value"] = -1
    (tmp_path / "costs.json").write_text(json.dumps(costs))
    with pytest.raises(UsageError, match=r"'frame, µs' in .* is -1"):
        load_costs(tmp_path / "costs.json")


def test_missing_costs_are_reported_with_how_to_measure_them(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="cannot be read: No such file"):
        load_costs(tmp_path / "nowhere.json")


def table(title: str) -> list[list[str]]:
    """The rows of the page's table under a heading, without what makes it a table."""
    section = PAGE.split(f"## {title}\n")[1].split("\n## ")[0]
    lines = [line for line in section.splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[2:]]


def number(text: str) -> float:
    return float(re.sub(r"[^0-9.]", "", text))


def check_row(row: list[str], values: int, rounds: int) -> None:
    trainers, pservers, gradients = int(number(row[0])), int(number(row[1])), row[2]
    load = Workload("vgg", values, 128, wire=Wire(gradients=gradients))  # type: ignore[arg-type]
    cluster = Machines(trainers, pservers, samples_s=17.6)
    apart = simulate(load, cluster, MEASURED, rounds=rounds)
    even = simulate(load, cluster, replace(MEASURED, spread=0.0), rounds=rounds)
    in_step = 128 / 17.6 / apart.in_step_s
    found = [f"{100 * share:.1f} %" for share in (in_step, even.efficiency, apart.efficiency)]
    assert row[3:6] == found
    assert row[6] == f"{even.limit.words} {100 * even.shares[even.limit]:.0f} %, " + ", ".join(
        f"{limit.words} {100 * share:.0f} %" for limit, share in list(even.shares.items())[1:2]
    )


ROWS = table("The published job")
SMALL = [row for row in ROWS if number(row[0]) * number(row[1]) <= 2000]
LARGE = [row for row in ROWS if row not in SMALL]


@pytest.mark.parametrize("row", SMALL, ids=lambda row: f"{row[0]} x {row[1]}, {row[2]}")
def test_the_page_has_the_models_figures_of_the_published_job(row: list[str]) -> None:
    check_row(row, 138_357_544, rounds=4)


@pytest.mark.slow
@pytest.mark.parametrize("row", LARGE, ids=lambda row: f"{row[0]} x {row[1]}, {row[2]}")
def test_the_page_has_the_models_figures_for_more_machines(row: list[str]) -> None:
    check_row(row, 138_357_544, rounds=1 if number(row[0]) == 1000 else 4)


@pytest.mark.parametrize("row", table("The network that was published"), ids=lambda row: f"{row[0]} x {row[1]}")
def test_the_page_has_the_models_figures_of_the_small_network(row: list[str]) -> None:
    check_row(row, 15_245_130, rounds=4)


@pytest.mark.parametrize("row", table("Beside what was measured"), ids=lambda row: f"{row[0]} Mbit/s, {row[2]}")
def test_the_page_sets_the_model_beside_the_bench_of_the_wire(row: list[str]) -> None:
    bench = json.loads((ROOT / "bench" / "results" / "wire.json").read_text(encoding="utf-8"))
    figures = bench["figures"][row[0].replace(",", "")]
    load = Workload("wire", figures["floats"], 1, wire=Wire(gradients=row[2]))  # type: ignore[arg-type]
    cluster = Machines(2, 2, network_bit_s=number(row[0]) * 1e6, samples_s=1e9)
    measured, model = figures["steps_s"][row[2]]["median"], 1 / simulate(load, cluster, MEASURED).round_s
    assert row[3:] == [f"{measured:.3g}", f"{model:.3g}", f"{measured / model:.2f}"]


def test_the_page_names_the_worst_and_the_best_of_these_ratios() -> None:
    ratios = [float(row[-1]) for row in table("Beside what was measured")]
    assert f"Rounds were {100 * min(ratios):.0f} % to {100 * max(ratios):.0f} % of what" in PAGE
    assert f"differ by {100 * MEASURED.spread:.1f} % (standard deviation)" in PAGE
