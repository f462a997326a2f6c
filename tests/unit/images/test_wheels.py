from __future__ import annotations

import zipfile
from pathlib import Path

import pytest

import bireme
from bireme.core.errors import ImageError
from bireme.images import wheels


def write_wheel(path: Path, names: list[str]) -> Path:
    with zipfile.ZipFile(path, "w") as archive:
        for name in names:
            archive.writestr(name, f"content of {name}")
    return path


def files(folder: Path) -> set[str]:
    return {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()}


def test_a_wheel_leaves_its_packages_and_neither_scripts_nor_tests(tmp_path: Path) -> None:
    names = [
        "numba/core.py",
        "numba/tests/test_all.py",
        "numba/core/tests/x.py",
        "numba-1.dist-info/METADATA",
        "numba-1.data/purelib/extra.py",
        "numba-1.data/scripts/numba",
        "numba-1.data/headers/n.h",
    ]
    wheels.unpack_wheel(write_wheel(tmp_path / "n.whl", names), tmp_path / "site")
    assert files(tmp_path / "site") == {"numba/core.py", "numba-1.dist-info/METADATA", "extra.py"}


@pytest.mark.parametrize("name", ["../evil.py", "/evil.py", "a-1.data/purelib/../../evil.py"])
def test_a_wheel_that_writes_elsewhere_is_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(ImageError, match="outside"):
        wheels.unpack_wheel(write_wheel(tmp_path / "n.whl", [name]), tmp_path / "site")
    assert not list(tmp_path.rglob("evil.py"))


def test_the_source_tree_says_what_is_needed_with_the_extras_of_pods() -> None:
    wanted = wheels.requirements(Path(bireme.__file__).parent)
    names = {line.split(">")[0].split("=")[0] for line in wanted}
    assert {"numba", "numpy", "lightkube", "cryptography"} <= names
    assert "pytest" not in names and not any("paddle" in name for name in names)


def test_an_installation_says_it_by_its_metadata() -> None:
    lines = [
        "numpy>=1.26",
        "lightkube>=1.0; extra == 'kube'",
        'tomli>=2; python_version < "3.11" and extra == "tls"',
        'pytest>=8; extra == "dev"',
    ]
    chosen = list(wheels._chosen(lines))
    assert chosen == ["numpy>=1.26", "lightkube>=1.0", 'tomli>=2; python_version < "3.11"']


def test_versions_are_pinned_to_those_that_run_here() -> None:
    import llvmlite
    import numpy

    pins = wheels.pins(["numba>=0.61", "surely-not-installed>=1"])
    assert f"numpy=={numpy.__version__}" in pins
    assert f"llvmlite=={llvmlite.__version__}" in pins
    assert [line.partition("==")[0] for line in pins] == ["llvmlite", "numba", "numpy"]


def test_a_wheel_is_known_by_its_content(tmp_path: Path) -> None:
    one = write_wheel(tmp_path / "a.whl", ["x.py"])
    before = wheels.digests([one])
    write_wheel(one, ["y.py"])
    assert before != wheels.digests([one])
