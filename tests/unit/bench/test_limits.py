from __future__ import annotations

import socket

import limits
import pytest

from bireme.core.errors import UsageError

FIGURES = {limits.TCP_TWO: {"median": 4.0}, limits.KERNEL_TWO: {"median": 32.0}}


def entry(ours: float | None, carrier: str) -> dict[str, object]:
    return {"ours": ours, "carrier": carrier, "costs": {"ours": {"wire_bytes_per_step": 160_000_000}}}


HERE = {"cpu": "Fast", "cores": 2, "kernel": "6"}
PEERS = {
    "machine": {**HERE, "date": "2026-01-02"},
    "figures": {
        "dense-10m-tcp": {**entry(20.0, "tcp"), "measured": {"date": "2026-01-01"}},
        "dense-10m-local": entry(100.0, "shm"),
    },
}


def test_sockets_are_measured_against_tcp_and_memory_by_kernels() -> None:
    found = limits.shares(FIGURES, PEERS, HERE)
    assert found["dense-10m-tcp"] == {
        "carrier": "tcp", "gb_s": 3.2, "limit": limits.TCP_TWO, "share": 0.8, "measured": "2026-01-01",
    }  # fmt: skip
    assert found["dense-10m-local"] == {
        "carrier": "shm", "gb_s": 16.0, "limit": limits.KERNEL_TWO, "share": 0.5, "measured": "2026-01-02",
    }  # fmt: skip


def test_works_not_dense_or_without_a_figure_have_no_share() -> None:
    entries = {"figures": {"bow": entry(1.0, "shm"), "dense-1m-tcp": entry(None, "tcp")}}
    assert limits.shares(FIGURES, entries, HERE) == {}
    assert limits.shares(FIGURES, {}, HERE) == {}


def test_a_share_has_its_date_and_the_mark_of_two_runs() -> None:
    lines = limits.describe(limits.shares(FIGURES, PEERS, HERE))
    assert "an earlier run of `./dev bench peers`" in lines[0]
    assert "2026-01-01" in lines[1] and f"~80% of {limits.TCP_TWO}" in lines[1]
    assert "~ divides figures of two runs" in lines[-1]


def test_figures_of_another_machine_have_no_share() -> None:
    lines = limits.describe(limits.shares(FIGURES, PEERS, {**HERE, "cpu": "Slow"}))
    assert "%" not in "".join(lines)
    assert lines[-1] == "measured on another machine: no shares of these limits"
    assert limits.describe({}) == ["no figures of ours yet: `./dev bench peers`"]


def test_a_row_of_another_machine_has_no_share() -> None:
    moved = {**entry(1.0, "shm"), "machine": {**HERE, "cpu": "Slow"}}
    shares = limits.shares(FIGURES, {"machine": HERE, "figures": {"dense-1m-local": moved}}, HERE)
    assert shares["dense-1m-local"]["share"] is None


def test_the_help_names_the_file_that_is_written(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        limits.parse(["--help"])
    assert "bench/results/limits.json" in capsys.readouterr().out


def test_no_repetitions_are_refused() -> None:
    with pytest.raises(UsageError, match="--reps 0"):
        limits.parse(["--reps", "0"])


@pytest.mark.parametrize("family", [socket.AF_INET, socket.AF_UNIX])
def test_a_pair_of_sockets_is_of_the_family_asked_for(family: socket.AddressFamily) -> None:
    for sock in limits._pair(family):
        assert sock.family == family
        sock.close()


def test_every_limit_is_summarised_over_all_repetitions(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "LIMITS", {"a": iter([1.0, 3.0, 2.0]).__next__})
    assert limits.measure(3)["a"]["median"] == 2.0
