"""The manifest, which commits a snapshot: one JSON file with its parts, their hashes, and the job's inputs.

It lies beside the parts as `manifest.json`, `{"sha256": …, "manifest": {…}}`; the hash covers the inner object's bytes
as they stand, so a flipped digit is found like one in a part. Its round and view must be those of the directory's name:
a manifest copied from another snapshot is refused.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Annotated

import msgspec

from bireme.core.errors import SnapshotError
from bireme.ps.lanes.progress import ShardTotals
from bireme.ps.lanes.rounds import PassTotals
from bireme.ps.snapshot.snapshot_files import snapshot_name
from bireme.spec.model import Optimizer, Parameter, Updates, Wire

VERSION = 1
MANIFEST = "manifest.json"
_FileName = Annotated[str, msgspec.Meta(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,200}$")]
_SnapshotName = Annotated[str, msgspec.Meta(pattern=r"^[0-9]{12}-[0-9a-f]{16}$")]
_Hash = Annotated[str, msgspec.Meta(pattern=r"^[0-9a-f]{64}$")]
_Count = Annotated[int, msgspec.Meta(ge=0)]
_DIGITS = 12
"""Digits of a hash in messages."""


class PartRecord(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One file of a snapshot, as written."""

    file: _FileName
    sha256: _Hash
    nbytes: _Count
    pserver: _Count
    """The pserver that wrote it; of a trainer's part, the trainer's number."""


class Inputs(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The inputs that determine the job's result: a snapshot of other inputs belongs to another job."""

    program: str
    data: str
    rules: str
    shards: int
    seed: int


class EndedPass(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The totals of an ended pass, shard by shard."""

    pass_id: int
    samples: int
    """Of all passes so far."""
    shards: dict[int, ShardTotals]

    @classmethod
    def of(cls, totals: PassTotals) -> EndedPass:
        shards = {shard: ShardTotals.of(own) for shard, own in totals.shards.items()}
        return cls(pass_id=totals.pass_id, samples=totals.samples, shards=shards)

    def totals(self) -> PassTotals:
        shards = {shard: sums.totals() for shard, sums in self.shards.items()}
        return PassTotals(self.pass_id, self.samples, shards, {})


class Manifest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A committed cut: its position, inputs and files."""

    version: int = VERSION
    job: str
    round: _Count
    pass_id: _Count
    batch: _Count
    samples: _Count
    view: _Count
    incarnation: _Count
    created: float = 0.0
    """Seconds since 1970."""
    inputs: Inputs
    pservers: int
    dense_lanes: int
    sparse_lanes: int
    parts: tuple[PartRecord, ...]
    base: tuple[_SnapshotName, ...] = ()
    """Earlier snapshots that incremental parts build on: all of them, oldest first."""
    ended: EndedPass | None = None
    """The totals of the pass that ended with this cut, if one did: lanes have reset theirs."""

    @property
    def name(self) -> str:
        return snapshot_name(self.round, self.view)


class _Sealed(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    sha256: str
    manifest: msgspec.Raw


class _Versioned(msgspec.Struct, frozen=True):
    version: int


def seal(content: msgspec.Struct, key: str = "manifest") -> bytes:
    """A file with this content: readable, and with a hash of itself."""
    body = msgspec.json.format(msgspec.json.encode(content), indent=2)
    return b'{"sha256": "%b", "%b": %b}\n' % (hashlib.sha256(body).hexdigest().encode(), key.encode(), body)


def unseal(data: bytes, name: str) -> Manifest:
    """Read the manifest of the snapshot of that name; errors only say what is wrong, the caller adds the name."""
    try:
        sealed = msgspec.json.decode(data, type=_Sealed)
        body = bytes(sealed.manifest)
        if hashlib.sha256(body).hexdigest() != sealed.sha256:
            raise SnapshotError("its manifest is flipped: it does not have its hash")
        # Checked first: a newer version may have unknown fields.
        version = msgspec.json.decode(body, type=_Versioned).version
        if version != VERSION:
            raise SnapshotError(f"its manifest has format {version}, this bireme reads format {VERSION}")
        manifest = msgspec.json.decode(body, type=Manifest)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as e:
        raise SnapshotError(f"its manifest is torn or foreign: {e}") from e
    if manifest.name != name:
        raise SnapshotError(f"its manifest is that of {manifest.name}")
    return manifest


def rules_hash(
    parameters: Sequence[Parameter], optimizer: Optimizer, updates: Updates, wire: Wire | None = None
) -> str:
    """One hash of all settings that determine how gradients become parameters."""
    rules = [[*parameters], optimizer, updates, wire or Wire()]
    return hashlib.sha256(msgspec.json.encode(rules)).hexdigest()


def differences(manifest: Manifest, inputs: Inputs) -> list[str]:
    """Describe each difference between a snapshot's inputs and these; the number of lanes may change freely."""
    then = manifest.inputs
    changes = []
    for what, were, now in (
        ("the program was", then.program, inputs.program),
        ("the data was", then.data, inputs.data),
        ("the rules of parameters, optimizer and updates were", then.rules, inputs.rules),
    ):
        if were != now:
            changes.append(f"{what} {were[:_DIGITS]}, now {now[:_DIGITS]}")
    if then.shards != inputs.shards:
        changes.append(f"there were {then.shards} shards, now {inputs.shards}")
    if then.seed != inputs.seed:
        changes.append(f"the seed was {then.seed}, now {inputs.seed}")
    return changes
