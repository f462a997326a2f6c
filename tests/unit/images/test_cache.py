from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from bireme.images.cache import KEPT, Cache, key_of, key_of_tree
from bireme.images.layers import Layer, write_layer


def make(tree: Path, made: list[Path], target: Path) -> Layer:
    made.append(target)
    return write_layer("x", tree, target)


def test_a_layer_is_made_once_for_a_key(tmp_path: Path) -> None:
    made: list[Any] = []
    tree, cache = tmp_path / "tree", Cache(tmp_path / "cache")
    tree.mkdir()
    first = cache.layer("x", "a" * 64, lambda target: make(tree, made, target))
    again = cache.layer("x", "a" * 64, lambda target: make(tree, made, target))
    assert first == again
    assert len(made) == 1 == len(cache.made)
    cache.forget("x", "a" * 64)
    assert cache.layer("x", "a" * 64, lambda target: make(tree, made, target)) == first
    assert len(made) == 2


def test_only_layers_that_were_used_lately_are_kept(tmp_path: Path) -> None:
    made: list[Any] = []
    tree, cache = tmp_path / "tree", Cache(tmp_path / "cache")
    tree.mkdir()
    for number in range(KEPT + 2):
        cache.layer("x", f"{number:064}"[::-1], lambda target: make(tree, made, target))
        cache.layer("y", "b" * 64, lambda target: make(tree, made, target))
        os.utime(cache.layers / f"x-{f'{number:064}'[::-1][:16]}.json", (number, number))
    kept = {path.stem for path in cache.layers.glob("*.json")}
    assert len(kept) == KEPT + 1
    assert {path.stem for path in cache.layers.glob("*.tar")} == kept
    assert "x-" + "0" * 16 not in kept


def test_a_tree_appears_only_when_it_is_whole_and_stays_unless_it_is_to_be_replaced(tmp_path: Path) -> None:
    cache = Cache(tmp_path)
    with pytest.raises(RuntimeError), cache.making(cache.trees / "x") as half:
        (half / "file").write_text("half")
        raise RuntimeError
    assert list(cache.trees.iterdir()) == []
    with cache.making(cache.trees / "x") as half:
        (half / "file").write_text("old")
    with cache.making(cache.trees / "x") as half:
        (half / "file").write_text("new")
    assert (cache.trees / "x" / "file").read_text() == "old"
    with cache.making(cache.trees / "x", is_replacing=True) as half:
        (half / "file").write_text("new")
    assert (cache.trees / "x" / "file").read_text() == "new"
    assert [path.name for path in cache.trees.iterdir()] == ["x"]


def test_keys_tell_lists_apart_that_read_alike() -> None:
    assert len({key_of("ab", "c"), key_of("a", "bc"), key_of("abc"), key_of("a", "b", "c")}) == 4


def test_the_key_of_a_tree_follows_names_contents_and_modes_but_not_times(tmp_path: Path) -> None:
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
