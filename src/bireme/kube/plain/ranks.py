"""Which pod of a plain Job is which node: decided from the pods that live and a record that all of them share. No I/O.

The pods of a plain Job are all alike. The first of them that sees as many live ones as there are nodes ranks them by
address and writes that down, once: the first writer wins. From then on a rank belongs to whoever took it last. A
replacement takes the rank of a pod that is gone, by a file that can be made only once, so no two take the same. A pod
that merely is started again finds itself in the record.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

FINISHED = ("Succeeded", "Failed")


@dataclass(frozen=True, slots=True)
class Peer:
    """A pod of the Job as it was last seen."""

    name: str
    """Its identity: no two pods of a Job are ever called the same, and every pod knows its own without asking."""
    ip: str = ""
    phase: str = "Running"
    is_deleted: bool = False
    """Whether it was told to go; it may never hear that, so it does not count even while it runs."""

    @property
    def is_live(self) -> bool:
        """Whether it takes part, or soon will."""
        return bool(self.ip) and self.may_live

    @property
    def may_live(self) -> bool:
        """Whether it is not known to be gone: its container can run before the cluster has learnt its address."""
        return self.phase not in FINISHED and not self.is_deleted


@dataclass(frozen=True, slots=True)
class Taken:
    """Somebody has taken a rank; a later turn counts more than an earlier one."""

    rank: int
    turn: int
    name: str


@dataclass(frozen=True, slots=True)
class RankRecord:
    """What is written down so far."""

    first: Sequence[str] = ()
    """The names that were ranked first, by rank; empty as long as nobody has."""
    taken: Sequence[Taken] = field(default=())

    def holders(self) -> dict[int, Taken]:
        """Who has each rank."""
        found = {rank: Taken(rank, 0, name) for rank, name in enumerate(self.first)}
        for one in sorted(self.taken, key=lambda one: one.turn):
            found[one.rank] = one
        return found


@dataclass(frozen=True, slots=True)
class Hold:
    """This pod has a rank."""

    rank: int


@dataclass(frozen=True, slots=True)
class RankAll:
    """Write this down, unless somebody has been faster; then look again."""

    first: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Take:
    """Take a rank that is free, unless somebody has been faster; then look again."""

    taken: Taken


@dataclass(frozen=True, slots=True)
class Wait:
    """Nothing can be done yet."""

    why: str
    is_surplus: bool = False
    """Whether all ranks have somebody: there is one pod too many, until another has left."""


Decision = Hold | RankAll | Take | Wait


def decide(me: str, peers: Iterable[Peer], record: RankRecord, nodes: int, silent: Iterable[str] = ()) -> Decision:
    """What the pod called `me` is to do; `silent` are names that cannot be told to be gone yet.

    One that has not been looked at for long enough, or has no address yet, is neither live nor gone.
    """
    live = {peer.name: peer for peer in peers if peer.is_live}
    if not record.first:
        return _rank_all(live, nodes)
    holders = record.holders()
    own = [rank for rank, one in holders.items() if one.name == me]
    if own:
        return Hold(min(own))
    unsure = set(silent)
    free = [rank for rank, one in sorted(holders.items()) if one.name not in live and one.name not in unsure]
    if free:
        # Several replacements at once begin with different ranks, so that they seldom meet.
        waiting = sorted((set(live) | {me}) - {one.name for one in holders.values()})
        rank = free[waiting.index(me) % len(free)]
        return Take(Taken(rank, holders[rank].turn + 1, me))
    return Wait(f"all {len(holders)} ranks belong to pods that live: {_names(holders)}", is_surplus=True)


def _rank_all(live: Mapping[str, Peer], nodes: int) -> Decision:
    if len(live) < nodes:
        return Wait(f"{len(live)} of {nodes} pods are there")
    ranked = sorted(live.values(), key=lambda peer: (ipaddress.ip_address(peer.ip), peer.name))
    return RankAll(tuple(peer.name for peer in ranked[:nodes]))


def _names(holders: Mapping[int, Taken]) -> str:
    return ", ".join(one.name for _, one in sorted(holders.items()))


class SignsOfLife:
    """Who lives, told by numbers that pods keep changing. No clock but the reader's own, which is passed in.

    A pod lives if its number has changed lately; it is gone if it has not for long; before either is known, nothing is.
    """

    def __init__(self, patience_s: float) -> None:
        self._patience_s = patience_s
        self._seen: dict[str, tuple[int, float, bool]] = {}

    def see(self, beats: Mapping[str, int], now_s: float) -> None:
        """Take what is there now."""
        for name, beat in beats.items():
            before = self._seen.get(name)
            if before is None:
                self._seen[name] = (beat, now_s, False)
            elif before[0] != beat:
                self._seen[name] = (beat, now_s, True)
        for name in set(self._seen) - set(beats):
            del self._seen[name]

    def living(self, now_s: float) -> set[str]:
        """Those whose number has changed lately."""
        return {name for name, (_, at_s, moves) in self._seen.items() if moves and now_s - at_s < self._patience_s}

    def unsure(self, now_s: float) -> set[str]:
        """Those that have not been looked at for long enough to tell."""
        return {name for name, (_, at_s, moves) in self._seen.items() if not moves and now_s - at_s < self._patience_s}
