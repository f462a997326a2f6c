from __future__ import annotations

import pytest

from bireme.core import errors
from bireme.core.errors import BiremeError

CLASSES = [c for c in vars(errors).values() if isinstance(c, type) and issubclass(c, BiremeError)]


def test_a_message_has_what_why_and_fix_each_on_a_line() -> None:
    error = BiremeError("it broke", why="it matters", fix="mend it")
    assert str(error) == "it broke\n  why: it matters\n  fix: mend it"
    assert str(BiremeError("it broke")) == "it broke"


@pytest.mark.parametrize("cls", CLASSES)
def test_every_class_is_drawn_in_the_tree_with_its_exit_code(cls: type[BiremeError]) -> None:
    lines = [line for line in (errors.__doc__ or "").splitlines() if f" {cls.__name__} " in f" {line} "]
    assert lines
    assert str(cls.exit_code) in lines[0].split()


def test_exit_codes_are_shared_only_within_a_family() -> None:
    for cls in CLASSES:
        others = [c for c in CLASSES if c.exit_code == cls.exit_code]
        oldest = min(others, key=lambda c: len(c.__mro__))
        assert all(issubclass(c, oldest) for c in others)
