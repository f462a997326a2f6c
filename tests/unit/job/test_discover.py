from __future__ import annotations

from pathlib import Path

import pytest

from bireme.core.errors import BiremeError, NetworkError
from bireme.job.discover import HostList, SharedDirectory, await_pservers
from bireme.job.messages import Address

HERE, THERE = Address(host="127.0.0.1", ports=(7164, 7165)), Address(host="10.0.0.2", ports=(7164,))


def test_pservers_find_each_other_in_a_directory(tmp_path: Path) -> None:
    place = SharedDirectory(tmp_path / "meet", 2)
    assert place.find() == [None, None]
    place.announce(1, THERE)
    assert place.find() == [None, THERE]
    place.announce(0, HERE)
    assert await_pservers(place, 0.0) == (HERE, THERE)


def test_a_pserver_that_comes_back_elsewhere_is_found_there(tmp_path: Path) -> None:
    place = SharedDirectory(tmp_path, 1)
    place.announce(0, HERE)
    place.announce(0, THERE)
    assert place.find() == [THERE]


def test_pservers_that_did_not_come_are_named(tmp_path: Path) -> None:
    place = SharedDirectory(tmp_path, 3)
    place.announce(1, HERE)
    with pytest.raises(NetworkError, match="pserver 0, 2 did not announce itself within 0 s") as caught:
        await_pservers(place, 0.0)
    assert "server.log" in caught.value.fix


def test_hosts_by_hand_share_one_port_unless_they_bring_their_own() -> None:
    found = await_pservers(HostList("10.0.0.1, 10.0.0.2:9000 ,", 7164, 2), 0.0)
    assert found == (Address(host="10.0.0.1", ports=(7164, 7165)), Address(host="10.0.0.2", ports=(9000, 9001)))


@pytest.mark.parametrize("hosts", ["10.0.0.1:70x4", "10.0.0.1:", "10.0.0.1:99999"])
def test_a_host_with_a_port_that_is_none_is_refused_by_name(hosts: str) -> None:
    with pytest.raises(BiremeError, match=r"10\.0\.0\.1"):
        HostList(hosts, 7164, 1)


def test_an_empty_list_of_hosts_is_told_as_such() -> None:
    with pytest.raises(BiremeError) as caught:
        await_pservers(HostList(" , ", 7164, 1), 0.0)
    assert "pserver  did not" not in caught.value.what
