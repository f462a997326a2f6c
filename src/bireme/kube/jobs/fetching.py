"""Fetch a job's models and logs from its volume into a directory here, and never overwrite other files.

A marker in the directory names the job and the fetched files, so that a later fetch may replace exactly those.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from bireme.core.errors import ModelError, OutputExistsError, UsageError
from bireme.core.files import storage_errors, write_atomic
from bireme.core.text import first_of
from bireme.job.output.model import model_hash
from bireme.kube.api.client import CLAIM, Cluster
from bireme.kube.api.fields import meta
from bireme.kube.jobs.volumes import JobFiles
from bireme.kube.volume import transfer
from bireme.kube.volume.helper_pod import VolumePod

Value = TypeVar("Value")
STAYS = ("snapshots/", "run/")
"""Files that are of use only where the job runs."""
MARKER = ".bireme-fetched.json"


class FetchMark(msgspec.Struct, frozen=True):
    """From which job on which cluster files were fetched, so that a later fetch may replace them by newer ones."""

    server: str
    namespace: str
    job: str
    volume: str
    """The uid of its claim: a claim that was deleted and created again is another volume."""
    output: str
    files: tuple[str, ...] = ()

    def is_of(self, other: FetchMark) -> bool:
        """Whether both are of one job and one run of it; a cluster may be known under several addresses."""
        return msgspec.structs.replace(other, server=self.server, files=self.files) == self


@dataclass(frozen=True, slots=True)
class Fetched:
    """The result of a fetch."""

    job: str
    directory: Path
    models: list[str]
    transfer: transfer.Transfer
    hash: str | None
    """Of the last model; None where it is incomplete or has no hash."""
    note: str = ""
    """Why the last model has no hash."""


def fetch(
    cluster: Cluster,
    files: JobFiles,
    directory: Path,
    *,
    wants_all: bool = False,
    only_model: bool = False,
    fix: str = "",
    on_progress: Callable[[int, int], None] | None = None,
) -> Fetched:
    """Fetch a job's files; those that exist with the same content are skipped, and partial ones are resumed."""
    with VolumePod(cluster, files.place) as pod:
        wanted = chosen(transfer.listing(pod, files.output), wants_all=wants_all, only_model=only_model)
        if not wanted:
            what = f"{files.name} has left nothing yet in {files.output} on the volume {files.place.claim}"
            raise UsageError(what, fix=fix)
        volume = meta(cluster.get(CLAIM, files.place.claim)).get("uid", "")
        origin = FetchMark(cluster.server, cluster.namespace, files.name, volume, files.output)
        may_replace = may_replace_in(directory, wanted, origin)
        done = transfer.fetch(pod, files.output, wanted, directory, on_progress, agree=may_replace)
    models = sorted({Path(name).parts[0] for name in wanted if name.startswith("pass-")})
    digest, note = None, ""
    if models and f"{models[-1]}/done" in wanted:
        try:
            digest = model_hash(directory / models[-1])
        except ModelError as e:
            note = e.what
    return Fetched(files.name, directory, models, done, digest, note)


def may_replace_in(directory: Path, wanted: Collection[str], origin: FetchMark) -> transfer.Agree:
    """A check that refuses to replace files of a directory that were not fetched from the same job before.

    Where it passes it writes the marker; it runs again after each lost connection.
    """

    def check(changed: list[str]) -> None:
        then = _read(directory / MARKER, FetchMark)
        is_same = then is not None and then.is_of(origin) and not _has_run_here(directory, origin)
        known = set(then.files) if then is not None and is_same else set()
        foreign = sorted(set(changed) - known)
        if foreign:
            raise _in_the_way(directory, foreign, origin, then)
        now = msgspec.structs.replace(origin, files=tuple(sorted(known | set(wanted))))
        if now != then:
            with storage_errors(str(directory)):
                directory.mkdir(parents=True, exist_ok=True)
            write_atomic(directory / MARKER, msgspec.json.format(msgspec.json.encode(now), indent=2) + b"\n")

    return check


def _read(path: Path, kind: type[Value]) -> Value | None:
    try:
        return msgspec.json.decode(path.read_bytes(), type=kind)
    except (OSError, msgspec.MsgspecError):
        return None


def _has_run_here(directory: Path, origin: FetchMark) -> bool:
    """Whether the directory is a local run's output, also of one that resumed what was fetched."""
    job = _read(directory / "job.json", dict[str, Any])
    return job is not None and job.get("output") != origin.output


def _in_the_way(directory: Path, names: list[str], origin: FetchMark, then: FetchMark | None) -> OutputExistsError:
    why = "they were not fetched from this job, and would be overwritten"
    if _has_run_here(directory, origin):
        why = "the directory is the output of another run, and would be mixed with this one"
    elif then is not None and not then.is_of(origin):
        why = f"they were fetched from another run, of {then.job} in the namespace {then.namespace} of {then.server}"
    return OutputExistsError(
        f"{directory} has files that differ from those of {origin.job}: {first_of(names, 3)}",
        why=why,
        fix="name another directory; nothing was written",
    )


def chosen(files: dict[str, int], *, wants_all: bool, only_model: bool) -> dict[str, int]:
    own = {name: n for name, n in files.items() if not name.startswith(".") and "/." not in name}
    if only_model:
        last = max((name.partition("/")[0] for name in own if name.startswith("pass-")), default="none")
        return {name: n for name, n in own.items() if name.startswith(f"{last}/")}
    return own if wants_all else {name: n for name, n in own.items() if not name.startswith(STAYS)}
