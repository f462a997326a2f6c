from __future__ import annotations

import socket

import limits
import pytest

from bireme.core.errors import UsageError

FIGURES = {limits.TCP_TWO: {"median": 4.0}, limits.KERNEL_TWO: {"median": 32.0}}


def entry(ours: float | None, carrier: str) -> dict[str, object]:
    return {"ours": ours, "carrier": carrier, "costs": {"ours": {"wire_bytes_per_step": 160_000_000}}}


def test_what_goes_through_sockets_is_measured_against_tcp_and_what_is_shared_against_the_kernel() -> None:
    told = {"figures": {"dense-10m-tcp": entry(20.0, "tcp"), "dense-10m-local": entry(100.0, "shm")}}
    found = limits.shares(FIGURES, told)
    assert found["dense-10m-tcp"] == {"carrier": "tcp", "gb_s": 3.2, "limit": limits.TCP_TWO, "share": 0.8}
    assert found["dense-10m-local"] == {"carrier": "shm", "gb_s": 16.0, "limit": limits.KERNEL_TWO, "share": 0.5}


def test_works_that_are_not_dense_or_have_no_figure_have_no_share() -> None:
    assert limits.shares(FIGURES, {"figures": {"bow": entry(1.0, "shm"), "dense-1m-tcp": entry(None, "tcp")}}) == {}
    assert limits.shares(FIGURES, {}) == {}


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
