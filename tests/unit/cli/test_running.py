"""Around a run: kernels are compiled first, the end says how to continue, and no terminal is needed."""

from __future__ import annotations

import errno
import os
import shutil
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from msgspec import to_builtins
from msgspec.json import encode
from msgspec.structs import replace
from tests.unit.cli.conftest import Leave, closed

from bireme.api.foreground import Interrupts, are_kernels_compiled, best_pass_lines, explain_end
from bireme.api.progress import job_in
from bireme.cli.jobs.demo import _describe
from bireme.core.errors import BiremeError, Cancelled, NetworkError, ProcessError
from bireme.job.output.model import pass_name
from bireme.job.status import JobStatus
from bireme.spec.job import Job
from bireme.view.plain import PlainView

ASKING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@pytest.fixture
def handlers() -> Iterator[None]:
    """Signals are handled afterwards as they were before."""
    before = {number: signal.getsignal(number) for number in ASKING}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


def job_of(output: Path) -> Job:
    job = job_in(output)
    assert job is not None
    return job


@pytest.mark.parametrize("error", [ProcessError, NetworkError])
def test_a_job_that_is_given_up_names_the_way_to_resume(leave: Leave, error: type[BiremeError]) -> None:
    output = leave(has_snapshot=True)
    result = explain_end(job_of(output), error("trainer 1 died 11 times", fix="its last words are in train.log"))
    assert type(result) is error
    assert result.fix == f"its last words are in train.log; then continue with `bireme resume {output}`"
    assert explain_end(job_of(output), error("gone")).fix == f"continue with `bireme resume {output}`"


def test_without_a_snapshot_no_resume_is_named(leave: Leave) -> None:
    error = ProcessError("gone", fix="look into its log")
    assert explain_end(job_of(leave()), error) is error


def test_a_stop_names_the_newest_snapshot_and_how_to_resume(leave: Leave) -> None:
    output = leave(has_snapshot=True)
    result = explain_end(job_of(output), Cancelled("stopped on request"))
    assert result.what == "stopped on request; the newest snapshot is of round 7"
    assert result.fix == f"continue with `bireme resume {output}`"
    before = explain_end(job_of(leave("early")), Cancelled("stopped on request"))
    assert "no snapshot was made yet" in before.what


def test_kernels_are_compiled_again_after_a_change_of_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(tmp_path / "numba"))
    assert not are_kernels_compiled()
    place = tmp_path / "numba" / "optim_0123"
    place.mkdir(parents=True)
    tag = f"py{sys.version_info[0]}{sys.version_info[1]}"
    (place / f"others.f-1.{tag}.nbi").touch()
    (place / "kernels.f-1.py27.nbi").touch()
    assert not are_kernels_compiled()
    (place / f"kernels.f-1.{tag}.nbi").touch()
    assert are_kernels_compiled()
    os.utime(place / f"kernels.f-1.{tag}.nbi", (1, 1))
    assert not are_kernels_compiled()


@pytest.mark.usefixtures("handlers")
@pytest.mark.parametrize("ignored", ASKING)
def test_a_signal_that_was_ignored_stays_ignored(ignored: signal.Signals) -> None:
    for number in ASKING:
        signal.signal(number, signal.SIG_IGN if number == ignored else signal.SIG_DFL)
    with Interrupts() as interrupts:
        for number in ASKING:
            signal.raise_signal(number)
        assert interrupts.count == 2
    assert [number for number in ASKING if signal.getsignal(number) == signal.SIG_IGN] == [ignored]


@pytest.mark.usefixtures("handlers")
@pytest.mark.parametrize(("outlives", "count"), [(False, 1), (True, 0)])
def test_a_closed_terminal_counts_unless_the_job_outlives_it(outlives: bool, count: int) -> None:
    signal.signal(signal.SIGHUP, signal.SIG_DFL)
    with Interrupts(outlives_terminal=outlives) as interrupts:
        signal.raise_signal(signal.SIGHUP)
        assert interrupts.count == count
    assert signal.getsignal(signal.SIGHUP) == signal.SIG_DFL


class Unread(PlainView):
    """A view whose output fails."""

    def __init__(self, number: int) -> None:
        super().__init__()
        self._number = number

    def _update(self, status: JobStatus) -> None:
        raise OSError(self._number, os.strerror(self._number))


@pytest.mark.parametrize("number", [errno.EPIPE, errno.EIO, errno.ENOSPC], ids=errno.errorcode.get)
@pytest.mark.usefixtures("capsys")
def test_a_job_continues_without_a_reader_in_silence(number: int) -> None:
    view = Unread(number)
    view.update(JobStatus())
    assert view.is_silent
    view.update(JobStatus())


def test_the_best_pass_is_named_when_a_job_has_finished(leave: Leave) -> None:
    assert best_pass_lines(leave(done=4)) == ["best pass: pass-00000 (cost 0.5000)"]
    assert best_pass_lines(leave("one", done=1)) == []


@pytest.mark.parametrize("kept", [1, 2])
def test_the_best_pass_is_named_also_if_its_model_was_not_kept(leave: Leave, kept: int) -> None:
    output = leave(done=6)
    passes = [replace(closed(n), test_evals={"error": error}) for n, error in enumerate((9, 8, 0.04, 7, 6, 5))]
    before = replace(closed(4), test_evals={"error": 0.01})  # rewound: trained again later
    rows = [{"event": "pass", **to_builtins(each)} for each in (*passes[:4], before, *passes[4:])]
    (output / "metrics.jsonl").write_bytes(b"".join(encode(row) + b"\n" for row in rows))
    for number, each in enumerate(passes):
        if number < 6 - kept:
            shutil.rmtree(output / pass_name(number))
        else:
            (output / pass_name(number) / "metrics.json").write_bytes(encode(each))
    assert best_pass_lines(output) == ["best pass: pass-00002 (test error 4.00 %; its model was not kept)"]


def test_the_demo_shows_its_passes_once(leave: Leave) -> None:
    output = leave(done=2)
    done = {"passes": [], "test_error": 0.07, "samples_per_s": 1.0, "seconds": 1.0, "model": str(output / "pass-00001")}
    words = "\n".join(_describe({**done, "hash": "abc"}, output.parent))
    assert "train cost" not in words and words.startswith("\nbest pass: pass-00000 (cost 0.5000)\ntest error 7.00 %")
