"""What commits a snapshot: one JSON file that names its parts with their hashes, and what the job was made from.

The manifest lies beside its parts as `manifest.json`, `{"sha256": …, "manifest": {…}}`, the hash being of the inner
object's bytes as they stand: a flipped digit in it is found like one in a part. Its round and its view must be
those of its directory's name, so that a manifest from elsewhere is not taken for this one.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Annotated

import msgspec

from bireme.core.errors import SnapshotError
from bireme.ps.lanes.progress import Sums
from bireme.ps.lanes.rounds import PassTotals
from bireme.ps.snapshot.snapshot_files import snapshot_name
from bireme.spec.model import Optimizer, Parameter, Updates, Wire

VERSION = 1
MANIFEST = "manifest.json"
_FileName = Annotated[str, msgspec.Meta(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,200}$")]
_SnapshotName = Annotated[str, msgspec.Meta(pattern=r"^[0-9]{12}-[0-9a-f]{16}$")]
_Hash = Annotated[str, msgspec.Meta(pattern=r"^[0-9a-f]{64}$")]
_Count = Annotated[int, msgspec.Meta(ge=0)]
_SHOWN = 12
"""Digits of a hash that are enough to tell two apart."""


class PartRecord(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One file of a snapshot as it was when it was written."""

    file: _FileName
    sha256: _Hash
    nbytes: _Count
    pserver: _Count
    """Who wrote it; of a trainer's part, the trainer's number."""


class Inputs(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What the job's result is a function of: a snapshot of other inputs is of another job."""

    program: str
    """Fingerprint of what is computed."""
    data: str
    """Fingerprint of the shards."""
    rules: str
    """`rules_hash` of how parameters are updated."""
    shards: int
    seed: int


class EndedPass(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a pass came to, shard by shard."""

    pass_id: int
    samples: int
    """Of all passes so far."""
    shards: dict[int, Sums]

    @classmethod
    def of(cls, totals: PassTotals) -> EndedPass:
        """From what lane 0 told."""
        shards = {shard: Sums.of(own) for shard, own in totals.shards.items()}
        return cls(pass_id=totals.pass_id, samples=totals.samples, shards=shards)

    def totals(self) -> PassTotals:
        """What lane 0 told."""
        shards = {shard: sums.totals() for shard, sums in self.shards.items()}
        return PassTotals(self.pass_id, self.samples, shards, {})


class Manifest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A committed cut: where it was taken, from what, and the files that hold it."""

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
    """The pass that ended with this cut, if one did: what it came to is in no lane any more."""

    @property
    def name(self) -> str:
        """The snapshot's directory."""
        return snapshot_name(self.round, self.view)


class _Sealed(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    sha256: str
    manifest: msgspec.Raw


class _Versioned(msgspec.Struct, frozen=True):
    version: int


def seal(manifest: Manifest) -> bytes:
    """The manifest's file: readable, and with a hash of itself."""
    body = msgspec.json.format(msgspec.json.encode(manifest), indent=2)
    return b'{"sha256": "%b", "manifest": %b}\n' % (hashlib.sha256(body).hexdigest().encode(), body)


def unseal(data: bytes, name: str) -> Manifest:
    """Read the manifest of the snapshot of that name; the message of a refusal says only what is wrong."""
    try:
        sealed = msgspec.json.decode(data, type=_Sealed)
        body = bytes(sealed.manifest)
        if hashlib.sha256(body).hexdigest() != sealed.sha256:
            raise SnapshotError("its manifest is flipped: it does not have its hash")
        # A newer version may have fields that we do not know, so it is looked at first.
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
    """One hash of all that decides how gradients become parameters."""
    rules = [[*parameters], optimizer, updates, wire or Wire()]
    return hashlib.sha256(msgspec.json.encode(rules)).hexdigest()


def differences(manifest: Manifest, inputs: Inputs) -> list[str]:
    """In words, what the job is made from now that the snapshot was not; the number of lanes may change freely."""
    then = manifest.inputs
    found = []
    for what, were, now in (
        ("the program was", then.program, inputs.program),
        ("the data was", then.data, inputs.data),
        ("the rules of parameters, optimizer and updates were", then.rules, inputs.rules),
    ):
        if were != now:
            found.append(f"{what} {were[:_SHOWN]}, now {now[:_SHOWN]}")
    if then.shards != inputs.shards:
        found.append(f"there were {then.shards} shards, now {inputs.shards}")
    if then.seed != inputs.seed:
        found.append(f"the seed was {then.seed}, now {inputs.seed}")
    return found
