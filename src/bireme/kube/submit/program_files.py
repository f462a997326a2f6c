"""The program's files that a submission sends: the directory of the config, without data and leftovers."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

from bireme.core.errors import SpecError
from bireme.spec.load import is_shard_name

LEFT_OUT = ("data", "__pycache__", "output")
"""Names that are skipped: `bireme data push` sends data."""
MAX_NBYTES = 900_000
"""A ConfigMap holds at most 1 MiB, and the job itself needs some of that."""


def read_program(directory: Path, *, without: Path) -> dict[str, bytes]:
    """All files of a program by their path below its directory; `without` is where the job's output goes.

    A directory that is too large is refused before anything of it is read.
    """
    try:
        files = {str(path.relative_to(directory)): path for path in _files(directory, without)}
        check_size({name: path.stat().st_size for name, path in files.items()})
        return {name: path.read_bytes() for name, path in files.items()}
    except OSError as e:
        raise SpecError(f"cannot read the program: {e.filename}: {e.strerror}") from e


def check_size(program: Mapping[str, int]) -> None:
    """Refuse a program, given by the lengths of its files, that does not fit into a ConfigMap."""
    nbytes = sum(program.values())
    if nbytes > MAX_NBYTES:
        large = sorted(program, key=lambda path: program[path], reverse=True)[:3]
        raise SpecError(
            f"the program's directory holds {nbytes:,} bytes, at most {MAX_NBYTES:,} can be sent along",
            why=f"the largest files are {', '.join(large)}",
            fix="put it into the image with `bireme image build --with DIR` and say where with `kubernetes.program`",
        )


def _files(directory: Path, without: Path) -> Iterator[Path]:
    for path in sorted(directory.iterdir()):
        name = path.name
        if name.startswith(".") or name in LEFT_OUT or is_shard_name(name) or path == without:
            continue
        if path.is_dir():
            yield from _files(path, without)
        elif path.is_file() and path.suffix not in (".pyc", ".nbi", ".nbc"):
            yield path
