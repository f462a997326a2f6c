"""From what a job names to a `Program`, by one of the front ends.

A front end is a function that takes a `ProgramSpec` and returns a `Program`. Ours are in `FRONT_ENDS`; other packages
add theirs as entry points of the group `bireme.programs`, and a job names one by `program.front_end`:

    [project.entry-points."bireme.programs"]
    my_format = "my_package.front_end:load"
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib import import_module
from importlib.metadata import entry_points
from pathlib import Path

from bireme.core.errors import SpecError
from bireme.programs.program import Program
from bireme.spec.job import Job

GROUP = "bireme.programs"
FRONT_ENDS: Mapping[str, str] = {"trainer_config": "bireme.programs.config.load:load_config"}
"""Module and function by name: imported when a program needs it, and found in a source tree that is not installed."""


@dataclass(frozen=True, slots=True)
class ProgramSpec:
    """Which program, and where it runs."""

    file: str
    workdir: Path
    """Looks like a shard's: the program finds its data below it."""
    args: Mapping[str, str]
    front_end: str = "trainer_config"

    @classmethod
    def of_job(cls, job: Job, workdir: Path, args: Mapping[str, str] | None = None) -> ProgramSpec:
        """The program that a job names; `args` are added to the job's."""
        return cls(job.config, workdir, {**job.config_args, **(args or {})}, job.front_end)


FrontEnd = Callable[[ProgramSpec], Program]


def load_program(spec: ProgramSpec) -> Program:
    """Load a program; reads no sample."""
    return _front_end(spec.front_end)(spec)


def _front_end(name: str) -> FrontEnd:
    front_end: FrontEnd
    if name in FRONT_ENDS:
        module, _, function = FRONT_ENDS[name].partition(":")
        front_end = getattr(import_module(module), function)
        return front_end
    # Looked for only now: it reads the metadata of every package that is installed.
    added = {entry.name: entry for entry in entry_points(group=GROUP)}
    if name not in added:
        known = ", ".join(dict.fromkeys([*FRONT_ENDS, *added]))
        fix = f"use one of {known}, or install the package that adds it"
        raise SpecError(f"there is no front end {name!r} for programs", fix=fix)
    package = added[name].dist
    try:
        front_end = added[name].load()
    except (ImportError, AttributeError) as e:
        why = f"{added[name].value} of {package.name if package else 'a package'}: {e}"
        raise SpecError(f"the front end {name!r} cannot be loaded", why=why, fix="repair that package") from e
    return front_end
