from __future__ import annotations

import socket
from pathlib import Path

import pytest

from bireme.core.errors import BiremeError, NetworkError, UsageError
from bireme.job.coordination.messages import Address
from bireme.job.node.discovery import HostList, SharedDirectory, reach_coordinator

HERE, THERE = Address(host="127.0.0.1", ports=(7164, 7165)), Address(host="10.0.0.2", ports=(7164,))


def test_pservers_find_each_other_in_a_directory(tmp_path: Path) -> None:
    place = SharedDirectory(tmp_path / "meet", 2)
    assert place.find() == [None, None]
    place.announce(1, THERE)
    assert place.find() == [None, THERE]
    place.announce(0, HERE)
    assert place.find() == [HERE, THERE]


def test_a_pserver_that_comes_back_elsewhere_is_found_there(tmp_path: Path) -> None:
    place = SharedDirectory(tmp_path, 1)
    place.announce(0, HERE)
    place.announce(0, THERE)
    assert place.find() == [THERE]


def test_a_coordinator_that_did_not_start_is_named(tmp_path: Path) -> None:
    place = SharedDirectory(tmp_path, 3)
    place.announce(1, HERE)
    with pytest.raises(NetworkError, match="waited 0 s for pserver 0: it has not announced itself") as caught:
        reach_coordinator(place, 0.0)
    assert "server.log" in caught.value.fix


class Moving:
    """A discovery in which pserver 0 is found in one place after the other, and stays in the last."""

    def __init__(self, *places: Address | None) -> None:
        self._places = list(places)

    def announce(self, pserver: int, address: Address, incarnation: int = 1) -> None:
        raise AssertionError("no pserver announces itself here")

    def find(self) -> list[Address | None]:
        raise AssertionError("only one is looked for")

    def look_up(self, pserver: int) -> Address | None:
        assert pserver == 0
        return self._places.pop(0) if len(self._places) > 1 else self._places[0]

    def why_missing(self, pserver: int) -> str:
        return "it hides"


def closed_port() -> Address:
    with socket.create_server(("127.0.0.1", 0)) as sock:
        return Address(host="127.0.0.1", ports=(sock.getsockname()[1],))


def test_a_coordinator_is_reached_wherever_it_is_by_now() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        port = listening.getsockname()[1]
        place = Moving(None, closed_port(), Address(host="127.0.0.1", ports=(port,)))
        with reach_coordinator(place, 60.0) as found:
            assert found.getpeername() == ("127.0.0.1", port)


def test_a_silent_coordinator_is_named_with_its_address() -> None:
    gone = closed_port()
    with pytest.raises(NetworkError, match=f"pserver 0 at 127.0.0.1:{gone.ports[0]} does not answer"):
        reach_coordinator(Moving(gone), 0.0)


def test_hosts_by_hand_share_one_port_or_bring_their_own() -> None:
    found = HostList(["10.0.0.1", " 10.0.0.2:9000 ", ""], 7164, 2).find()
    assert found == [Address(host="10.0.0.1", ports=(7164, 7165)), Address(host="10.0.0.2", ports=(9000, 9001))]


@pytest.mark.parametrize("hosts", ["10.0.0.1:70x4", "10.0.0.1:", "10.0.0.1:99999"])
def test_a_host_with_a_port_that_is_none_is_refused_by_name(hosts: str) -> None:
    with pytest.raises(BiremeError, match=r"10\.0\.0\.1"):
        HostList([hosts], 7164, 1)


def test_an_empty_list_of_hosts_is_refused() -> None:
    with pytest.raises(UsageError, match="names no host"):
        HostList([" ", " "], 7164, 1)


class Names:
    """A resolver whose records change."""

    def __init__(self) -> None:
        self.records: dict[str, list[str]] = {}

    def __call__(self, host: str, *_: object) -> list[tuple[int, int, int, str, tuple[str, int]]]:
        if host not in self.records:
            raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")
        return [(socket.AF_INET, socket.SOCK_STREAM, 0, "", (address, 0)) for address in self.records[host]]


@pytest.fixture
def names(monkeypatch: pytest.MonkeyPatch) -> Names:
    found = Names()
    monkeypatch.setattr(socket, "getaddrinfo", found)
    return found


def test_a_name_is_resolved_each_time_and_named_if_it_is_not(names: Names) -> None:
    place = HostList(["demo-0.demo.a.svc", "demo-1.demo.a.svc"], 7164, 2)
    assert place.look_up(1) is None
    assert place.why_missing(1) == "its name demo-1.demo.a.svc does not resolve: Name or service not known"
    names.records["demo-1.demo.a.svc"] = ["10.1.0.7"]
    assert place.look_up(1) == Address(host="10.1.0.7", ports=(7164, 7165))
    names.records["demo-1.demo.a.svc"] = ["10.1.0.9"]
    assert place.look_up(1) == Address(host="10.1.0.9", ports=(7164, 7165))


def test_a_name_with_a_leaving_pods_address_too_takes_turns(names: Names) -> None:
    place = HostList(["demo-0"], 7164, 1)
    names.records["demo-0"] = ["10.1.0.9", "10.1.0.7"]
    found = [place.look_up(0) for _ in range(3)]
    assert [address.host for address in found if address] == ["10.1.0.7", "10.1.0.9", "10.1.0.7"]


def test_a_coordinator_with_an_unresolved_name_is_named(names: Names) -> None:
    with pytest.raises(NetworkError, match="waited 0 s for pserver 0: its name demo-0 does not resolve"):
        reach_coordinator(HostList(["demo-0"], 7164, 1), 0.0)


def test_the_later_incarnation_counts_in_any_order(tmp_path: Path) -> None:
    place = SharedDirectory(tmp_path, 1)
    place.announce(0, HERE, incarnation=12)
    place.announce(0, THERE, incarnation=7)  # it was stopped before it could say so, and has been replaced
    assert place.find() == [HERE]


def test_a_file_removed_while_it_is_looked_up_is_absent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Path, "glob", lambda self, pattern: [tmp_path / "pserver-0.00000001.json"])
    assert SharedDirectory(tmp_path, 1).find() == [None]
