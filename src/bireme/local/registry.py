"""Jobs of this user on this machine, so that another terminal can find them.

Each run has a directory in the user's state directory with a small `record.json`; the rest of it
(where pservers meet, reports, working directories) lives as long as the run.
"""

from __future__ import annotations

import os
import shutil
import time
from pathlib import Path
from typing import Literal

import msgspec

from bireme.core.errors import UsageError
from bireme.core.files import storage_errors, write_atomic
from bireme.core.processes import birth_of, is_alive
from bireme.job.status import JobStatus
from bireme.spec.load import places

KEEP = 50
PARTS = ("meet", "reports", "work", "fired")
"""Directories that a run needs only while it runs."""
State = Literal["running", "finished", "failed", "cancelled", "died"]


class RunRecord(msgspec.Struct, frozen=True, kw_only=True):
    """What is recorded of a run, to be read without asking its process."""

    id: str
    name: str
    pid: int
    birth: str
    """A later process with the same id has another one."""
    started: float
    job_file: str
    output: str
    state: State = "running"
    reason: str = ""
    ended: float = 0.0
    error: dict[str, str] = {}
    """What went wrong: kind, what, why and fix; empty where nothing did."""
    status: JobStatus = JobStatus()


def runs_directory() -> Path:
    return places().state / "runs"


def new_run(name: str, job_file: str, output: str) -> tuple[RunRecord, Path]:
    root = runs_directory()
    with storage_errors(str(root)):
        root.mkdir(parents=True, exist_ok=True)
    started = time.time()
    for number in range(1, 1000):
        run = root / f"{name}-{time.strftime('%m%d-%H%M%S', time.localtime(started))}-{number}"
        try:
            # `mkdir` decides between runs of one name that start in the same second.
            run.mkdir()
            break
        except FileExistsError:
            continue
    for part in PARTS:
        (run / part).mkdir()
    record = RunRecord(
        id=run.name, name=name, pid=os.getpid(), birth=birth_of(os.getpid()), started=started, job_file=job_file,
        output=output,
    )  # fmt: skip
    save(record)
    for old in all_runs()[KEEP:]:
        if old.state != "running":
            shutil.rmtree(root / old.id, ignore_errors=True)
    return record, run


def save(record: RunRecord) -> None:
    write_atomic(runs_directory() / record.id / "record.json", msgspec.json.encode(record))


def clear(run: Path) -> None:
    for part in PARTS:
        shutil.rmtree(run / part, ignore_errors=True)


def all_runs() -> list[RunRecord]:
    """Every recorded run, newest first; one whose process is gone without a final record has died."""
    records = []
    for path in runs_directory().glob("*/record.json"):
        try:
            record = msgspec.json.decode(path.read_bytes(), type=RunRecord)
        except (OSError, msgspec.MsgspecError):
            continue  # being written, or from another version
        if record.state == "running" and not (is_alive(record.pid) and birth_of(record.pid) == record.birth):
            record = msgspec.structs.replace(record, state="died", reason="its process is gone")
        records.append(record)
    return sorted(records, key=lambda r: r.started, reverse=True)


def newest_runs() -> list[RunRecord]:
    """The newest run of each output directory, newest first: a job that was resumed is one job."""
    newest: dict[str, RunRecord] = {}
    for record in all_runs():
        newest.setdefault(record.output, record)
    return list(newest.values())


def find_run(name: str | None) -> RunRecord:
    """The newest run with this name, id or output directory; without a name, the newest of all."""
    runs = all_runs()
    matching = [r for r in runs if name is None or name in (r.name, r.id) or str(Path(name).absolute()) == r.output]
    running = [r for r in matching if r.state == "running"]
    if matching:
        return (running or matching)[0]
    names = sorted({r.name for r in runs})
    hint = f"known jobs: {', '.join(names)}" if names else "start one with `bireme train JOB.yaml`"
    what = f"there is no job {name!r} on this machine" if name else "no job has run on this machine yet"
    raise UsageError(what, fix=hint)


def check_one(name: str | None) -> None:
    """Refuse where `name` leaves open which of several running jobs is meant."""
    meant = [r for r in all_runs() if r.state == "running" and (name is None or name == r.name)]
    if len(meant) > 1:
        which = f"{len(meant)} jobs run now" if name is None else f"{len(meant)} jobs named {name} run now"
        places = "; ".join(f"{r.id} in {r.output}" for r in meant)
        raise UsageError(which, fix=f"name one by its id or its output directory: {places}")
