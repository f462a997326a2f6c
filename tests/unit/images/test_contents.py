from __future__ import annotations

from pathlib import Path

import pytest

import bireme
from bireme.core.errors import ImageError
from bireme.images import contents
from bireme.images.base import Base


@pytest.fixture
def base(tmp_path: Path) -> Base:
    etc = tmp_path / "base" / "etc"
    etc.mkdir(parents=True)
    (etc / "passwd").write_text("root:x:0:0::/root:/bin/bash\n")
    (etc / "group").write_text("root:x:0:\n")
    return Base(tmp_path / "base", (), "/usr/bin/python3.11")


def test_the_environment_stands_on_the_base_s_python(base: Base, tmp_path: Path) -> None:
    root = tmp_path / "root"
    contents.write_environment(root, base)
    assert "home = /usr/bin\n" in (root / "opt/bireme/pyvenv.cfg").read_text()
    assert str((root / "opt/bireme/bin/python3").readlink()) == "/usr/bin/python3.11"
    assert contents.site_of(base) == "opt/bireme/lib/python3.11/site-packages"


def test_scripts_can_be_run_by_any_user(base: Base, tmp_path: Path) -> None:
    root = tmp_path / "root"
    contents.write_environment(root, base)
    for name in ("opt/bireme/bin/bireme", "root/start.sh", "root/get_data.sh"):
        assert (root / name).stat().st_mode & 0o777 == 0o755
    assert (root / "root").stat().st_mode & 0o777 == 0o755
    assert (root / "root/start.sh").read_text().endswith("exec /opt/bireme/bin/bireme node\n")


def test_the_user_of_pods_has_a_name_unless_the_base_gave_one(base: Base, tmp_path: Path) -> None:
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


def test_by_products_stay_behind_and_modes_do_not_follow_the_umask(tmp_path: Path) -> None:
    source = tmp_path / "source"
    for name in ("a.py", "__pycache__/a.cpython-311.pyc", "sub/.git/config", "sub/run.sh", "b.pyc"):
        (source / name).parent.mkdir(parents=True, exist_ok=True)
        (source / name).write_text("x")
    (source / "a.py").chmod(0o600)
    (source / "sub/run.sh").chmod(0o700)
    contents.copy_tree(source, tmp_path / "copy")
    found = {p.relative_to(tmp_path / "copy").as_posix(): p.stat().st_mode & 0o777 for p in _files(tmp_path / "copy")}
    assert found == {"a.py": 0o644, "sub/run.sh": 0o755}


def _files(folder: Path) -> list[Path]:
    return [path for path in folder.rglob("*") if path.is_file()]


def test_a_directory_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(ImageError, match="there is no directory"):
        contents.copy_tree(tmp_path / "none", tmp_path / "copy")
