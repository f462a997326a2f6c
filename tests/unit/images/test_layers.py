from __future__ import annotations

import gzip
import os
import tarfile
from pathlib import Path

from bireme.images.layers import EPOCH, TAR_GZIP, compress, write_layer


def make_tree(root: Path, names: list[str]) -> Path:
    for name in names:
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"content of {name}")
    return root


def entries(path: Path) -> dict[str, tarfile.TarInfo]:
    with tarfile.open(path) as tar:
        return {member.name: member for member in tar}


def test_equal_trees_give_equal_bytes_whenever_and_in_whatever_order_they_were_made(tmp_path: Path) -> None:
    names = ["a/b/c", "a/b.txt", "a-b", "z"]
    one, other = make_tree(tmp_path / "1", names), make_tree(tmp_path / "2", names[::-1])
    os.utime(other / "z", (1, 1))
    first = write_layer("x", one, tmp_path / "1.tar")
    again = write_layer("x", other, tmp_path / "2.tar")
    assert first.digest == again.digest
    assert (tmp_path / "1.tar").read_bytes() == (tmp_path / "2.tar").read_bytes()


def test_files_belong_to_root_carry_one_time_and_lose_set_id_bits(tmp_path: Path) -> None:
    tree = make_tree(tmp_path / "tree", ["bin/su"])
    (tree / "bin" / "su").chmod(0o4755)
    (tree / "tmp").mkdir()
    (tree / "tmp").chmod(0o1777)
    write_layer("x", tree, tmp_path / "x.tar")
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
    packed, again = compress(plain, tmp_path / "x.gz"), compress(plain, tmp_path / "y.gz")
    assert packed.digest == again.digest != plain.digest
    assert packed.diff_id == plain.diff_id
    assert packed.nbytes < plain.nbytes
    assert packed.media_type == TAR_GZIP
    assert gzip.decompress((tmp_path / "x.gz").read_bytes()) == (tmp_path / "x.tar").read_bytes()
