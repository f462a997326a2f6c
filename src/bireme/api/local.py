"""Jobs that run on this machine: every use case, by the runs that the registry has."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from bireme.api.backends import Diagnosis, Note, Stopped, no_note
from bireme.api.live import cancel_run, local_facts
from bireme.core.errors import UsageError
from bireme.job.output.logs import FILES, LogFilter, LogLine, followed
from bireme.local import registry


@dataclass(frozen=True, slots=True)
class LocalBackend:
    """Jobs of this user on this machine."""

    def logs(
        self, name: str | None, wanted: LogFilter, *, image: str | None = None, note: Note = no_note
    ) -> Iterator[LogLine]:
        """Lines of a job's logs by time."""
        record = registry.find_run(name)
        names = [FILES[wanted.role]] if wanted.role else [FILES["trainer"], FILES["pserver"]]
        pattern = "node_*" if wanted.node is None else f"node_{wanted.node}"
        folders = sorted(Path(record.output).glob(pattern))
        logs = {f"{d.name}/{n}": d / n for d in folders for n in names if (d / n).is_file()}
        if not logs:
            raise UsageError(
                f"{record.name} has no such log under {record.output}",
                fix="leave --node and --role out to see all",
            )
        return followed(logs, wanted, lambda: registry.find_run(record.id).state != "running")

    def why(self, name: str | None) -> Diagnosis:
        """What keeps a job from running, or what it waits for."""
        from bireme.diagnose.explain import explain

        facts = local_facts(registry.find_run(name))
        return Diagnosis(facts.job, facts.where, facts.namespace, explain(facts), [])

    def cancel(self, name: str | None, *, now: bool = False) -> Stopped:
        """Stop a job with signals to its process."""
        record = registry.find_run(name)
        if record.state == "running":
            registry.check_one(name)
        return Stopped(record.name, cancel_run(record, now=now))


def runs_in(output: Path) -> bool:
    """Whether a job of this machine runs in a directory."""
    return any(run.state == "running" and run.output == str(output.absolute()) for run in registry.all_runs())
