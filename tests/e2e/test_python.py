"""Jobs, runs and models from Python, and the notebook of the docs."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import bireme
from bireme.core.errors import Cancelled, ModelError, OutputExistsError, SpecError
from bireme.job.output.model import pass_name
from tests.e2e.conftest import Cli, Undisturbed, wait_until

NOTEBOOK = Path(__file__).parents[2] / "docs" / "tutorial" / "python.ipynb"


@pytest.fixture
def here(cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """This process as a user's Python: its runs are recorded where the command line of these tests looks."""
    for name in ("XDG_STATE_HOME", "XDG_CACHE_HOME"):
        monkeypatch.setenv(name, cli.environment()[name])
    yield
    for run in bireme.runs():
        if run.status().state == "running":
            run.cancel(now=True)


@pytest.mark.usefixtures("here")
def test_a_run_from_python_has_the_bits_of_the_command(
    often: Path, undisturbed: Undisturbed, capfd: pytest.CaptureFixture[str]
) -> None:
    run = bireme.load(often, keep="last 1").run(trainers=1, pservers=1, passes=2)
    *_, last, end, best, result = capfd.readouterr().out.splitlines()
    assert last.startswith("pass   1  cost") and end == f"finished: the model is in {run.output / pass_name(1)}"
    assert best.startswith("best pass: pass-0000") and result == f"hash: {run.model().hash}"
    assert (run.status().state, run.status().passes_done) == ("finished", 2)
    assert run.model().hash == undisturbed(2)
    assert not (run.output / pass_name(0)).exists(), "what replaces keys of the file holds for the run too"
    assert set(run.model().parameters()) == set(run.model().names)
    assert [round(sum(each["__fc_layer_0__"]), 5) for each in run.model().predict(["good", "bad"])] == [1.0, 1.0]
    assert run.model().test().samples > 0
    assert bireme.run(run.name).id == run.id and [each.id for each in bireme.runs()] == [run.id]
    with pytest.raises(OutputExistsError, match="already holds a run"):
        bireme.load(often).run()
    with pytest.raises(bireme.BiremeError, match="no model of pass 7"):
        run.model(7)
    assert (run.output / pass_name(1)).is_dir()


@pytest.mark.usefixtures("here")
def test_a_run_is_cancelled_and_resumed_from_python(often: Path, tmp_path: Path) -> None:
    job = bireme.load(often)
    run = job.run(trainers=1, pservers=1, passes=4000, wait=False)
    assert run.why()[0].cause
    wait_until(lambda: run.status().passes_done > 0, "a pass is over")
    run.cancel()
    with pytest.raises(Cancelled):
        run.wait()
    every = run.logs()
    assert {line.partition(": ")[0] for line in every} >= {"node_0/server.log", "node_0/train.log"}
    assert run.logs(last=len(every) + 1) == every and set(run.logs(last=1)) < set(every)
    passes = run.status().passes_done + 1
    again = run.resume(passes=passes, progress=False)
    whole = job.run(trainers=1, pservers=1, passes=passes, output=tmp_path / "whole", progress=False)
    assert again.id != run.id
    assert again.model().hash == whole.model().hash


@pytest.mark.usefixtures("here")
def test_mistakes_are_raised_before_a_process_starts(job: Path) -> None:
    with pytest.raises(SpecError, match="99 trainers but only"):
        bireme.load(job, trainers=99)
    with pytest.raises(SpecError, match="99 trainers but only"):
        bireme.load(job).run(trainers=99)
    assert bireme.runs() == []
    with pytest.raises(ModelError):
        bireme.Model(job.parent)


def test_names_are_imported_when_they_are_used() -> None:
    code = "import sys, bireme; print(sorted(m for m in sys.modules if m.startswith('bireme')))"
    assert subprocess.check_output([sys.executable, "-c", code], text=True).strip() == "['bireme']"
    with pytest.raises(AttributeError, match="has no attribute 'trian'"):
        _ = getattr(bireme, "trian")  # noqa: B009
    assert all(getattr(bireme, name) is not None for name in vars(bireme)["__all__"])


@pytest.mark.usefixtures("here")
def test_the_notebook_of_the_docs_runs(job: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shutil.copytree(job.parent, tmp_path / "notebook" / "first-job")
    monkeypatch.chdir(tmp_path / "notebook")
    names: dict[str, Any] = {}
    for cell in json.loads(NOTEBOOK.read_text())["cells"]:
        if cell["cell_type"] == "code":
            exec(compile("".join(cell["source"]), cell["id"], "exec"), names)
    assert names["other"].model().hash == names["model"].hash
