"""An error names the last line that a provider has read, or none: never a wrong one."""

from __future__ import annotations

from typing import Any

import pytest

from bireme.core.errors import ConfigScriptError, DataError
from bireme.programs.packing import pack

HEAD = "from paddle.trainer.PyDataProvider2 import *\ndef hook(s, **_): pass\n"
TYPES = "[sparse_binary_vector(10), integer_value(2)]"
LINES = "for line in lines:\n"
SKIPPING = f"with open(name) as lines:\n    {LINES}        if line.strip():\n            yield [1], int(line)"
NO_LINE = {
    "all read at once": "with open(name) as f:\n    kept = f.readlines()\nfor line in kept:\n    yield [1], int(line)",
    "all read before": "with open(name) as f:\n    kept = f.read().split()\nfor n in kept:\n    yield [1], int(n)",
    "opened twice": "open(name).close()\n" + SKIPPING,
    "read as bytes": SKIPPING.replace("name)", "name, 'rb')"),
    "sought": SKIPPING.replace("    for", "    lines.seek(0)\n    for"),
    "another file": SKIPPING.replace("name)", "'data/test.txt')"),
}
READ = {
    "iterated": SKIPPING,
    "with readline": SKIPPING.replace(LINES, "lines.readline()\n    while line := lines.readline():\n"),
    "with next": SKIPPING.replace(LINES, "next(lines)\n    for line in lines:\n"),
    "by csv": "import csv\nwith open(name, newline='') as lines:\n    for row in csv.reader(lines):\n"
    "        if row:\n            yield [1], int(row[0])",
}


def write(home: Any, body: str) -> None:
    lines = "\n".join(f"    {line}" for line in body.splitlines())
    home.write("reviews.py", f"{HEAD}@provider(input_types={TYPES}, init_hook=hook)\ndef process(s, name):\n{lines}\n")


def refused(home: Any) -> str:
    source = home.load().source("train")
    with pytest.raises((DataError, ConfigScriptError)) as error:
        pack(source.samples(home.workdir, 0), source.facts(home.workdir).inputs)
    return f"{error.value.what} {error.value.why}"


@pytest.mark.parametrize("how", READ)
@pytest.mark.parametrize("ahead", [0, 1500])
def test_an_error_names_the_last_line_that_was_read(home: Any, how: str, ahead: int) -> None:
    write(home, READ[how])
    blank, lines = "\n\n", "1\n" * ahead
    number = f"{ahead + 4:,}"
    home.data("train.txt", f"{blank}{lines}0\n7\n1\n")
    assert f"sample {ahead + 2} (last line read: {number}): slot 'label'" in refused(home)
    home.data("train.txt", f"{blank}{lines}0\nfive\n1\n")
    assert f"(last line read: {number}): one of the two" in refused(home)


@pytest.mark.parametrize("how", NO_LINE)
def test_an_error_names_no_line_where_it_is_unknown(home: Any, how: str) -> None:
    write(home, NO_LINE[how])
    for file in ("train.txt", "test.txt"):
        home.data(file, "1\n0\n7\n1\n")
    assert "slot 'label'" in (text := refused(home)) and "last line" not in text


def test_a_line_that_editors_count_otherwise_is_not_named(home: Any) -> None:
    write(home, SKIPPING)
    home.data("train.txt", "1\r0\r7\n")
    assert "last line" not in refused(home)
