"""The rank of each pod of a plain Job, decided from the live pods and a record that all of them share. No I/O.

The pods of a plain Job are all alike. The first one that sees as many live pods as there are nodes ranks them by
address and writes the record, once: the first writer wins. From then on a rank belongs to the pod that took it last. A
replacement takes the rank of a pod that is gone, by a file that can be created only once, so no two take the same. A
pod whose container restarts is in the record already.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

FINISHED = ("Succeeded", "Failed")


@dataclass(frozen=True, slots=True)
class Peer:
    """A pod of the Job as last listed."""

    name: str
    """Its identity: unique among all pods that a Job ever has, and set in the pod's environment."""
    ip: str = ""
    phase: str = "Running"
    is_deleted: bool = False
    """Whether it is being deleted; on a lost machine it may run on, so it does not count even while it runs."""

    @property
    def is_live(self) -> bool:
        """Whether it takes part, or soon will."""
        return bool(self.ip) and self.may_live

    @property
    def may_live(self) -> bool:
        """Whether it is not gone: its container can run before the API server has its address."""
        return self.phase not in FINISHED and not self.is_deleted


@dataclass(frozen=True, slots=True)
class TakeRank:
    """A pod takes a rank, unless another pod was faster; the latest turn counts."""

    rank: int
    turn: int
    name: str


@dataclass(frozen=True, slots=True)
class RankRecord:
    """The ranks written so far."""

    first: Sequence[str] = ()
    """The names that were ranked first, by rank; empty before that."""
    taken: Sequence[TakeRank] = ()

    def holders(self) -> dict[int, TakeRank]:
        holders = {rank: TakeRank(rank, 0, name) for rank, name in enumerate(self.first)}
        for one in sorted(self.taken, key=lambda one: one.turn):
            holders[one.rank] = one
        return holders


@dataclass(frozen=True, slots=True)
class Hold:
    """This pod has a rank."""

    rank: int


@dataclass(frozen=True, slots=True)
class RankAll:
    """Write the first ranking; decide again if another pod was faster."""

    first: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class RankWait:
    """This pod has to wait."""

    why: str
    is_surplus: bool = False
    """Whether all ranks are taken by live pods: this pod is one too many until another ends."""


Decision = Hold | RankAll | TakeRank | RankWait


def decide(me: str, peers: Iterable[Peer], record: RankRecord, nodes: int, silent: Iterable[str] = ()) -> Decision:
    """What the pod `me` is to do; `silent` are names of pods that are neither live nor gone yet.

    Those have no address yet, or were not watched for long enough.
    """
    live = {peer.name: peer for peer in peers if peer.is_live}
    if not record.first:
        return _rank_all(live, nodes)
    holders = record.holders()
    if own := [rank for rank, one in holders.items() if one.name == me]:
        return Hold(min(own))
    maybe_live = {*live, *silent}
    free = [rank for rank, one in sorted(holders.items()) if one.name not in maybe_live]
    if free:
        # Several replacements at once try different ranks first, so that they seldom collide.
        waiting = sorted({*live, me} - {one.name for one in holders.values()})
        rank = free[waiting.index(me) % len(free)]
        return TakeRank(rank, holders[rank].turn + 1, me)
    names = ", ".join(one.name for _, one in sorted(holders.items()))
    return RankWait(f"all {len(holders)} ranks belong to pods that live: {names}", is_surplus=True)


def _rank_all(live: Mapping[str, Peer], nodes: int) -> Decision:
    if len(live) < nodes:
        return RankWait(f"{len(live)} of {nodes} pods are there")
    ranked = sorted(live.values(), key=lambda peer: (ipaddress.ip_address(peer.ip), peer.name))
    return RankAll(tuple(peer.name for peer in ranked[:nodes]))


class SignsOfLife:
    """Which pods live, judged by numbers that they keep changing; uses only the reader's clock, which is passed in.

    A pod lives if its number has changed within `patience_s`, and is gone if it has not; one that was watched for less
    and has not changed yet is unsure.
    """

    def __init__(self, patience_s: float) -> None:
        self._patience_s = patience_s
        self._seen: dict[str, tuple[int, float, bool]] = {}
        """By name: the number, since when, and whether it has changed since the first look."""

    def see(self, beats: Mapping[str, int], now_s: float) -> None:
        before = self._seen
        self._seen = {
            name: before[name] if name in before and before[name][0] == beat else (beat, now_s, name in before)
            for name, beat in beats.items()
        }

    def living(self, now_s: float) -> set[str]:
        """Those whose number has changed lately."""
        return {name for name, (_, at_s, moves) in self._seen.items() if moves and now_s - at_s < self._patience_s}

    def unsure(self, now_s: float) -> set[str]:
        """Those that were not watched for long enough to judge."""
        return {name for name, (_, at_s, moves) in self._seen.items() if not moves and now_s - at_s < self._patience_s}
