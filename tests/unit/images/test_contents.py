from __future__ import annotations

import os
import zipfile
from pathlib import Path

import pytest

import bireme
from bireme.core.errors import ImageError
from bireme.images import contents
from bireme.images.base import BaseImage


@pytest.fixture
def base(tmp_path: Path) -> BaseImage:
    etc = tmp_path / "base" / "etc"
    etc.mkdir(parents=True)
    (etc / "passwd").write_text("root:x:0:0::/root:/bin/bash\n")
    (etc / "group").write_text("root:x:0:\n")
    return BaseImage(tmp_path / "base", (), "/usr/bin/python3.11")


def test_the_environment_stands_on_the_base_s_python(base: BaseImage, tmp_path: Path) -> None:
    root = tmp_path / "root"
    contents.write_environment(root, base)
    assert "home = /usr/bin\n" in (root / "opt/bireme/pyvenv.cfg").read_text()
    assert str((root / "opt/bireme/bin/python3").readlink()) == "/usr/bin/python3.11"
    assert contents.site_of(base) == "opt/bireme/lib/python3.11/site-packages"


def test_scripts_can_be_run_by_any_user(base: BaseImage, tmp_path: Path) -> None:
    root = tmp_path / "root"
    contents.write_environment(root, base)
    for name in ("opt/bireme/bin/bireme", "root/start.sh", "root/get_data.sh"):
        assert (root / name).stat().st_mode & 0o777 == 0o755
    assert (root / "root/start.sh").read_text().endswith("exec /opt/bireme/bin/bireme node\n")


def test_the_user_of_pods_has_a_name_unless_the_base_gave_one(base: BaseImage, tmp_path: Path) -> None:
    contents.write_environment(tmp_path / "1", base)
    lines = (tmp_path / "1/etc/passwd").read_text().splitlines()
    assert lines == ["root:x:0:0::/root:/bin/bash", "bireme:x:1000:1000::/tmp:/usr/sbin/nologin"]
    (base.tree / "etc/passwd").write_text("me:x:1000:1000::/home/me:/bin/sh\n")
    contents.write_environment(tmp_path / "2", base)
    assert (tmp_path / "2/etc/passwd").read_text() == "me:x:1000:1000::/home/me:/bin/sh\n"


def test_the_package_is_found_by_its_name(tmp_path: Path) -> None:
    package = Path(bireme.__file__).parent
    contents.write_package(tmp_path, package, "site", ["numpy>=1.26"])
    about = (tmp_path / f"site/bireme-{bireme.__version__}.dist-info/METADATA").read_text()
    assert f"Version: {bireme.__version__}\nRequires-Dist: numpy>=1.26\n" in about
    assert (tmp_path / "site/bireme/demo/quick_start/trainer_config.lr.py").is_file()
    assert not list((tmp_path / "site").rglob("__pycache__"))


def test_by_products_and_sockets_stay_behind(tmp_path: Path) -> None:
    source = tmp_path / "source"
    for name in ("a.py", "__pycache__/a.cpython-311.pyc", "sub/.git/config", "sub/run.sh", "b.pyc"):
        (source / name).parent.mkdir(parents=True, exist_ok=True)
        (source / name).write_text("x")
    (source / "link").symlink_to("nowhere")
    os.mkfifo(source / "fifo")
    contents.copy_tree(source, tmp_path / "copy")
    found = {path.relative_to(tmp_path / "copy").as_posix() for path in (tmp_path / "copy").rglob("*")}
    assert found == {"a.py", "sub", "sub/run.sh", "link"}


@pytest.fixture
def index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where pip finds packages instead of a network."""
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path))
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    return tmp_path


def write_wheel(folder: Path, name: str, version: str, names: list[str]) -> None:
    about = f"{name}-{version}.dist-info"
    files = {each: f"content of {each}" for each in names}
    files[f"{about}/METADATA"] = f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n"
    files[f"{about}/WHEEL"] = "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
    files[f"{about}/entry_points.txt"] = f"[console_scripts]\n{name} = {name}.core:main\n"
    files[f"{about}/RECORD"] = "".join(f"{each},,\n" for each in [*files, f"{about}/RECORD"])
    with zipfile.ZipFile(folder / f"{name}-{version}-py3-none-any.whl", "w") as archive:
        for each, text in files.items():
            archive.writestr(each, text)


def test_packages_are_installed_without_scripts_and_tests(index: Path) -> None:
    data = [f"numba-1.0.data/{kind}" for kind in ("purelib/extra.py", "scripts/numba", "headers/n.h", "data/share/x")]
    names = ["numba/core.py", "numba/tests/test_all.py", "numba/core/tests/x.py", *data]
    write_wheel(index, "numba", "1.0", names)
    write_wheel(index, "numba", "2.0", names)
    contents.install(["numba>=1"], ["numba==1.0", "other==3"], "3.12", index / "tree" / "site")
    found = {path.relative_to(index / "tree").as_posix() for path in (index / "tree").rglob("*") if path.is_file()}
    about = {f"site/numba-1.0.dist-info/{each}" for each in ("METADATA", "WHEEL", "entry_points.txt")}
    assert found == {"site/numba/core.py", "site/extra.py"} | about


def test_a_package_that_pip_cannot_get_is_named(index: Path) -> None:
    with pytest.raises(ImageError, match="pip could not get the packages for the image: No matching distribution"):
        contents.install(["no-such-package"], [], "3.11", index / "site")


def test_the_source_tree_names_the_needs_of_pods() -> None:
    wanted = contents.requirements(Path(bireme.__file__).parent)
    names = {line.split(">")[0].split("=")[0] for line in wanted}
    assert {"numba", "numpy", "lightkube", "websockets", "cryptography"} <= names
    assert "pytest" not in names and not any("paddle" in name for name in names)


def test_an_installation_says_it_by_its_metadata() -> None:
    lines = [
        "numpy>=1.26",
        "lightkube>=1.0; extra == 'kube'",
        'tomli>=2; python_version < "3.11" and extra == "tls"',
        'pytest>=8; extra == "dev"',
    ]
    chosen = list(contents._chosen(lines))
    assert chosen == ["numpy>=1.26", "lightkube>=1.0", 'tomli>=2; python_version < "3.11"']


def test_versions_are_pinned_to_those_that_run_here() -> None:
    import llvmlite
    import numpy

    pins = contents.pins(["numba>=0.61", "surely-not-installed>=1"])
    assert f"numpy=={numpy.__version__}" in pins
    assert f"llvmlite=={llvmlite.__version__}" in pins
    assert [line.partition("==")[0] for line in pins] == ["llvmlite", "numba", "numpy"]
