"""Jobs and their runs on this machine, from Python.

A run is a process of its own, the one that `bireme train` is: it goes on when Python or a notebook's kernel ends, and
every other terminal sees it. A `Run` only looks at it.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

import msgspec

from bireme.api.live import cancel_run, local_facts, status_of
from bireme.api.models import Model
from bireme.api.progress import progress_of
from bireme.core.errors import BiremeError, Cancelled, ProcessError, UsageError, error_class
from bireme.job.status import JobStatus, PassSummary
from bireme.local import registry
from bireme.spec.load import load_job

if TYPE_CHECKING:
    from bireme.diagnose.facts import Cause
    from bireme.spec.job import Job as JobSpec

POLL_S = 0.1


class RunStatus(msgspec.Struct, frozen=True, kw_only=True):
    """How a run is doing: its process, how far its job is, and what the coordinator reports."""

    name: str
    state: registry.State
    reason: str
    """Why the run ended."""
    output: Path
    passes_done: int
    """Passes of the job that count, with those of earlier runs."""
    passes: int
    """How many passes the job is to have."""
    job: JobStatus

    @property
    def phase(self) -> str:
        """What the job does: starting, gathering, setting-up, training, or how it ended."""
        return self.job.phase

    @property
    def round(self) -> int:
        """The round of the trainer that is farthest ahead."""
        return self.job.round

    @property
    def samples_per_s(self) -> float:
        """The rates of all trainers together."""
        return self.job.samples_per_s

    @property
    def waits_for(self) -> tuple[str, ...]:
        """Members that hold the job up, each with what is wrong with it."""
        return self.job.waits_for

    @property
    def warnings(self) -> tuple[str, ...]:
        """Problems that do not stop training, but need attention."""
        return self.job.warnings

    @property
    def closed(self) -> tuple[PassSummary, ...]:
        """The passes that this run finished."""
        return self.job.passes_done


@dataclass(frozen=True, slots=True)
class Job:
    """A job.yaml, checked."""

    file: Path
    spec: JobSpec

    def run(
        self,
        *,
        trainers: int | None = None,
        pservers: int | None = None,
        passes: int | None = None,
        seed: int | None = None,
        output: str | Path | None = None,
        wait: bool = True,
        progress: bool = True,
    ) -> Run:
        """Train it with processes on this machine; with `wait=False`, return as soon as the run has begun.

        Ctrl-C while waiting stops the run cleanly. What ends it early is raised.
        """
        flags = {"trainers": trainers, "pservers": pservers, "passes": passes, "seed": seed, "output": output}
        load_job(self.file, flags)  # mistakes are raised from here, before a process starts
        run = _start("train", str(self.file), *_words(flags))
        return run.wait(progress=progress) if wait else run


class Run:
    """A run of a job on this machine."""

    def __init__(self, record: registry.RunRecord) -> None:
        self.id = record.id
        self.name = record.name
        self.output = Path(record.output)

    def __repr__(self) -> str:
        return f"<bireme run {self.id}: {self._record().state}>"

    def _record(self) -> registry.RunRecord:
        return registry.find_run(self.id)

    def status(self) -> RunStatus:
        """How it is doing now."""
        record = self._record()
        status = status_of(record)
        done, passes = progress_of(record, status)
        return RunStatus(
            name=record.name,
            state=record.state,
            reason=record.reason,
            output=self.output,
            passes_done=done,
            passes=passes,
            job=status,
        )

    def wait(self, *, progress: bool = False) -> Run:
        """Wait until it has ended, and raise what ended it early; with `progress`, show it as the terminal does."""
        from bireme.view.readers import choose_view

        try:
            with choose_view(is_silent=not progress) as view:
                while (record := self._record()).state == "running":
                    view.update(status_of(record))
                    time.sleep(POLL_S)
                view.update(record.status)
        except KeyboardInterrupt:
            with suppress(UsageError):  # it has just ended by itself
                self.cancel()
            raise
        if record.state == "cancelled":
            raise Cancelled(f"{self.name} was stopped", fix="`run.resume()` goes on from its newest snapshot")
        if record.state != "finished":
            raise _error_of(record)
        return self

    def cancel(self, *, now: bool = False) -> None:
        """Stop it; finished passes stay, and a snapshot is taken unless `now`."""
        cancel_run(self._record(), now=now)

    def resume(
        self,
        *,
        trainers: int | None = None,
        pservers: int | None = None,
        passes: int | None = None,
        wait: bool = True,
        progress: bool = True,
    ) -> Run:
        """Go on from the newest snapshot, in a new run of the same output directory."""
        flags = {"trainers": trainers, "pservers": pservers, "passes": passes}
        run = _start("resume", str(self.output), *_words(flags))
        return run.wait(progress=progress) if wait else run

    def logs(self, last: int | None = None) -> list[str]:
        """Lines of all logs in the order of time, each behind its log's name; of each log the `last` ones if given."""
        from bireme.job.output.logs import log_files, merged

        return [f"{line.log}: {line.text}" for line in merged(log_files(self.output, None, None), last=last)]

    def why(self) -> list[Cause]:
        """What keeps it from running, or what it waits for: causes with advice, the most urgent first."""
        from bireme.diagnose.explain import explain

        return explain(local_facts(self._record()))

    def model(self, pass_id: int | None = None) -> Model:
        """The model that a pass has left, of the last finished pass if none is named."""
        from bireme.job.output.model import finished_passes, pass_name

        finished = finished_passes(self.output)
        if pass_id not in finished and (pass_id is not None or not finished):
            raise BiremeError(f"{self.name} has no model of {'any pass' if pass_id is None else f'pass {pass_id}'} yet")
        return Model(self.output / pass_name(max(finished) if pass_id is None else pass_id))


def load(file: str | Path, **overrides: Any) -> Job:
    """Read a job.yaml and check it; keyword arguments replace what it says, such as `trainers=3`."""
    path = Path(file)
    return Job(path, load_job(path, overrides))


def runs() -> list[Run]:
    """The newest run of each job on this machine, newest first."""
    return [Run(record) for record in registry.newest_runs()]


def run(name: str | None = None) -> Run:
    """A run by its job's name, its id or its output directory; the newest of all if none is named."""
    return Run(registry.find_run(name))


def _words(flags: dict[str, Any]) -> list[str]:
    return [f"--{name.replace('_', '-')}={value}" for name, value in flags.items() if value is not None]


def _start(*arguments: str) -> Run:
    """Start the process of a run and wait until it has put down its record."""
    command = [sys.executable, "-m", "bireme", *arguments, "--json"]
    with tempfile.TemporaryFile() as answer:
        begun = time.time()
        # A session of its own: Ctrl-C and the end of this Python do not reach it.
        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=answer, stderr=subprocess.STDOUT, start_new_session=True
        )
        # Without this the process of a run that was killed would stay a zombie, and count as running.
        threading.Thread(target=process.wait, daemon=True).start()
        while True:
            has_left = process.poll() is not None  # asked first: a short run may end between the two questions
            record = _record_of(process.pid, begun, registry.all_runs())
            if record is not None:
                return Run(record)
            if has_left:
                return _without_record(process.returncode, answer, arguments)
            time.sleep(0.02)


def _record_of(pid: int, begun: float, records: Sequence[registry.RunRecord]) -> registry.RunRecord | None:
    """The record of a process; one from before it began is of another process that had the same number."""
    return next((record for record in records if record.pid == pid and record.started >= begun), None)


def _without_record(code: int, answer: IO[bytes], arguments: Sequence[str]) -> Run:
    """A process that ended before it began to run: the job was finished already, or was refused."""
    if code == 0:
        return run(str(arguments[1]))
    answer.seek(0)
    text = answer.read().decode(errors="replace")
    try:
        error = msgspec.json.decode(text.strip().rpartition("\n")[2], type=dict[str, Any])
    except msgspec.MsgspecError:
        raise ProcessError(f"`bireme {' '.join(arguments)}` ended with code {code}", why=text.strip()[-400:]) from None
    raise error_class(error.get("error"), ProcessError)(
        error.get("what", ""), why=error.get("why", ""), fix=error.get("fix", "")
    )


def _error_of(record: registry.RunRecord) -> BiremeError:
    error = record.error
    what = error.get("what") or record.reason or f"{record.name} has {record.state}"
    return error_class(error.get("kind"), ProcessError)(what, why=error.get("why", ""), fix=error.get("fix", ""))
