from __future__ import annotations

from pathlib import Path

import pytest

from bireme.core.errors import SpecError
from bireme.programs.loading import ProgramSpec, load_program

FRONT_END = """
class Seen:
    def __init__(self, spec):
        self.name = spec.file
load = Seen
"""


def spec(front_end: str) -> ProgramSpec:
    return ProgramSpec("train.py", Path(), {}, front_end)


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "other_front_end.py").write_text(FRONT_END)
    about = tmp_path / "other-1.0.dist-info"
    about.mkdir()
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: other\nVersion: 1.0\n")
    rows = "other = other_front_end:load\nbroken = no_such_module_at_all:load\ntrainer_config = other_front_end:load\n"
    (about / "entry_points.txt").write_text(f"[bireme.programs]\n{rows}")
    monkeypatch.syspath_prepend(str(tmp_path))


@pytest.mark.usefixtures("package")
def test_another_package_adds_a_front_end_by_an_entry_point() -> None:
    assert load_program(spec("other")).name == "train.py"


@pytest.mark.usefixtures("package")
def test_an_unimportable_front_end_is_named_with_its_package() -> None:
    with pytest.raises(SpecError, match="'broken' cannot be loaded") as refusal:
        load_program(spec("broken"))
    assert "no_such_module_at_all:load of other: No module named" in refusal.value.why


@pytest.mark.usefixtures("package")
def test_no_package_replaces_a_front_end_of_ours() -> None:
    with pytest.raises(Exception, match=r"there is no config .*/train\.py"):
        load_program(spec("trainer_config"))


@pytest.mark.usefixtures("package")
def test_an_unknown_front_end_is_refused_with_those_there_are() -> None:
    with pytest.raises(SpecError, match="no front end 'tf1'") as refusal:
        load_program(spec("tf1"))
    assert refusal.value.fix.startswith("use one of trainer_config, other, broken, or")
