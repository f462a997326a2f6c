from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import engines.homes as homes
import peers
import pytest
from engines.catalogue import PEERS, ours
from engines.picture import draw
from engines.running import RunFailedError
from engines.tables import Samples, costs_of, entry_of, rate_of, ratio_of, short, table

from bireme.core.errors import MissingError, UsageError

PROCESSES = [
    {"name": "trainer-0", "cpu_s_per_step": 0.5, "rss_mb": 100.0, "anon_mb": 60.0},
    {"name": "pserver-0", "cpu_s_per_step": 0.25, "rss_mb": 50.0, "anon_mb": 40.0},
]
FACTS = {"cpu": "a <fast> one", "cores": 2, "memory_gib": 8.0, "kernel": "6.1", "date": "2026-11-16"}


def samples(*rates: float, carrier: str | None = None) -> Samples:
    found = Samples()
    for rate in rates:
        found.add(rate, {"cpu_s_per_step": 1 / rate}, carrier)
    return found


def entry(**peer_rates: tuple[float, ...]) -> dict[str, Any]:
    theirs = {name: samples(*rates) for name, rates in peer_rates.items()}
    return entry_of("dense-1m", samples(30.0, 10.0, 20.0, carrier="tcp"), theirs, {})


def test_figures_are_medians_and_ratios_are_ours_by_theirs() -> None:
    found = entry(slow=(4.0, 5.0, 100.0), fast=(40.0,))
    assert (found["ours"], found["carrier"], found["unit"]) == (20.0, "tcp", "steps/s")
    assert found["peers"] == {"slow": 5.0, "fast": 40.0}
    assert found["ratios"] == {"slow": 4.0, "fast": 0.5}
    assert found["spread"]["ours"] == {"n": 3, "min": 10.0, "max": 30.0, "samples": [30.0, 10.0, 20.0]}


def test_costs_are_those_of_the_run_nearest_to_the_median() -> None:
    assert samples(1.0, 4.0, 5.0).typical_costs() == {"cpu_s_per_step": 0.25}


def test_a_peer_without_a_figure_stays_with_its_reason() -> None:
    failed = Samples()
    failed.failures.append("worker 0 ended with code 1")
    notes = {"gone": "not available: no network"}
    found = entry_of("dense-1m", samples(3.0), {"gone": Samples(), "broken": failed}, notes)
    assert found["peers"] == {"gone": None, "broken": None}
    assert found["ratios"] == {}
    assert found["notes"] == {"broken": "failed: worker 0 ended with code 1", **notes}


def test_without_a_figure_of_ours_there_are_no_ratios() -> None:
    found = entry_of("sparse", Samples(), {"ray": samples(3.0)}, {"ours": "not built yet"})
    assert found["ours"] is None and found["ratios"] == {} and found["peers"] == {"ray": 3.0}


def test_a_ratio_needs_two_figures() -> None:
    assert ratio_of(3.0, 2.0) == 1.5
    with pytest.raises(ValueError, match="two figures"):
        ratio_of(3.0, None)


def test_rates_count_what_both_trainers_do() -> None:
    answers = [{"median_s": 0.1}, {"median_s": 0.3}]
    assert rate_of("dense-1m", answers) == pytest.approx(5.0)
    assert rate_of("bow", answers) == pytest.approx(5.0 * 256)
    assert rate_of("sparse", answers) == pytest.approx(5.0 * 8192)


def test_costs_of_ours_are_reported_process_by_process() -> None:
    answers = [{"processes": PROCESSES, "wire_bytes_per_step": 7}]
    found = costs_of(answers, by_process=True)
    assert (found["cpu_s_per_step"], found["rss_mb"], found["anon_mb"]) == (0.75, 150.0, 100.0)
    assert found["wire_bytes_per_step"] == 7 and found["processes"] == PROCESSES
    assert "processes" not in costs_of(answers, by_process=False)


@pytest.mark.parametrize(
    ("value", "text"), [(None, "—"), (0.951, "0.95"), (15.23, "15.2"), (131.4, "131"), (57_321.0, "57k")]
)
def test_figures_are_short(value: float | None, text: str) -> None:
    assert short(value) == text


def test_the_table_shows_every_engines_ratio_and_the_notes() -> None:
    found = entry(ddp=(10.0,))
    found["notes"] = {"ray": "not available: no network"}
    found["peers"]["ray"] = None
    text = table({"dense-1m-tcp": found})
    assert "10.0 (2.00×)" in text and "10.0–30.0" in text
    assert text.splitlines()[-1] == "dense-1m-tcp: ray: not available: no network"
    assert len({line.index("ddp") for line in text.splitlines()[:1]}) == 1


def test_picture_is_well_formed_and_bars_are_true_to_figures() -> None:
    drawn = draw({"dense-1m-tcp": entry(ddp=(10.0,), gone=())}, peers.caption(FACTS), {})
    root = ElementTree.fromstring(drawn)
    space = "{http://www.w3.org/2000/svg}"
    bars = [float(r.attrib["width"]) for r in root.iter(f"{space}rect")][1:]
    assert bars[0] == pytest.approx(2 * bars[1], rel=0.01) and bars[2] == 1.0
    words = [t.text for t in root.iter(f"{space}text")]
    assert "no figure" in words and any("a <fast> one" in (t or "") and "2026-11-16" in (t or "") for t in words)


@pytest.mark.parametrize("arguments", [["--only", "dense-2m"], ["--reps", "0"]])
def test_arguments_that_make_no_sense_are_refused(arguments: list[str]) -> None:
    with pytest.raises(UsageError) as caught:
        peers.parse(arguments)
    assert arguments[1] in caught.value.what


def test_names_are_measured_in_a_fixed_order() -> None:
    assert peers.parse(["--only", "bow", "--only", "dense-1m-local"]).names == ["dense-1m-local", "bow"]
    assert len(peers.parse([]).names) == 8


@pytest.mark.parametrize(
    ("name", "parts"),
    [("dense-10m-tcp", ("dense-10m", "tcp")), ("bow", ("bow", "local")), ("sparse", ("sparse", "local"))],
)
def test_names_have_a_work_and_a_place(name: str, parts: tuple[str, str]) -> None:
    assert peers.split_name(name) == parts


def test_steps_fill_the_time_of_a_run_within_bounds() -> None:
    assert peers.next_steps("dense-10m", 0.05) == 50
    assert peers.next_steps("dense-50m", 10.0) == 4
    assert peers.next_steps("dense-1m", 1e-6) == peers.MOST_STEPS
    assert peers.next_steps("bow", 1.0) + peers.WARMUP["bow"] > 100


def answers_of(work: str) -> list[dict[str, Any]]:
    answer = {"median_s": 0.5, "processes": PROCESSES, "wire_bytes_per_step": 1, "carrier": "shm"}
    return [answer, answer]


def test_engines_are_interleaved_and_failures_are_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    order: list[tuple[str, str]] = []

    def perform(run: Any, environment: Any, ports: Any) -> list[dict[str, Any]]:
        order.append((run.module, run.options.get("place", "")))
        if run.module == "ray_":
            raise RunFailedError("driver 0 ended with code 1")
        return answers_of(run.work)

    monkeypatch.setattr(peers, "perform", perform)
    bench = peers.Bench({})
    bench.pythons |= {peer.home: "python" for peer in PEERS}
    bench.missing["mxnet"] = "not available: no network"
    found = peers.measure(bench, ["dense-1m-tcp", "dense-1m-local"], reps=3)
    once = [("ours", "tcp"), ("ours", "local"), ("torch_", ""), ("torch_", ""), ("tensorflow_", ""), ("ray_", "")]
    assert order == once + once + once[:-1]
    for name in ("dense-1m-tcp", "dense-1m-local"):
        assert found[name]["peers"]["ray"] is None and found[name]["peers"]["tensorflow"] == 2.0
        assert found[name]["notes"] == {
            "ray": "failed: driver 0 ended with code 1",
            "mxnet": "not available: no network",
        }


def test_sparse_tables_are_measured_as_everything_else(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(peers, "perform", lambda run, *_: answers_of(run.work))
    bench = peers.Bench({})
    bench.pythons |= {peer.home: "python" for peer in PEERS}
    found = peers.measure(bench, ["sparse"], reps=1)["sparse"]
    assert found["ours"] is not None and found["notes"] == {}


def test_an_environment_that_cannot_be_made_is_a_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(home: str, environment: Any) -> str:
        raise MissingError(f"{home} is nowhere", fix="type this")

    monkeypatch.setattr(peers, "python_of", refuse)
    bench = peers.Bench({})
    bench.prepare(["ray", "ray"])
    assert bench.missing == {"ray": "not available: ray is nowhere (type this)"}


def test_one_name_is_added_to_results_and_picture(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(peers, "RESULTS", tmp_path)
    monkeypatch.setattr(peers, "PICTURE", tmp_path / "img" / "peers.svg")

    def keep(name: str, facts: dict[str, Any]) -> dict[str, Any]:
        peers.keep({name: entry(ddp=(1.0,))}, facts)
        result: dict[str, Any] = json.loads((tmp_path / "peers.json").read_text(encoding="utf-8"))
        return {name: row.get("machine", {}).get("cores") for name, row in result["figures"].items()}

    assert keep("bow", FACTS) == {"bow": None}
    assert keep("dense-1m-tcp", FACTS) == {"dense-1m-tcp": None, "bow": None}
    # A row of another machine stays, and says which machine that was, also after one more run.
    assert keep("sparse", {**FACTS, "cores": 4}) == {"dense-1m-tcp": 2, "sparse": None, "bow": 2}
    assert keep("bow", {**FACTS, "cores": 8}) == {"dense-1m-tcp": 2, "sparse": 4, "bow": None}
    drawn = [t.text for t in ElementTree.parse(tmp_path / "img" / "peers.svg").iter("{http://www.w3.org/2000/svg}text")]
    assert "dense-1m-tcp, steps/s, ours over tcp (2026-11-16, a <fast> one, 2 cores)" in drawn
    assert "bow, steps/s, ours over tcp" in drawn


def test_one_name_prints_one_object_and_several_print_a_map(capsys: pytest.CaptureFixture[str]) -> None:
    facts = {**FACTS, "load_before": [0.1], "load_after": [0.2]}
    peers.show({"bow": entry(ddp=(10.0,))}, facts, as_json=True)
    one = json.loads(capsys.readouterr().out)
    assert {"ours", "carrier", "peers", "ratios", "spread", "costs"} <= set(one)
    peers.show({"bow": entry(), "sparse": entry()}, facts, as_json=True)
    assert list(json.loads(capsys.readouterr().out)) == ["bow", "sparse"]


def test_a_cache_folder_is_honoured_when_it_is_absolute() -> None:
    assert homes.cache_folder({"XDG_CACHE_HOME": "/c"}) == Path("/c/bireme/peers")
    assert homes.cache_folder({"XDG_CACHE_HOME": "c"}) == Path.home() / ".cache/bireme/peers"


def test_half_an_environment_is_removed_again(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def install(command: list[str], what: str) -> None:
        (tmp_path / "ray" / "bin").mkdir(parents=True, exist_ok=True)
        if "pip" in command:
            raise MissingError("cannot install ray: no network")

    monkeypatch.setattr(homes, "_call", install)
    monkeypatch.setattr(homes, "_find_python", lambda _: sys.executable)
    with pytest.raises(MissingError, match="no network"):
        homes._venv("ray", tmp_path / "ray")
    assert not (tmp_path / "ray").exists()


def test_a_command_that_fails_reports_its_last_line() -> None:
    with pytest.raises(MissingError) as caught:
        homes._call([sys.executable, "-c", "print('one'); print('no such package'); raise SystemExit(1)"], "ray")
    assert caught.value.what == "cannot install ray: no such package"


def test_mxnet_processes_get_their_roles() -> None:
    (mxnet,) = (peer for peer in PEERS if peer.home == "mxnet")
    run = mxnet.run("dense-1m", 10, 2, "python", [7000])
    assert [part.environment["DMLC_ROLE"] for part in run.parts] == [
        "scheduler",
        "server",
        "server",
        "worker",
        "worker",
    ]
    assert [part.answers for part in run.parts] == [False, False, False, True, True]
    assert ours("tcp").run("bow", 1, 1, "python", []).options == {"place": "tcp"}
