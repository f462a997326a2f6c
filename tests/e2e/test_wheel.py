"""The wheel and the sdist as a user installs them, away from this tree."""

from __future__ import annotations

import os
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest
from hatchling.builders.sdist import SdistBuilder
from hatchling.builders.wheel import WheelBuilder

import bireme

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with the wheel, built from the sdist, which holds the files of this tree."""
    place = tmp_path_factory.mktemp("built")
    (sdist,) = SdistBuilder(str(ROOT)).build(directory=str(place), versions=["standard"])
    with tarfile.open(sdist) as archive:
        archive.extractall(place / "source", filter="data")
    (source,) = (place / "source").iterdir()
    list(WheelBuilder(str(source)).build(directory=str(place), versions=["standard"]))
    return place


def test_the_wheel_holds_the_package_and_no_tests(built: Path) -> None:
    (wheel,) = built.glob("*.whl")
    names = zipfile.ZipFile(wheel).namelist()
    assert {"bireme/demo/quick_start/trainer_config.lr.py", "bireme/__init__.pyi", "bireme/py.typed"} <= set(names)
    tops = {name.partition("/")[0] for name in names}
    assert tops == {"bireme", f"bireme-{bireme.__version__}.dist-info"}


def test_demo_and_simulate_work_from_the_wheel(built: Path, tmp_path: Path) -> None:
    (wheel,) = built.glob("*.whl")
    zipfile.ZipFile(wheel).extractall(tmp_path / "site")
    # The dependencies are this environment's; the package itself must be the wheel's.
    environment = {**os.environ, "PYTHONPATH": str(tmp_path / "site"), "XDG_STATE_HOME": str(tmp_path / "state")}
    environment.pop("BIREME_COMMAND", None)

    def run(*words: str) -> str:
        command = [sys.executable, *words]
        return subprocess.check_output(command, cwd=tmp_path, env=environment, text=True, timeout=280)

    assert run("-c", "import bireme; print(bireme.__file__)").startswith(str(tmp_path / "site"))
    run("-m", "bireme", "demo", "--prepare", "first-job")
    trained = run("-m", "bireme", "train", "first-job/job.yaml", "--passes", "1", "--trainers", "1", "--pservers", "1")
    assert "finished: the model is in" in trained
    assert "pservers" in run("-m", "bireme", "simulate", "first-job/job.yaml")
