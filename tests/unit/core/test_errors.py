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
    # `cluster down` promises 3 for leftovers; a wrong file cannot get that far, so there it means nothing else.
    classes = [c for c in CLASSES if c is not errors.LeftoversError]
    for cls in classes:
        others = [c for c in classes if c.exit_code == cls.exit_code]
        oldest = min(others, key=lambda c: len(c.__mro__))
        assert all(issubclass(c, oldest) for c in others)
