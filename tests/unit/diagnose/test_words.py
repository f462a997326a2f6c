"""Names, amounts and the scheduler's sentences, taken apart."""

from __future__ import annotations

import pytest

from bireme.diagnose.evidence import plain_line, printed_error
from bireme.diagnose.scheduler import reasons
from bireme.diagnose.words import amount_words, listed, sentence
from bireme.kube.api.fields import seconds
from bireme.spec.kubernetes import amount


@pytest.mark.parametrize(
    ("text", "number"),
    [("250m", 0.25), ("2", 2.0), ("2Gi", 2.0**31), ("1k", 1000.0), ("1e3", 1000.0), ("", 0.0), ("much", 0.0)],
)
def test_quantities_are_numbers(text: str, number: float) -> None:
    assert amount(text) == number


def test_amounts_are_words() -> None:
    assert amount_words("cpu", 1) == "1 CPU"
    assert amount_words("requests.memory", 1.5 * 2**30) == "1.5 GiB"
    assert amount_words("memory", 1000 * 2**20) == "1000 MiB"
    assert amount_words("memory", 20) == "20 bytes"
    assert amount_words("nvidia.com/gpu", 2) == "2 nvidia.com/gpu"


def test_long_lists_are_cut() -> None:
    assert [listed("abcdef"[:n]) for n in (1, 2, 4, 6)] == ["a", "a and b", "a, b, c and d", "a, b, c and 3 more"]
    assert listed(()) == ""


def test_a_time_of_the_api_server_is_read_in_seconds() -> None:
    assert seconds("1970-01-01T00:01:00Z") == 60.0 and seconds(None) == 0.0


def test_the_words_of_others_become_one_line_without_a_stop() -> None:
    assert sentence("a\n  b.") == "a b"
    assert len(sentence("x" * 500)) == 300


@pytest.mark.parametrize(
    ("message", "found"),
    [
        # v1.34
        ("0/3 nodes are available: 3 Insufficient cpu. no new claims to deallocate, preemption: 0/3 nodes are "
         "available: 3 Preemption is not helpful for scheduling.", {"Insufficient cpu": 3}),
        ("0/3 nodes are available: 1 node(s) had untolerated taint(s), 2 node(s) didn't match Pod's node "
         "affinity/selector. no new claims to deallocate, preemption: …",
         {"node(s) had untolerated taint(s)": 1, "node(s) didn't match Pod's node affinity/selector": 2}),
        # before
        ("0/4 nodes are available: 1 Too many pods, 1 node(s) had untolerated taint {a/b: c, d}, 2 Insufficient "
         "memory. preemption: …",
         {"Too many pods": 1, "node(s) had untolerated taint {a/b: c, d}": 1, "Insufficient memory": 2}),
        ("0/2 nodes are available: 2 Insufficient nvidia.com/gpu.", {"Insufficient nvidia.com/gpu": 2}),
        ("0/3 nodes are available: pod has unbound immediate PersistentVolumeClaims. not found", {}),
        ("", {}),
    ],
)  # fmt: skip
def test_the_schedulers_sentence_is_taken_apart(message: str, found: dict[str, int]) -> None:
    assert reasons(message) == found


def test_errors_are_found_in_logs_of_commands_and_of_processes() -> None:
    command = "busy\nerror: no such file\n  why: it is needed\n  fix: make it\n"
    whole = {"kind": "", "what": "no such file", "why": "it is needed", "fix": "make it"}
    assert printed_error(command) == whole
    head = "E1116 17:08:46.815258     1 processes.py:80] "
    assert (
        printed_error(f"I1116 17:08:46.3 1 a.py:1] fine\n{head}no such file\n  why: it is needed\n  fix: make it")
        == whole
    )
    copied = f"trainer 1 | {head}no such file\ntrainer 1 |   why: it is needed\ntrainer 1 |   fix: make it"
    assert printed_error(copied) == whole
    assert printed_error("all is well") == {}
    assert plain_line(f"pserver 0 | {head}lost") == "lost"
