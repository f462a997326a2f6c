"""Checks a job's output directory: reads all files, compares each with the others, changes nothing.

A pass that ends leaves a model with its `metrics.json`, then rows in `ledger.jsonl`, then a line in `metrics.jsonl`.
A job that was killed may lack such a line, and the rows of its last pass as long as there is a snapshot from which
they would be written again. Any other disagreement is a fault. A pass holds parameters twice, in the original's
files and in `model.safetensors`, so that a change of one shows. Snapshots carry hashes; an uncommitted one is no fault,
as no process uses it. Each part of a snapshot has the counts of its lanes (`snapshots.counts_in`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Literal, TypeVar

import msgspec
import numpy as np

from bireme.core.errors import ModelError, SnapshotError, SpecError, UsageError
from bireme.core.text import first_of
from bireme.job.node.entry import read_job
from bireme.job.node.failure_reports import STATUS_FILE
from bireme.job.output import snapshots
from bireme.job.output.manifest import MANIFEST, Manifest
from bireme.job.output.model import Array, config_name, hash_values, load_values, pass_name
from bireme.spec.job import Job

JOB, LEDGER, METRICS, SNAPSHOTS = "job.json", "ledger.jsonl", "metrics.jsonl", "snapshots"
_FROM_COPY = "bring it back from a copy"
_T = TypeVar("_T")
_Number = Annotated[int, msgspec.Meta(ge=0)]
_LISTED = 8  # numbers of a list that messages show


@dataclass(frozen=True, slots=True)
class PathCheck:
    """The result for one path in the output directory; of a fault also what it means and how to fix it."""

    where: str
    state: Literal["good", "note", "bad"]
    what: str
    means: str = ""
    fix: str = ""


@dataclass(frozen=True, slots=True)
class SnapshotFound:
    """A directory of `snapshots`; numbers are None where no manifest has them."""

    name: str
    state: Literal["whole", "broken", "not committed"]
    round: int | None = None
    pass_id: int | None = None
    batch: int | None = None


@dataclass(frozen=True, slots=True)
class PassFound:
    """A pass: the samples applied according to the ledger, and its model's hash, '' if that is not whole."""

    pass_id: int
    is_sound: bool
    samples: int | None
    hash: str


@dataclass(slots=True)
class Verdict:
    """All findings, in the order in which to print them."""

    output: Path
    job: Job | None = None
    phase: str = ""
    """How the job ended; or `running`, `died` (without a final status) or `unknown`."""
    findings: list[PathCheck] = field(default_factory=list)
    snapshots: list[SnapshotFound] = field(default_factory=list)
    passes: list[PassFound] = field(default_factory=list)
    resume_from: SnapshotFound | None = None
    """What `bireme resume` would resume from: one without a name is the beginning; None if it is over or cannot."""

    def add(self, where: str, state: Literal["good", "note"], what: str) -> None:
        self.findings.append(PathCheck(where, state, what))

    def blame(self, where: str, what: str, *, means: str, fix: str = _FROM_COPY) -> None:
        self.findings.append(PathCheck(where, "bad", what, means, fix))

    @property
    def problems(self) -> list[PathCheck]:
        return [f for f in self.findings if f.state == "bad"]


class _Status(msgspec.Struct, frozen=True):
    phase: str
    reason: str = ""


class _Row(msgspec.Struct, frozen=True, kw_only=True):
    pass_id: _Number = msgspec.field(name="pass")
    shard: _Number
    read: _Number
    trained: _Number
    applied: _Number


class _PassLine(msgspec.Struct, frozen=True):
    """A line of metrics.jsonl, or a pass's own metrics.json."""

    event: str = ""
    pass_id: int = -1
    samples: int = -1


@dataclass(slots=True)
class _Journal:
    """The contents of ledger.jsonl and metrics.jsonl by pass."""

    rows: dict[int, list[_Row]] = field(default_factory=dict)
    samples: dict[int, set[int]] = field(default_factory=dict)
    """Samples according to metrics.jsonl: a line that was repeated after a crash must agree with the first."""
    open_pass: int = -1
    """The last pass, if its ledger rows are still being written or would be written when the job is resumed."""


def verify(output: Path, *, is_running: bool = False) -> Verdict:
    """Check a job's output directory; rows that a running job is about to write are not missed."""
    _refuse_other_directories(output)
    verdict, journal = Verdict(output), _Journal()
    _check_job(verdict, is_running=is_running)
    good = _check_snapshots(verdict)
    models = {int(p.name[5:]) for p in output.glob("pass-" + "[0-9]" * 5) if p.is_dir()}
    verdict.resume_from = _resume_point(verdict, good, models)
    last = max(models, default=-1)
    # A job resumed from the newest snapshot reaches the end of that pass, or begins there.
    repeats_end = good and (good[0].pass_id <= last or (good[0].ended is not None and good[0].ended.pass_id == last))
    if is_running or (verdict.phase != "finished" and repeats_end):
        journal.open_pass = last
    _read_ledger(verdict, journal)
    _read_metrics(verdict, journal)
    passes = models | set(journal.rows)
    if verdict.phase == "finished" and verdict.job is not None and not verdict.job.stop_after:
        passes.add(verdict.job.passes - 1)
    before = min(passes, default=0) - 1
    for pass_id in sorted(passes):
        if pass_id > before + 1:
            verdict.blame(LEDGER, f"no pass between {before} and {pass_id}", means="neither rows nor models are left")
        before = pass_id
        _check_pass(verdict, journal, pass_id)
    _check_counts(verdict, journal, good)
    if journal.rows and all(problem.where != LEDGER for problem in verdict.problems):
        rows = _count(sum(map(len, journal.rows.values())), "row")
        verdict.add(LEDGER, "good", f"{rows}, passes {min(journal.rows)} to {max(journal.rows)}, every sample once")
    return verdict


def _refuse_other_directories(output: Path) -> None:
    if not output.is_dir():
        raise UsageError(f"there is no directory {output}", fix="name a job's output directory")
    if not (output / JOB).is_file():
        near = [p for p in (output / "output", output.absolute().parent) if (p / JOB).is_file()]
        fix = f"did you mean {near[0]}?" if near else "name the directory with pass-00000"
        raise SpecError(f"{output} is not a job's output: there is no {output / JOB}", fix=fix)


def _check_job(verdict: Verdict, *, is_running: bool) -> None:
    try:
        job = verdict.job = read_job(verdict.output / JOB)
        verdict.add(JOB, "good", f"{job.name}, {job.shards} shards, passes {job.start_pass} to {job.passes - 1}")
    except (SpecError, UnicodeDecodeError) as e:
        verdict.blame(JOB, f"it cannot be read: {e.__cause__ or e}", means="`bireme resume` cannot start the job")
    try:
        status = msgspec.json.decode((verdict.output / STATUS_FILE).read_bytes(), type=_Status)
    except FileNotFoundError:
        verdict.phase = "running" if is_running else "died"
        verdict.add(STATUS_FILE, "note", "the job runs now" if is_running else "not there: the job was killed")
    except (msgspec.MsgspecError, UnicodeDecodeError) as e:
        verdict.phase = "unknown"
        fix = "remove it; the end of node_0/server.log shows how the job ended"
        means = "it does not show whether the job finished"
        verdict.blame(STATUS_FILE, f"it cannot be read: {e}", means=means, fix=fix)
    else:
        verdict.phase = status.phase
        verdict.add(STATUS_FILE, "good" if status.phase == "finished" else "note", f"{status.phase}: {status.reason}")


def _check_snapshots(verdict: Verdict) -> list[Manifest]:
    """Check all snapshots; returns those that are whole, newest first."""
    place = verdict.output / SNAPSHOTS
    whole, problems = snapshots.check_all(place)
    wrong = {p.name: p.what for p in problems} | {m.name: w for m in whole if (w := _wrong_counts(place, m))}
    good = {m.name: m for m in whole if m.name not in wrong}
    newest = next(iter(good), "")
    manifests = {m.name: m for m in snapshots.candidates(place)[0]}
    # Listed after the check: a snapshot that a running job has deleted since is not missed.
    for name in sorted((p.name for p in place.glob("*") if p.is_dir()), reverse=True):
        where, m = f"{SNAPSHOTS}/{name}", manifests.get(name)
        at = (m.round, m.pass_id, m.batch) if m else ()
        if not (place / name / MANIFEST).exists():
            verdict.snapshots.append(SnapshotFound(name, "not committed"))
            verdict.add(where, "note", "not committed: it has no manifest, so no process uses it")
        elif name in wrong:
            verdict.snapshots.append(SnapshotFound(name, "broken", *at))
            means = f"the newest good one is {newest}" if newest else "no snapshot is left to resume from"
            fix = "remove its directory" if newest else "train again into another output directory"
            verdict.blame(where, wrong[name], means=means, fix=f"bring the file back from a copy, or {fix}")
        elif m is not None and name in good:
            verdict.snapshots.append(SnapshotFound(name, "whole", *at))
            words = f"{_count(len(m.parts), 'part')}, round {m.round}, batch {m.batch} of pass {m.pass_id}"
            verdict.add(where, "good", words + (", the newest good one" if name == newest else ""))
        else:
            verdict.add(where, "note", "not checked: its name is not that of a snapshot, or it is new")
    if not verdict.snapshots and verdict.phase != "running":
        verdict.add(SNAPSHOTS, "note", "there are none: `bireme resume` has nothing to resume from")
    for half in sorted([*verdict.output.glob(".*.tmp"), *place.glob("*/.*.tmp")]):
        where = str(half.relative_to(verdict.output))
        verdict.add(where, "note", "unfinished: no process reads it, and it may be removed")
    return list(good.values())


def _wrong_counts(place: Path, manifest: Manifest) -> str:
    """What is wrong with files whose hashes are right: no parts, or lanes with different counts."""
    try:
        snapshots.counts_in(place / manifest.name, manifest)
    except SnapshotError as e:
        return e.what.replace(f"{place / manifest.name}/", "")
    return ""


def _check_counts(verdict: Verdict, journal: _Journal, good: list[Manifest]) -> None:
    shards = verdict.job.shards if verdict.job else 0
    applied = {
        pass_id: {row.shard: row.applied for row in rows}
        for pass_id, rows in journal.rows.items()
        if sorted(row.shard for row in rows) == list(range(shards))
    }
    for manifest in good:
        with suppress(SnapshotError):  # a running job has just deleted it
            counts = snapshots.counts_in(verdict.output / SNAPSHOTS / manifest.name, manifest)
            if what := snapshots.ledger_differs(manifest, counts, applied):
                means = "an update was lost or applied twice, or one of the two was changed"
                verdict.blame(f"{SNAPSHOTS}/{manifest.name}", what, means=means)


def _resume_point(verdict: Verdict, good: list[Manifest], models: set[int]) -> SnapshotFound | None:
    if verdict.job is None or verdict.phase in ("finished", "running"):
        return None
    if good:
        return SnapshotFound(good[0].name, "whole", good[0].round, good[0].pass_id, good[0].batch)
    # Without a committed snapshot it begins anew, which is refused if the directory has passes.
    begin, last = verdict.job.start_pass, max(models, default=-1)
    can_begin = last < begin and all(s.state == "not committed" for s in verdict.snapshots)
    return SnapshotFound("", "not committed", 0, begin, 0) if can_begin else None


def _lines(path: Path, kind: type[_T]) -> Iterator[tuple[int, _T | None, bool]]:
    """A file's lines: number, content or None if malformed, and whether the line is torn."""
    if not path.is_file():
        return
    decoder = msgspec.json.Decoder(kind)
    with path.open("rb") as f:
        for number, line in enumerate(f, 1):
            content = None
            with suppress(msgspec.MsgspecError, UnicodeDecodeError):
                content = decoder.decode(line)
            yield number, content, not line.endswith(b"\n")


def _read_ledger(verdict: Verdict, journal: _Journal) -> None:
    for number, row, is_torn in _lines(verdict.output / LEDGER, _Row):
        if row is not None:
            journal.rows.setdefault(row.pass_id, []).append(row)
        if is_torn:
            means = "the job was killed while it wrote the line"
            fix = _FROM_COPY if verdict.phase == "finished" else "`bireme resume` removes it before it starts the job"
            verdict.blame(LEDGER, f"line {number}, the last one, is torn", means=means, fix=fix)
        elif row is None:
            verdict.blame(LEDGER, f"line {number} is not a row of a ledger", means="the counts of a shard are lost")


def _read_metrics(verdict: Verdict, journal: _Journal) -> None:
    malformed: list[str] = []
    for number, line, is_torn in _lines(verdict.output / METRICS, _PassLine):
        if line is None or is_torn:
            malformed.append(str(number))
        elif line.event == "pass":
            journal.samples.setdefault(line.pass_id, set()).add(line.samples)
    if malformed:
        verdict.add(METRICS, "note", f"not readable: line {first_of(malformed, _LISTED)}; curves leave that out")


def _check_pass(verdict: Verdict, journal: _Journal, pass_id: int) -> None:
    name, rows, before = pass_name(pass_id), journal.rows.get(pass_id), len(verdict.problems)
    digest, has_model = "", not _was_dropped(verdict, journal, pass_id)
    if (verdict.output / name).is_dir():
        digest = _check_model(verdict, name)
    elif has_model:
        means = "the ledger says that it was saved" if rows else "the job has come further than that"
        verdict.blame(name, f"pass {pass_id} is missing", means=means, fix=f"{_FROM_COPY}; other passes are not harmed")
    if rows and _check_rows(verdict, journal, pass_id):
        _check_totals(verdict, journal, pass_id)
    elif not rows:
        _check_lack_of_rows(verdict, journal, pass_id)
    is_sound, samples = len(verdict.problems) == before, sum(r.applied for r in rows) if rows else None
    verdict.passes.append(PassFound(pass_id, is_sound, samples, digest))
    if is_sound:
        words = f"{_count(samples, 'sample')}, each exactly once; " if samples is not None else ""
        verdict.add(name, "good", words + (f"model {digest[:12]}" if has_model else "its model was not kept"))


def _was_dropped(verdict: Verdict, journal: _Journal, pass_id: int) -> bool:
    """Whether a pass has no model because the job keeps only some, of which the last is always one."""
    is_earlier = pass_id in journal.rows and pass_id < max(journal.rows)
    keeps_some = verdict.job is not None and verdict.job.keep != "all"
    return keeps_some and is_earlier and not (verdict.output / pass_name(pass_id)).is_dir()


def _check_model(verdict: Verdict, name: str) -> str:
    """Compare a model's files with each other; returns its hash, or '' if it is not whole."""
    from safetensors import SafetensorError
    from safetensors.numpy import load_file

    place = verdict.output / name
    fix = "bring the model back from a copy, or move it away and use that of another pass"
    try:
        needed = ("done", "path.txt", config_name(place) or "path.txt")
        if lost := [name for name in needed if not (place / name).is_file()]:
            raise ModelError(f"{place}/{lost[0]} is missing")
        values: dict[str, Array] = load_values(place)
        twins = load_file(place / "model.safetensors")
    except (ModelError, SafetensorError, OSError, UnicodeDecodeError) as e:
        what = e.what if isinstance(e, ModelError) else f"model.safetensors cannot be read: {e}"
        means = "nothing can be done with this model" if isinstance(e, ModelError) else "a change of it would not show"
        verdict.blame(name, what.replace(f"{place}/", ""), means=means, fix=fix)
        return ""
    for one in sorted({*values, *twins}):
        if what := _difference(one, values.get(one), twins.get(one)):
            verdict.blame(name, what, means="one of the two was changed after the pass was saved", fix=fix)
    return hash_values(values)


def _difference(name: str, own: Array | None, twin: Array | None) -> str:
    if own is None or twin is None:
        return f"{name} is missing" + (", model.safetensors has it" if own is None else " in model.safetensors")
    if (own.size, own.itemsize) != (twin.size, twin.itemsize):
        return f"{name} has {own.size:,} values, in model.safetensors {twin.size:,}"
    bits = f"u{own.itemsize}"  # so that NaN equals itself, and -0.0 is not 0.0
    count = int((own.view(bits) != np.ascontiguousarray(twin).reshape(-1).view(bits)).sum())
    return f"{name} differs from model.safetensors in {count:,} of {own.size:,} values" if count else ""


def _check_lack_of_rows(verdict: Verdict, journal: _Journal, pass_id: int) -> None:
    if pass_id == journal.open_pass:
        verdict.add(LEDGER, "note", f"pass {pass_id} is not there yet: it is written next, or when the job is resumed")
    elif pass_id < min(journal.rows, default=-1) and pass_id not in journal.samples:
        verdict.add(LEDGER, "note", f"pass {pass_id} is not there: it was not trained into this directory")
    elif (verdict.output / pass_name(pass_id)).is_dir():
        verdict.blame(LEDGER, f"pass {pass_id} is missing", means="it is unknown whether its model saw every sample")


def _check_rows(verdict: Verdict, journal: _Journal, pass_id: int) -> bool:
    """Check that every sample read was trained and applied; returns whether every shard is there exactly once."""
    rows, is_open = journal.rows[pass_id], pass_id == journal.open_pass
    often = Counter(row.shard for row in rows)
    everywhere = {row.shard for some in journal.rows.values() for row in some}
    shards = set(range(verdict.job.shards)) if verdict.job else everywhere
    missing = sorted(shards - set(often))
    if missing and is_open and verdict.phase == "running":
        verdict.add(LEDGER, "note", f"pass {pass_id} is just being written")
    elif missing:
        means = "it is unknown whether its model saw their samples"
        fix = "`bireme resume` writes all of this pass again" if is_open else _FROM_COPY
        verdict.blame(LEDGER, f"pass {pass_id} has no row of {_shards(missing)}", means=means, fix=fix)
    if doubles := [s for s, n in sorted(often.items()) if n > 1]:
        means, fix = "it may have counted twice", "if the rows are alike, remove all but one; else use another pass"
        verdict.blame(LEDGER, f"pass {pass_id} has {_shards(doubles)} more than once", means=means, fix=fix)
    if strange := sorted(set(often) - shards):
        verdict.blame(LEDGER, f"pass {pass_id} has {_shards(strange)}", means="the job does not have that shard")
    for row in rows:
        if not row.read == row.trained == row.applied:
            what = f"pass {pass_id}, shard {row.shard}: read {row.read}, trained {row.trained}, applied {row.applied}"
            more = row.applied - row.read
            means = f"its model saw {_count(abs(more), 'sample')} too {'many' if more > 0 else 'few'}"
            means = means if more else "trainers and pservers have counted differently"
            verdict.blame(LEDGER, what, means=means, fix="use another pass, or train again into another directory")
    return not (missing or doubles or strange)


def _check_totals(verdict: Verdict, journal: _Journal, pass_id: int) -> None:
    applied = sum(row.applied for row in journal.rows[pass_id])
    where = f"{pass_name(pass_id)}/metrics.json"
    counts = [(METRICS, samples) for samples in sorted(journal.samples.get(pass_id, ()))]
    if not counts:
        verdict.add(METRICS, "note", f"no line for pass {pass_id}: curves have a gap there")
    try:
        own = msgspec.json.decode((verdict.output / where).read_bytes(), type=_PassLine)
        counts.append((where, own.samples))
        if own.pass_id != pass_id:
            verdict.blame(where, f"it is that of pass {own.pass_id}", means="files of two passes were mixed")
    except (OSError, msgspec.MsgspecError, UnicodeDecodeError) as e:
        if (verdict.output / where).parent.is_dir():
            verdict.blame(where, f"it cannot be read: {e}", means="the results of the pass are lost, its model is not")
    for where, samples in counts:
        if samples != applied:
            what = f"pass {pass_id} has {_count(samples, 'sample')} here and {applied:,} in the ledger"
            verdict.blame(where, what, means="one of the two files was changed, or is of another run")


def _count(number: int, noun: str) -> str:
    return f"{number:,} {noun}" + ("" if number == 1 else "s")


def _shards(numbers: list[int]) -> str:
    return f"shard{'s' if len(numbers) > 1 else ''} {first_of(numbers, _LISTED)}"
