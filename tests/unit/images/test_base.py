from __future__ import annotations

import io
import tarfile
from collections.abc import Mapping
from pathlib import Path

import pytest
from tests.unit.images.making import write_layer

from bireme.core.errors import ImageError
from bireme.images.archive import make_image, write_archive
from bireme.images.base import find_python, open_base, unpack
from bireme.images.layers import Cache, ImageLayer


def make_root(root: Path) -> Path:
    for name in (
        "usr/bin/python3.11",
        "usr/bin/python3.9",
        "usr/bin/python3.12-config",
        "usr/share/doc/bash/copyright",
        "usr/share/doc/bash/changelog.gz",
        "usr/share/man/man1/ls.1.gz",
        "usr/lib/python3.11/__pycache__/os.cpython-311.pyc",
        "usr/lib/python3.11/os.py",
        "etc/passwd",
        "etc/passwd-",
        "var/lib/apt/lists/all",
        "proc/1/stat",
    ):
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(name)
    return root


def quiet(text: str) -> None:
    pass


def names_of(layer: ImageLayer) -> set[str]:
    with tarfile.open(layer.path) as tar:
        return set(tar.getnames())


def test_the_newest_python_from_3_11_on_is_found(tmp_path: Path) -> None:
    assert find_python(make_root(tmp_path)) == "/usr/bin/python3.11"


def test_a_base_without_a_python_of_use_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ImageError, match=r"no Python 3\.11 or newer"):
        find_python(tmp_path)


def test_a_base_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(ImageError, match="there is no base"):
        open_base(str(tmp_path / "none"), Cache(tmp_path / "cache"), on_step=quiet)


def test_a_directory_becomes_a_lean_layer_with_licences(tmp_path: Path) -> None:
    base = open_base(str(make_root(tmp_path / "root")), Cache(tmp_path / "cache"), on_step=quiet)
    names = names_of(base.layers[0])
    assert base.version == "3.11"
    assert {"usr/share/doc/bash/copyright", "usr/lib/python3.11/os.py", "etc/passwd", "proc"} <= names
    gone = ("changelog", "ls.1", ".pyc", "passwd-", "lists/", "proc/")
    assert not [name for name in names for part in gone if part in name]


def test_a_directory_that_changed_becomes_another_layer(tmp_path: Path) -> None:
    root, cache = make_root(tmp_path / "root"), Cache(tmp_path / "cache")
    first, again = (open_base(str(root), cache, on_step=quiet).layers[0] for _ in range(2))
    (root / "usr" / "lib" / "python3.11" / "os.py").write_text("changed")
    assert first.digest == again.digest and first.is_new and not again.is_new
    assert open_base(str(root), cache, on_step=quiet).layers[0].digest != first.digest


def test_layers_of_an_archive_stay_as_they_are(tmp_path: Path) -> None:
    layer = write_layer("x", make_root(tmp_path / "root"), tmp_path / "layer.tar")
    write_archive(make_image("localhost/base:1", (layer,), {}, {}), tmp_path / "base.tar")
    base = open_base(str(tmp_path / "base.tar"), Cache(tmp_path / "cache"), on_step=quiet)
    assert [found.digest for found in base.layers] == [layer.digest]
    assert (base.tree / "usr/bin/python3.11").is_file()


def layer_of(path: Path, members: Mapping[str, bytes | None]) -> ImageLayer:
    with tarfile.open(path, "w") as tar:
        for name, data in members.items():
            entry = tarfile.TarInfo(name)
            entry.type, entry.mode = (tarfile.DIRTYPE, 0o755) if data is None else (tarfile.REGTYPE, 0o644)
            entry.size = len(data or b"")
            tar.addfile(entry, io.BytesIO(data or b""))
    return ImageLayer("x", "", path.stat().st_size, "", path)


def test_an_upper_layer_replaces_and_takes_away(tmp_path: Path) -> None:
    root = tmp_path / "root"
    root.mkdir()
    lower = {"a": b"1", "dir": None, "dir/old": b"1", "gone": None, "gone/x": b"1", "was": None, "was/y": b"1"}
    unpack(layer_of(tmp_path / "1.tar", lower), root)
    upper = {"a": b"2", "dir/.wh..wh..opq": b"", "dir/new": b"2", ".wh.gone": b"", "was": b"a file now"}
    unpack(layer_of(tmp_path / "2.tar", upper), root)
    found = {p.relative_to(root).as_posix(): p.read_bytes() for p in root.rglob("*") if p.is_file()}
    assert found == {"a": b"2", "dir/new": b"2", "was": b"a file now"}


@pytest.mark.parametrize("name", ["../evil", "a/../../evil", "link/evil"])
def test_a_layer_that_writes_outside_of_the_root_is_refused(tmp_path: Path, name: str) -> None:
    root = tmp_path / "root"
    root.mkdir()
    (root / "link").symlink_to(tmp_path)
    with pytest.raises(ImageError, match="outside"):
        unpack(layer_of(tmp_path / "1.tar", {name: b"x"}), root)
    assert not (tmp_path / "evil").exists()


@pytest.mark.parametrize(
    "name", ["../.wh.kept", "link/.wh.kept", "a/../../.wh.kept", "link/.wh..wh..opq", ".wh...", ".wh.."]
)
def test_a_layer_that_removes_outside_of_the_root_is_refused(tmp_path: Path, name: str) -> None:
    root = tmp_path / "root"
    (root / "a").mkdir(parents=True)
    (root / "link").symlink_to(tmp_path)
    (tmp_path / "kept").touch()
    with pytest.raises(ImageError, match="outside"):
        unpack(layer_of(tmp_path / "1.tar", {name: b""}), root)
    assert (tmp_path / "kept").exists() and root.is_dir()


def test_a_layer_may_name_its_own_root(tmp_path: Path) -> None:
    unpack(layer_of(tmp_path / "1.tar", {"./": None, "./a": b"1", "/": None, "/b": b"2"}), tmp_path / "root")
    assert sorted(path.name for path in (tmp_path / "root").iterdir()) == ["a", "b"]


def test_a_name_from_the_root_on_is_one_below_the_layer_s_root(tmp_path: Path) -> None:
    root = tmp_path / "root"
    (root / "etc").mkdir(parents=True)
    (root / "etc" / "gone").touch()
    unpack(layer_of(tmp_path / "1.tar", {"/etc/.wh.gone": b"", "never/.wh..wh..opq": b""}), root)
    assert not (root / "etc" / "gone").exists()


def test_a_hard_link_outside_is_refused_a_symbolic_one_not(tmp_path: Path) -> None:
    root = tmp_path / "root"
    root.mkdir()
    (tmp_path / "secret").write_text("x")
    for kind, is_refused in ((tarfile.LNKTYPE, True), (tarfile.SYMTYPE, False)):
        with tarfile.open(tmp_path / "1.tar", "w") as tar:
            entry = tarfile.TarInfo("found")
            entry.type, entry.linkname = kind, "../secret"
            tar.addfile(entry)
        layer = ImageLayer("x", "", 0, "", tmp_path / "1.tar")
        if is_refused:
            with pytest.raises(ImageError, match="outside"):
                unpack(layer, root)
        else:
            unpack(layer, root)
            assert str((root / "found").readlink()) == "../secret"


def test_an_absolute_hard_link_never_reaches_a_host_file(tmp_path: Path) -> None:
    root, secret = tmp_path / "root", tmp_path / "secret"
    root.mkdir()
    secret.write_text("the host's")
    with tarfile.open(tmp_path / "1.tar", "w") as tar:
        entry = tarfile.TarInfo("stolen")
        entry.type, entry.linkname = tarfile.LNKTYPE, str(secret)
        tar.addfile(entry)
    with pytest.raises(ImageError, match="outside"):
        unpack(ImageLayer("x", "", 0, "", tmp_path / "1.tar"), root)
    assert not (root / "stolen").exists() and secret.stat().st_nlink == 1


def test_a_directory_replaces_a_link_and_leaves_its_target_alone(tmp_path: Path) -> None:
    root, host = tmp_path / "root", tmp_path / "host"
    root.mkdir()
    host.mkdir(mode=0o700)
    (root / "dir").symlink_to(host)
    unpack(layer_of(tmp_path / "1.tar", {"dir": None, "dir/file": b"x"}), root)
    assert (root / "dir" / "file").is_file() and not (root / "dir").is_symlink()
    assert host.stat().st_mode & 0o777 == 0o700 and not list(host.iterdir())
