from __future__ import annotations

import gzip
import os
import shutil
import tarfile
from pathlib import Path

import pytest
from tests.unit.images.making import compressed, write_layer

from bireme.images.layers import EPOCH, KEPT, TAR_GZIP, Cache, key_of, key_of_tree, write_tar


def make_tree(root: Path, names: list[str]) -> Path:
    for name in names:
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"content of {name}")
    return root


def entries(path: Path) -> dict[str, tarfile.TarInfo]:
    with tarfile.open(path) as tar:
        return {member.name: member for member in tar}


def test_equal_trees_give_equal_bytes_at_any_time_in_any_order(tmp_path: Path) -> None:
    names = ["a/b/c", "a/b.txt", "a-b", "z"]
    one, other = make_tree(tmp_path / "1", names), make_tree(tmp_path / "2", names[::-1])
    os.utime(other / "z", (1, 1))
    first = write_layer("x", one, tmp_path / "1.tar")
    again = write_layer("x", other, tmp_path / "2.tar")
    assert first.digest == again.digest
    assert (tmp_path / "1.tar").read_bytes() == (tmp_path / "2.tar").read_bytes()


def test_files_belong_to_root_and_lose_times_and_set_id_bits(tmp_path: Path) -> None:
    tree = make_tree(tmp_path / "tree", ["bin/su"])
    (tree / "bin" / "su").chmod(0o4755)
    (tree / "tmp").mkdir()
    (tree / "tmp").chmod(0o1777)
    write_layer("x", tree, tmp_path / "x.tar", keeps_modes=True)
    found = entries(tmp_path / "x.tar")
    assert {(e.uid, e.gid, e.uname, e.mtime) for e in found.values()} == {(0, 0, "", EPOCH)}
    assert found["bin/su"].mode == 0o755
    assert found["tmp"].mode == 0o1777


def test_links_stay_links(tmp_path: Path) -> None:
    tree = make_tree(tmp_path / "tree", ["b"])
    os.link(tree / "b", tree / "a")
    (tree / "c").symlink_to("../outside")
    write_layer("x", tree, tmp_path / "x.tar")
    found = entries(tmp_path / "x.tar")
    assert found["a"].isreg() and found["b"].islnk() and found["b"].linkname == "a"
    assert found["c"].issym() and found["c"].linkname == "../outside"


def test_what_is_skipped_is_left_out_with_all_below_it(tmp_path: Path) -> None:
    tree = make_tree(tmp_path / "tree", ["keep/x", "drop/y/z"])
    write_layer("x", tree, tmp_path / "x.tar", lambda path: path == "drop")
    assert set(entries(tmp_path / "x.tar")) == {"keep", "keep/x"}


def test_a_long_path_and_an_odd_name_come_back_as_they_were(tmp_path: Path) -> None:
    names = ["/".join(["long-directory-name"] * 9) + "/ends-here", "naïve name.txt"]
    write_layer("x", make_tree(tmp_path / "tree", names), tmp_path / "x.tar")
    assert set(names) <= set(entries(tmp_path / "x.tar"))


def test_a_compressed_layer_is_the_same_layer_in_fewer_bytes(tmp_path: Path) -> None:
    tree = make_tree(tmp_path / "tree", [f"f{i}" for i in range(50)])
    plain = write_layer("x", tree, tmp_path / "x.tar")
    packed, again = compressed(plain, tmp_path / "x.gz"), compressed(plain, tmp_path / "y.gz")
    assert packed.digest == again.digest != plain.digest
    assert packed.diff_id == plain.diff_id
    assert packed.nbytes < plain.nbytes
    assert packed.media_type == TAR_GZIP
    assert gzip.decompress((tmp_path / "x.gz").read_bytes()) == (tmp_path / "x.tar").read_bytes()


def test_modes_are_those_of_the_usual_umask(tmp_path: Path) -> None:
    tree = make_tree(tmp_path / "tree", ["dir/a", "dir/b"])
    (tree / "dir").chmod(0o700)
    (tree / "dir" / "a").chmod(0o600)
    (tree / "dir" / "b").chmod(0o700)
    (tree / "dir" / "c").symlink_to("nowhere")
    write_tar(tree, tmp_path / "x.tar")
    found = {name: entry.mode for name, entry in entries(tmp_path / "x.tar").items()}
    assert found == {"dir": 0o755, "dir/a": 0o644, "dir/b": 0o755, "dir/c": 0o777}


def test_a_layer_is_made_once_for_a_key(tmp_path: Path) -> None:
    tree, cache, made = make_tree(tmp_path / "tree", ["a"]), Cache(tmp_path / "cache"), list[Path]()

    def write(folder: Path) -> None:
        made.append(folder)
        write_tar(tree, folder / "layer.tar")

    first = cache.layer("x", "a" * 64, write)
    again = cache.layer("x", "a" * 64, write)
    assert first.is_new and not again.is_new and len(made) == 1
    assert (first.digest, first.path) == (again.digest, again.path)
    assert first.digest == write_layer("x", tree, tmp_path / "x.tar").digest
    assert cache.layer("x", "b" * 64, write).is_new


def test_a_compressed_layer_keeps_its_files_name_and_digest(tmp_path: Path) -> None:
    plain = write_layer("base", make_tree(tmp_path / "tree", ["a"]), tmp_path / "x.tar")
    expected = compressed(plain, tmp_path / "x.gz")
    found = Cache(tmp_path).compressed(plain)
    assert (found.name, found.diff_id, found.media_type) == (expected.name, expected.diff_id, TAR_GZIP)
    assert found.digest == expected.digest


def test_only_entries_that_were_used_lately_are_kept(tmp_path: Path) -> None:
    cache = Cache(tmp_path)
    for number in range(KEPT + 2):
        folder, _ = cache.folder("x", f"{number:016}", lambda half: None)
        cache.folder("y", "b" * 16, lambda half: None)
        os.utime(folder, (number, number))
    kept = {path.name for path in tmp_path.iterdir()}
    assert len(kept) == KEPT + 1 and f"x-{0:016}" not in kept


def test_an_entry_that_another_build_removes_is_no_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cache = Cache(tmp_path)
    (tmp_path / "x-gone").symlink_to("nowhere")  # listed, and not there any more
    cache.folder("x", "k", lambda half: None)

    def remove(path: Path) -> None:
        shutil.rmtree(path)
        monkeypatch.undo()
        raise FileNotFoundError(path)

    monkeypatch.setattr(os, "utime", remove)
    assert cache.folder("x", "k", lambda half: None) == (tmp_path / "x-k", True)


def test_a_tree_appears_whole_and_stays_until_replaced(tmp_path: Path) -> None:
    cache = Cache(tmp_path)

    def fails(half: Path) -> None:
        (half / "file").write_text("half")
        raise RuntimeError

    with pytest.raises(RuntimeError):
        cache.folder("x", "k", fails)
    assert list(tmp_path.iterdir()) == []
    for text, is_fresh, expected in (("old", False, "old"), ("new", False, "old"), ("new", True, "new")):

        def fill(half: Path, text: str = text) -> None:
            (half / "file").write_text(text)

        folder, is_new = cache.folder("x", "k", fill, is_fresh=is_fresh)
        assert (folder / "file").read_text() == expected
        assert is_new == (text == expected)
    assert [path.name for path in tmp_path.iterdir()] == ["x-k"]


def test_a_tree_that_another_build_made_meanwhile_stays(tmp_path: Path) -> None:
    cache = Cache(tmp_path)

    def fill(half: Path) -> None:
        (tmp_path / "x-k").mkdir()
        (tmp_path / "x-k" / "theirs").touch()

    folder, _ = cache.folder("x", "k", fill)
    assert (folder / "theirs").exists() and [path.name for path in tmp_path.iterdir()] == ["x-k"]


def test_keys_distinguish_lists_that_read_alike() -> None:
    assert len({key_of("ab", "c"), key_of("a", "bc"), key_of("abc"), key_of("a", "b", "c")}) == 4


def test_a_trees_key_follows_names_contents_and_modes_only(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("x")
    first = key_of_tree(tmp_path)
    os.utime(tmp_path / "a", (1, 1))
    assert key_of_tree(tmp_path) == first
    keys = {first}
    (tmp_path / "a").chmod(0o755)
    keys.add(key_of_tree(tmp_path))
    (tmp_path / "a").write_text("y")
    keys.add(key_of_tree(tmp_path))
    (tmp_path / "a").rename(tmp_path / "b")
    keys.add(key_of_tree(tmp_path))
    (tmp_path / "link").symlink_to(tmp_path)
    keys.add(key_of_tree(tmp_path))
    assert len(keys) == 5
