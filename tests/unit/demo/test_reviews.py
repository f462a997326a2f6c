"""The demo's reviews: their formats, their truth, and the same bytes everywhere."""

from __future__ import annotations

import hashlib
from collections import Counter
from pathlib import Path

import pytest

from bireme.core.draws import draw_bits
from bireme.core.errors import OutputExistsError, UsageError
from bireme.demo.lexicon import BAD, GOOD, NEUTRAL_PATTERNS, SENTIMENT_PATTERNS, SLOTS
from bireme.demo.reviews import ReviewFacts, write_reviews


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, ReviewFacts]:
    directory = tmp_path_factory.mktemp("reviews")
    return directory, write_reviews(directory, train=1_000, test=200, words=3_000)


def _samples(path: Path) -> list[tuple[int, list[str]]]:
    rows = [line.split("\t") for line in path.read_text().splitlines()]
    return [(int(label), text.split(" ")) for label, text in rows]


def _truth(tokens: list[str]) -> int:
    counts = Counter(tokens)
    return int(sum(counts[word] for word in GOOD) > sum(counts[word] for word in BAD))


def test_known_truth_errs_exactly_by_the_flipped_labels(made: tuple[Path, ReviewFacts]) -> None:
    samples = _samples(made[0] / "test.txt")
    assert sum(_truth(tokens) != label for label, tokens in samples) == 10


def test_classes_are_balanced_in_train_and_test(made: tuple[Path, ReviewFacts]) -> None:
    for name, half in (("train.txt", 500), ("test.txt", 100)):
        assert Counter(label for label, _ in _samples(made[0] / name)) == {0: half, 1: half}


def test_reviews_have_about_eighty_tokens(made: tuple[Path, ReviewFacts]) -> None:
    lengths = [len(tokens) for _, tokens in _samples(made[0] / "train.txt")]
    assert 70 < sum(lengths) / len(lengths) < 90
    assert min(lengths) >= 40
    assert max(lengths) <= 130


def test_dictionary_starts_with_unk_and_falls_in_frequency(made: tuple[Path, ReviewFacts]) -> None:
    rows = [line.split("\t") for line in (made[0] / "dict.txt").read_text().splitlines()]
    counts = [int(count) for _, count in rows]
    assert rows[0] == ["unk", "-1"]
    assert len(rows) == 3_001
    assert len({word for word, _ in rows}) == 3_001
    assert counts[1:] == sorted(counts[1:], reverse=True)
    assert counts[-1] >= 1


def test_dictionary_counts_are_those_of_train_txt(made: tuple[Path, ReviewFacts]) -> None:
    seen = Counter(token for _, tokens in _samples(made[0] / "train.txt") for token in tokens)
    rows = [line.split("\t") for line in (made[0] / "dict.txt").read_text().splitlines()]
    assert {word: int(count) for word, count in rows[1:]} == seen


def test_list_files_name_what_is_there(made: tuple[Path, ReviewFacts]) -> None:
    directory = made[0]
    assert (directory / "labels.list").read_text() == "neg\t0\npos\t1\n"
    for role in ("train", "test", "pred"):
        assert (directory / f"{role}.list").read_text() == f"data/{role}.txt\n"
    predicted = (directory / "pred.txt").read_text().splitlines()
    assert [_truth(line.split()) for line in predicted] == [0, 1] * 4
    assert not any("\t" in line for line in predicted)


def test_default_reviews_are_the_same_bytes_everywhere(tmp_path: Path) -> None:
    progress: list[tuple[int, int]] = []
    write_reviews(tmp_path, on_progress=lambda done, total: progress.append((done, total)))
    digests = {
        name: hashlib.sha256((tmp_path / name).read_bytes()).hexdigest()[:16]
        for name in ("train.txt", "test.txt", "dict.txt", "pred.txt")
    }
    assert digests == {
        "train.txt": "3dda86675c712021",
        "test.txt": "6b549fe696d303b4",
        "dict.txt": "a5d445bb4d6d9634",
        "pred.txt": "bda2dcac267bce6e",
    }
    assert sum(_truth(tokens) != label for label, tokens in _samples(tmp_path / "test.txt")) == 120
    assert progress[-1] == (26_408, 26_408)


def test_another_seed_gives_other_reviews(tmp_path: Path) -> None:
    for seed in (1, 2):
        write_reviews(tmp_path / str(seed), seed=seed, train=20, test=20, words=1_000)
    assert (tmp_path / "1/train.txt").read_bytes() != (tmp_path / "2/train.txt").read_bytes()


def test_old_reviews_are_not_replaced(tmp_path: Path) -> None:
    (tmp_path / "dict.txt").write_text("mine")
    with pytest.raises(OutputExistsError, match=r"dict\.txt is already there"):
        write_reviews(tmp_path, train=20, test=20, words=1_000)
    assert [path.name for path in tmp_path.iterdir()] == ["dict.txt"]


def test_too_few_words_are_refused_with_the_least_that_works(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"ask for at least \d+ words"):
        write_reviews(tmp_path, words=100)


def test_no_test_reviews_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="cannot write 0 test reviews"):
        write_reviews(tmp_path, test=0)


def test_interrupted_writing_leaves_nothing(tmp_path: Path) -> None:
    def interrupt(done: int, total: int) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write_reviews(tmp_path / "a" / "b", train=20, test=20, words=1_000, on_progress=interrupt)
    assert list(tmp_path.iterdir()) == []


def test_only_slots_for_sentiment_hold_sentiment_words() -> None:
    literals = {token for pattern in SENTIMENT_PATTERNS + NEUTRAL_PATTERNS for token in pattern}
    neutral = literals | {word for words in SLOTS.values() for word in words}
    assert not neutral & {*GOOD, *BAD}
    assert not {*GOOD} & {*BAD}
    assert all(pattern.count("GOOD_OR_BAD") == 1 for pattern in SENTIMENT_PATTERNS)
    assert not any("GOOD_OR_BAD" in pattern for pattern in NEUTRAL_PATTERNS)


def test_draws_follow_the_published_splitmix64_sequence() -> None:
    assert draw_bits(0, 0, 2).tolist() == [0xE220A8397B1DCDAF, 0x6E789E6AA1B965F4]
    assert draw_bits(0, 2, 1).tolist() == [0x06C45D188009454F]
