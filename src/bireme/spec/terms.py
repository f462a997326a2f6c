"""What all processes of a job agree on; each item is declared here and nowhere else.

A `Job` and a trainer's flags both yield `JobTerms`. A trainer that has checked its program sends `Facts` to the
coordinator, which compares those of all trainers and hands them to the pservers.
"""

from __future__ import annotations

import msgspec

from bireme.spec.model import Optimizer, Parameter, Snapshots, Updates, Wire


class JobTerms(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a job asks for, whatever its program."""

    name: str
    shards: int
    pservers: int
    trainers: int
    """With shards, 0 for trainers started by hand: as many as pserver 0 was started for."""
    ports_num: int
    """Dense lanes of each pserver."""
    ports_num_for_sparse: int
    """Sparse lanes of each pserver."""
    passes: int
    """With those before `start_pass`."""
    seed: int
    output: str
    connect_timeout_s: float
    """How long to wait for a lost process."""
    updates: Updates | None = None
    """None leaves it to the program."""
    wire: Wire = Wire()
    snapshots: Snapshots = Snapshots()
    data_fingerprint: str = ""
    """A hash of the shards' layout; the runner sets it."""
    is_resumed: bool = False
    """Resume from the newest snapshot in the output directory."""
    accepts_changes: bool = False
    """Resume also if the program, the data or the rules have changed."""
    start_pass: int = 0
    stop_after: int = 0
    """Passes without a lower test cost after which the job ends; 0: never early."""
    run_incarnation: int = msgspec.field(default=0, name="since")
    """The runner's, in files and messages `since`; lower incarnations, and their snapshots, belong to earlier runs."""


class Facts(JobTerms, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The terms with the checked program, and the model that it starts from."""

    program: str
    fingerprint: str
    """Hash of what is computed and by which bireme: trainers that compute differently must not train together."""
    parameters: tuple[Parameter, ...]
    optimizer: Optimizer
    batch_size: int
    evals: tuple[str, ...]
    updates: Updates = Updates()
    is_set_by_trainer: bool = False
    """Values come from a saved model that trainer 0 sends, not from the generator."""
    start_samples: int = 0
    """Samples that the saved model has seen."""


def terms_in(terms: JobTerms) -> dict[str, object]:
    """The terms by name, without what else a struct has."""
    return {name: getattr(terms, name) for name in JobTerms.__struct_fields__}
