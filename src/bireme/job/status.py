"""The status of a job: one struct from the coordinator to every reader.

It travels as a control message, as `status.json` in the output directory, in a run's `record.json`, as an annotation
of a Kubernetes Job, and as `bireme status --json`. A reader may meet the status of another version: unknown fields are
ignored, and missing ones have their defaults.
"""

from __future__ import annotations

from typing import Literal, get_args

import msgspec
from msgspec import UNSET, UnsetType

Ending = Literal["finished", "failed", "cancelled"]
"""The ways in which a job ends."""
ENDED: tuple[Ending, ...] = get_args(Ending)


class PassSummary(msgspec.Struct, frozen=True, kw_only=True):
    """The results of a finished pass: means, not sums."""

    pass_id: int
    round: int
    """The round that ended the pass."""
    samples: int
    samples_so_far: int
    """With those of all passes before it."""
    seconds: float
    cost: float
    evals: dict[str, float]
    test_samples: int = 0
    test_cost: float | None = None
    """null where the job does not test, or where the cost is not finite."""
    test_evals: dict[str, float] = {}
    staleness: dict[str, int] = {}
    """Updates by how many batches their shard was ahead of the slowest; empty in sync and local mode."""
    wire_error: float = 0.0
    """The largest share of a gradient's norm so far that the wire's coding changed or held back."""
    spent: dict[str, float] = {}
    """Seconds since the pass before, by activity of trainer 0, which alone tests and saves."""

    @property
    def error(self) -> float | None:
        """The first evaluator, which for classifiers is the error rate."""
        return next(iter(self.evals.values()), None)

    @property
    def test_error(self) -> float | None:
        """The first evaluator on the test data."""
        return next(iter(self.test_evals.values()), None)


class TrainerStatus(msgspec.Struct, frozen=True, kw_only=True, rename={"pass_id": "pass"}):
    """A connected trainer and its last progress; costs and evaluators are means over this pass so far."""

    trainer: int
    pid: int = 0
    host: str = ""
    silent_s: float = 0.0
    """Seconds since its last message."""
    pass_id: int | UnsetType = UNSET
    """Absent before its first progress; the fields below are 0 then."""
    batch: int = 0
    """How many batches of this pass it has trained."""
    batches: int = 0
    """How many batches this pass has."""
    samples: int = 0
    cost: float = 0.0
    evals: tuple[float, ...] = ()
    rate: float = 0.0
    """Samples per second."""


class PserverStatus(msgspec.Struct, frozen=True, kw_only=True):
    """A pserver that takes part."""

    pserver: int
    host: str = ""
    ports: tuple[int, ...] = ()
    """Dense lanes' ports, then sparse lanes' ports."""
    silent_s: float = 0.0
    """Seconds since its last message."""


class JobStatus(msgspec.Struct, frozen=True, kw_only=True, rename={"pass_id": "pass"}):
    """How a job is doing, by its coordinator. Without a phase: it has not reported yet."""

    phase: str = ""
    """starting, gathering, setting-up, training, finished, failed or cancelled."""
    reason: str = ""
    """Why the job ended."""
    job: str = ""
    """The job's name."""
    view: int = 0
    """The number of the membership: another one after each loss."""
    seconds: float = 0.0
    """Since the job began to train."""
    first_pass: int = 0
    """The first pass of this run."""
    passes: int = 0
    """How many passes this run is to have."""
    pass_id: int = 0
    """The pass of the trainer that is farthest ahead."""
    round: int = 0
    """The round of the trainer that is farthest ahead."""
    trainers: tuple[TrainerStatus, ...] = ()
    trainers_missing: tuple[int, ...] = ()
    """Ranks that have not joined."""
    pservers: tuple[PserverStatus, ...] = ()
    waits_for: tuple[str, ...] = ()
    """Members that hold the job up, each with what is wrong with it."""
    stragglers: tuple[str, ...] = ()
    """Members that are slower than all others, among them those that the job can do without for now."""
    losses: tuple[str, ...] = ()
    """Members that were lost and are not back yet."""
    passes_done: tuple[PassSummary, ...] = ()
    """Passes that this run finished; on a cluster, the newest 20."""
    saved: int = -1
    """The last pass whose model is on disk; -1: none."""
    snapshot: int | None = None
    """The round of the newest snapshot."""
    snapshot_wanted: bool = False
    """Whether a snapshot was requested that is not saved yet."""
    warnings: tuple[str, ...] = ()
    """Problems that do not stop training, but need attention."""
    version: str | UnsetType = UNSET
    """On a cluster: the version of bireme in the image."""
    error: dict[str, str] | UnsetType | None = UNSET
    """On a cluster: what the job has failed with, as kind, what, why and fix."""
    certificate_until: float | UnsetType = UNSET
    """On a cluster: when the job's certificate expires, in seconds since 1970."""

    @property
    def ending(self) -> Ending | None:
        """How the job ended; None while it has not."""
        return next((each for each in ENDED if each == self.phase), None)

    @property
    def done(self) -> int:
        """How many passes of the job are done, over all its runs."""
        return max(self.saved + 1, self.first_pass + len(self.passes_done))

    @property
    def total(self) -> int:
        """How many passes the job is to have, over all its runs; 0 where that is unknown."""
        return self.first_pass + self.passes

    @property
    def samples_per_s(self) -> float:
        return sum(trainer.rate for trainer in self.trainers)


def decode_status(data: bytes | str) -> JobStatus:
    """A status from JSON; an empty one where the text is not a status."""
    try:
        return msgspec.json.decode(data, type=JobStatus)
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return JobStatus()
