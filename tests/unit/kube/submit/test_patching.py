"""What a user's patch makes of an object."""

from __future__ import annotations

from typing import Any

import pytest

from bireme.core.errors import SpecError
from bireme.kube.submit.patching import merge

POD: dict[str, Any] = {
    "containers": [{"name": "node", "image": "a", "env": [{"name": "A", "value": "1"}, {"name": "B", "value": "2"}]}],
    "tolerations": [{"key": "x"}],
    "labels": {"one": "1", "two": "2"},
}


def test_maps_are_merged_and_a_null_removes_a_key() -> None:
    assert merge(POD, {"labels": {"two": None, "three": "3"}})["labels"] == {"one": "1", "three": "3"}


def test_items_of_one_key_are_merged_and_others_added() -> None:
    patch = {"containers": [{"name": "node", "env": [{"name": "B", "value": "9"}, {"name": "C", "value": "3"}]}]}
    (box,) = merge(POD, patch)["containers"]
    assert box["image"] == "a"
    assert {each["name"]: each["value"] for each in box["env"]} == {"A": "1", "B": "9", "C": "3"}
    names = [box["name"] for box in merge(POD, {"containers": [{"name": "beside"}]})["containers"]]
    assert names == ["node", "beside"]


def test_an_item_can_be_removed() -> None:
    patch = {"containers": [{"name": "node", "env": [{"name": "A", "$patch": "delete"}]}]}
    (box,) = merge(POD, patch)["containers"]
    assert [each["name"] for each in box["env"]] == ["B"]


def test_other_lists_are_replaced() -> None:
    assert merge(POD, {"tolerations": [{"key": "y"}]})["tolerations"] == [{"key": "y"}]


def test_a_patch_never_changes_what_it_was_given() -> None:
    import copy

    before = copy.deepcopy(POD)
    merge(POD, {"containers": [{"name": "node", "image": "b"}], "labels": {"one": None}})
    assert before == POD


def test_an_item_without_its_key_is_refused() -> None:
    with pytest.raises(SpecError, match="every item of `containers` needs a `name`"):
        merge(POD, {"containers": [{"image": "b"}]})


def test_nulls_where_there_is_nothing_to_remove_are_dropped() -> None:
    assert merge({}, {"new": {"a": None, "b": [{"c": None}]}}) == {"new": {"b": [{}]}}
