"""The demo's training data: made-up product reviews in the quick-start formats.

The true label of a review is the majority of its sentiment words, which a linear model can learn exactly; then exactly
5 % of the labels are flipped, evenly over both classes. So the best possible test error is known, and a training run
can be judged against it. The same seed gives the same bytes everywhere.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from bireme.core.errors import OutputExistsError, UsageError
from bireme.data.staging import Progress, move_all, staged
from bireme.demo.grammar import Draws, Ids, Text, Vocabulary, compose, english_words, make_vocabulary

FLIPPED_PERCENT = 5
_PREDICTED = 8
"""Lines of pred.txt: unlabelled, alternately negative and positive."""
_CHUNK = 2_000
_SMALL_FILES = {
    "labels.list": "neg\t0\npos\t1\n",
    "train.list": "data/train.txt\n",
    "test.list": "data/test.txt\n",
    "pred.list": "data/pred.txt\n",
}
_FILES = ("test.txt", "dict.txt", "pred.txt", *_SMALL_FILES, "train.txt")


@dataclass(frozen=True, slots=True)
class ReviewFacts:
    """What `write_reviews` made."""

    train: int
    test: int
    words: int
    """Words in the dictionary, not counting `unk`."""


def write_reviews(
    directory: Path,
    *,
    seed: int = 1,
    train: int = 24_000,
    test: int = 2_400,
    words: int = 30_000,
    on_progress: Progress | None = None,
) -> ReviewFacts:
    """Write train.txt, test.txt, pred.txt, dict.txt and the list files into `directory`.

    Refuses to replace any of them. `on_progress` gets the reviews written and those in all.
    """
    _refuse_bad_request(directory, train, test, words)
    vocabulary = make_vocabulary(words, Draws(seed, "names"))
    truth, flipped = _labels(train, Draws(seed, "train labels"))
    test_truth, test_flipped = _labels(test, Draws(seed, "test labels"))
    text = compose(vocabulary, truth, Draws(seed, "train"), every_name=True)
    test_text = compose(vocabulary, test_truth, Draws(seed, "test"), every_name=False)
    pred_labels = np.arange(_PREDICTED, dtype=np.int64) % 2
    pred_text = compose(vocabulary, pred_labels, Draws(seed, "pred"), every_name=False)
    with staged(directory) as stage:
        writer = _Writer(vocabulary, train + test + _PREDICTED, on_progress)
        writer.write(stage / "train.txt", text, truth ^ flipped)
        writer.write(stage / "test.txt", test_text, test_truth ^ test_flipped)
        writer.write(stage / "pred.txt", pred_text, None)
        (stage / "dict.txt").write_text(_dictionary(vocabulary, text), encoding="utf-8")
        for name, content in _SMALL_FILES.items():
            (stage / name).write_text(content, encoding="utf-8")
        move_all([(stage / name, directory / name) for name in _FILES])
    return ReviewFacts(train, test, words)


class _Writer:
    """Turns token ids into lines of files, and reports progress over all of them."""

    def __init__(self, vocabulary: Vocabulary, total: int, on_progress: Progress | None) -> None:
        self._words: NDArray[np.object_] = np.array(vocabulary.words, dtype=object)
        self._total = total
        self._done = 0
        self._on_progress = on_progress

    def write(self, path: Path, text: Text, labels: Ids | None) -> None:
        with path.open("w", encoding="utf-8", newline="\n") as file:
            for first in range(0, len(text.starts) - 1, _CHUNK):
                lines = self._lines(text, first, min(first + _CHUNK, len(text.starts) - 1))
                if labels is not None:
                    chosen = labels[first : first + len(lines)].tolist()
                    lines = [f"{label}\t{line}" for label, line in zip(chosen, lines, strict=True)]
                file.write("".join(lines))
                self._done += len(lines)
                if self._on_progress is not None:
                    self._on_progress(self._done, self._total)

    def _lines(self, text: Text, first: int, last: int) -> list[str]:
        starts = text.starts[first : last + 1].tolist()
        words = self._words[text.tokens[starts[0] : starts[-1]]].tolist()
        cuts = [start - starts[0] for start in starts]
        return [" ".join(words[a:b]) + "\n" for a, b in pairwise(cuts)]


def _labels(count: int, draws: Draws) -> tuple[Ids, Ids]:
    """Return the true labels, half of each, and a 1 wherever the written label is to be flipped."""
    truth = (np.arange(count, dtype=np.int64) % 2)[draws.order(count)]
    flips = count * FLIPPED_PERCENT // 100
    flipped = np.zeros(count, dtype=np.int64)
    for label, share in ((0, flips // 2), (1, flips - flips // 2)):
        places = np.flatnonzero(truth == label)
        flipped[places[draws.order(len(places))[:share]]] = 1
    return truth, flipped


def _dictionary(vocabulary: Vocabulary, text: Text) -> str:
    counts = np.bincount(text.tokens, minlength=len(vocabulary.words)).tolist()
    ranked = sorted(zip(vocabulary.words, counts, strict=True), key=lambda pair: (-pair[1], pair[0]))
    return "unk\t-1\n" + "".join(f"{word}\t{count}\n" for word, count in ranked)


def _refuse_bad_request(directory: Path, train: int, test: int, words: int) -> None:
    for name, count in (("train", train), ("test", test)):
        if count < 1:
            raise UsageError(f"cannot write {count} {name} reviews", fix="ask for at least one")
    least = len(english_words()) + 1
    if words < least:
        raise UsageError(
            f"a vocabulary of {words} words is too small",
            why="the sentences alone need more",
            fix=f"ask for at least {least} words",
        )
    for name in _FILES:
        if (directory / name).exists():
            fix = "choose an empty directory, or remove the old reviews first"
            raise OutputExistsError(f"{directory / name} is already there", fix=fix)
