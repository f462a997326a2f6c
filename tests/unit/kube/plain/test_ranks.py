"""Which pod is which node: by address once, then by who takes a free rank first, whatever happens to the pods."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bireme.kube.plain.ranks import Decision, Hold, Peer, RankAll, RankRecord, RankWait, SignsOfLife, TakeRank, decide

A, B, C = (Peer(name, ip) for name, ip in (("a", "10.2.10.3"), ("b", "10.2.9.3"), ("c", "10.2.100.1")))
RANKED = RankRecord(("b", "a", "c"))


def test_pods_are_ranked_by_address_as_a_number() -> None:
    assert decide("a", [A, B, C], RankRecord(), 3) == RankAll(("b", "a", "c"))


def test_no_pod_is_ranked_before_all_are_there() -> None:
    assert decide("a", [A, B], RankRecord(), 3) == RankWait("2 of 3 pods are there")


@pytest.mark.parametrize(
    "gone",
    [Peer("d", "10.2.1.1", "Succeeded"), Peer("d", "10.2.1.1", "Failed"), Peer("d", "10.2.1.1", is_deleted=True),
     Peer("d", "", "Pending")],
    ids=["finished", "failed", "being deleted", "without an address"],
)  # fmt: skip
def test_a_pod_that_takes_no_part_is_not_counted(gone: Peer) -> None:
    assert decide("a", [A, B, gone], RankRecord(), 3) == RankWait("2 of 3 pods are there")
    assert decide("a", [A, B, C, gone], RankRecord(), 3) == RankAll(("b", "a", "c"))


def test_a_pod_finds_itself_in_the_record_when_alone() -> None:
    assert decide("c", [], RANKED, 3) == Hold(2)


def test_a_replacement_takes_the_rank_of_a_pod_that_is_gone() -> None:
    new = Peer("d", "10.2.0.1")
    assert decide("d", [A, C, new], RANKED, 3) == TakeRank(0, 1, "d")
    taken = RankRecord(RANKED.first, [TakeRank(0, 1, "d")])
    assert decide("d", [A, C, new], taken, 3) == Hold(0)


def test_a_rank_that_was_taken_again_belongs_to_the_last_one() -> None:
    record = RankRecord(RANKED.first, [TakeRank(0, 2, "e"), TakeRank(0, 1, "d")])
    assert decide("e", [], record, 3) == Hold(0)
    peers = [A, C, Peer("d", "10.2.0.1"), Peer("e", "10.2.0.2")]
    assert isinstance(decide("d", peers, record, 3), RankWait), "it was taken for gone, and has lost its place"


def test_a_pod_without_an_address_may_live_unless_known_gone() -> None:
    assert Peer("d", "", "Pending").may_live and not Peer("d", "", "Pending").is_live
    assert not Peer("d", "", "Failed").may_live and not Peer("d", "", is_deleted=True).may_live


def test_a_pod_that_may_only_be_silent_keeps_its_rank() -> None:
    assert isinstance(decide("d", [A, C, Peer("d", "10.2.0.1")], RANKED, 3, silent={"b"}), RankWait)


def test_one_pod_too_many_waits_and_says_who_is_there() -> None:
    assert decide("d", [A, B, C, Peer("d", "10.2.0.1")], RANKED, 3) == RankWait(
        "all 3 ranks belong to pods that live: b, a, c", is_surplus=True
    )


class Volume:
    """The record as a volume keeps it: what is there is there, and the second one to make it fails."""

    def __init__(self) -> None:
        self.first: tuple[str, ...] = ()
        self.taken: dict[tuple[int, int], str] = {}

    def record(self) -> RankRecord:
        return RankRecord(self.first, [TakeRank(rank, turn, name) for (rank, turn), name in self.taken.items()])

    def write(self, decision: Decision) -> None:
        if isinstance(decision, RankAll):
            self.first = self.first or decision.first
        elif isinstance(decision, TakeRank):
            self.taken.setdefault((decision.rank, decision.turn), decision.name)


@given(nodes=st.integers(1, 5), data=st.data())
def test_no_two_pods_that_live_ever_have_the_same_rank(nodes: int, data: st.DataObject) -> None:
    """Pods come, die and decide in any order, each from what it last saw of pods and record."""
    volume, count = Volume(), 0
    alive: dict[str, Peer] = {}
    ranks: dict[str, int] = {}
    seen: dict[str, tuple[list[Peer], RankRecord]] = {}
    for _ in range(data.draw(st.integers(1, 60))):
        act = data.draw(st.sampled_from(["come", "die", "look", "look", "decide", "decide", "decide"]))
        if act == "come" and len(alive) < nodes:
            name = f"p{count}"
            alive[name] = Peer(name, f"10.0.{data.draw(st.integers(0, 255))}.{count % 250}")
            count += 1
        elif alive:
            name = data.draw(st.sampled_from(sorted(alive)))
            if act == "die":
                del alive[name]
                ranks.pop(name, None)
            elif act == "look":
                seen[name] = (list(alive.values()), volume.record())
            elif act == "decide" and name in seen and name not in ranks:
                peers, record = seen[name]
                decision = decide(name, peers, record, nodes)
                volume.write(decision)
                seen[name] = (peers, volume.record())
                if isinstance(decision, Hold):
                    ranks[name] = decision.rank
        assert len(set(ranks.values())) == len(ranks)
        assert all(0 <= rank < nodes for rank in ranks.values())


@given(nodes=st.integers(1, 6), dead=st.sets(st.integers(0, 5)), order=st.randoms(use_true_random=False))
def test_replacements_end_up_with_all_free_ranks(nodes: int, dead: set[int], order: object) -> None:
    volume = Volume()
    first = [Peer(f"p{n}", f"10.0.0.{n}") for n in range(nodes)]
    volume.write(decide("p0", first, RankRecord(), nodes))
    gone = {n for n in dead if n < nodes}
    peers = [p for n, p in enumerate(first) if n not in gone]
    new = [Peer(f"q{n}", f"10.0.1.{n}") for n in range(len(gone))]
    held: dict[str, int] = {}
    while len(held) < len(new):
        for pod in new:
            decision = decide(pod.name, [*peers, *new], volume.record(), nodes)
            volume.write(decision)
            if isinstance(decision, Hold):
                held[pod.name] = decision.rank
    assert set(held.values()) == gone


def test_a_sign_of_life_is_a_number_that_changes() -> None:
    signs = SignsOfLife(10.0)
    signs.see({"a": 1, "b": 7}, 100.0)
    assert signs.living(100.0) == set() and signs.unsure(100.0) == {"a", "b"}
    signs.see({"a": 2, "b": 7}, 101.0)
    assert signs.living(101.0) == {"a"} and signs.unsure(101.0) == {"b"}
    signs.see({"a": 3, "b": 7}, 110.5)
    assert signs.living(110.5) == {"a"} and signs.unsure(110.5) == set(), "b has not moved for ten seconds"
    signs.see({"a": 3, "b": 8}, 121.0)
    assert signs.living(121.0) == {"b"}, "a is silent now, and b has come back"
