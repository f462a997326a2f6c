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
    site = tmp_path / "site"
    pip = [
        sys.executable,
        "-m",
        "pip",
        "install",
        "--quiet",
        "--no-index",
        "--no-deps",
        "--target",
        str(site),
        str(wheel),
    ]
    subprocess.check_call(pip)
    # The dependencies are this environment's; the package itself must be the wheel's.
    environment = {**os.environ, "PYTHONPATH": str(site), "XDG_STATE_HOME": str(tmp_path / "state")}
    environment.pop("BIREME_COMMAND", None)

    def run(*words: str | Path) -> str:
        return subprocess.check_output(words, cwd=tmp_path, env=environment, text=True, timeout=280)

    where = run(sys.executable, "-c", "import bireme; print(bireme.__file__)")
    assert where.startswith(str(site))
    bireme_command = site / "bin" / "bireme"
    assert "bireme model show" in run(bireme_command, "demo", "--dir", "first-job", "--passes", "1")
    assert (tmp_path / "first-job" / "output" / "pass-00000" / "done").is_file()
    assert "pservers" in run(bireme_command, "simulate", "first-job/job.yaml")
