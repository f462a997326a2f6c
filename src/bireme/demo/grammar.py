"""Reviews as arrays: from labels to token ids, by the patterns of the lexicon.

Everything is drawn for all reviews at once: first how many sentences and sentiment words each review has, then its
sentences, then what fills each slot. A review has an odd number of sentiment words and the majority of them is its true
label, so a linear model over word counts can be exactly right.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from bireme.core.draws import draw_bits, stream_key
from bireme.demo.lexicon import BAD, ENDINGS, GOOD, NEUTRAL_PATTERNS, ONSETS, SENTIMENT_PATTERNS, SLOTS, VOWELS

Ids = NDArray[np.int64]

_LARGEST = np.uint64(2**64 - 1)
_FEWEST_SENTENCES, _MOST_SENTENCES = 5, 8
_MOST_SENTIMENT = 7
_OPINION, _NAME = -1, -2
"""Codes of the slots in a pattern; listed classes come after, literal words are ids from 0 up."""
_LISTED = {name: -3 - place for place, name in enumerate(SLOTS)}
_OPINION_SHIFT, _LISTED_SHIFT, _NAME_SHIFT = 50, 4, 5


class Draws:
    """A walk along one stream of `core.draws`, named by a seed and a string; each call takes the next draws.

    Nothing but integer arithmetic is used, so no libm, no hash seed and no library's choice of distribution can change
    a drawn word.
    """

    def __init__(self, seed: int, stream: str) -> None:
        self._key = stream_key(seed, "reviews", stream)
        self._next = 0

    def bits(self, count: int) -> NDArray[np.uint64]:
        self._next += count
        return draw_bits(self._key, self._next - count, count)

    def below(self, bounds: Ids) -> Ids:
        """One draw for each bound b, from 0 to b - 1."""
        high = self.bits(len(bounds)) >> np.uint64(32)
        return ((high * bounds.astype(np.uint64)) >> np.uint64(32)).astype(np.int64)

    def below_each(self, bound: int, count: int) -> Ids:
        """`count` draws from 0 to bound - 1."""
        return self.below(np.full(count, bound, dtype=np.int64))

    def zipf(self, size: int, shift: int, count: int) -> Ids:
        """`count` draws of a rank below `size`, rank r weighing 1 / (r + shift)."""
        weights = np.uint64(1 << 40) // np.arange(shift, size + shift, dtype=np.uint64)
        ends = np.cumsum(weights)
        ranks: Ids = np.searchsorted(ends, self.bits(count) % ends[-1], side="right")
        return ranks.astype(np.int64)

    def order(self, count: int) -> Ids:
        """The numbers 0 to count - 1 in random order."""
        return np.argsort(self.bits(count), kind="stable").astype(np.int64)

    def ranks(self, valid: NDArray[np.bool_]) -> Ids:
        """For each row a random order of its valid cells; the others come after these."""
        keys = (self.bits(valid.size) >> np.uint64(1)).reshape(valid.shape)
        keys[~valid] = _LARGEST
        return np.argsort(np.argsort(keys, axis=1, kind="stable"), axis=1, kind="stable").astype(np.int64)


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """Every word of the demo, and which of them may fill which slot."""

    words: tuple[str, ...]
    good: Ids
    bad: Ids
    listed: dict[int, Ids]
    names: Ids
    patterns: Ids
    """One row per pattern, sentiment patterns first, padded with zeros."""
    lengths: Ids


@dataclass(frozen=True, slots=True)
class Text:
    """Reviews end to end: review i is `tokens[starts[i]:starts[i + 1]]`."""

    tokens: Ids
    starts: Ids


def english_words() -> list[str]:
    """Every listed word once, in a fixed order."""
    patterns = SENTIMENT_PATTERNS + NEUTRAL_PATTERNS
    literals = (token for pattern in patterns for token in pattern if not token.isupper())
    listed = (word for words in SLOTS.values() for word in words)
    return list(dict.fromkeys([*literals, *GOOD, *BAD, *listed]))


def make_vocabulary(size: int, draws: Draws) -> Vocabulary:
    english = english_words()
    words = english + _make_names(size - len(english), set(english), draws)
    ids = {word: place for place, word in enumerate(words)}
    rows = [[_code(token, ids) for token in row] for row in SENTIMENT_PATTERNS + NEUTRAL_PATTERNS]
    table = np.zeros((len(rows), max(map(len, rows))), dtype=np.int64)
    for place, row in enumerate(rows):
        table[place, : len(row)] = row
    return Vocabulary(
        words=tuple(words),
        good=_ids_of(GOOD, ids),
        bad=_ids_of(BAD, ids),
        listed={_LISTED[name]: _ids_of(members, ids) for name, members in SLOTS.items()},
        names=np.arange(len(english), size, dtype=np.int64),
        patterns=table,
        lengths=np.array([len(row) for row in rows], dtype=np.int64),
    )


def compose(vocabulary: Vocabulary, labels: Ids, draws: Draws, *, every_name: bool) -> Text:
    """Write one review for each true label; `every_name` uses each made-up name at least once if it can."""
    sentences = _FEWEST_SENTENCES + draws.below_each(_MOST_SENTENCES - _FEWEST_SENTENCES + 1, len(labels))
    opinions = 3 + 2 * draws.below((np.minimum(sentences, _MOST_SENTIMENT) - 1) // 2)
    pattern = _choose_patterns(sentences, opinions, draws)
    lengths = vocabulary.lengths[pattern]
    tokens = vocabulary.patterns[pattern][np.arange(vocabulary.patterns.shape[1]) < lengths[:, None]]
    ends = np.cumsum(lengths)[np.cumsum(sentences) - 1]
    is_opinion = tokens == _OPINION
    is_name = tokens == _NAME
    for code, members in vocabulary.listed.items():
        is_slot = tokens == code
        tokens[is_slot] = members[draws.zipf(len(members), _LISTED_SHIFT, int(is_slot.sum()))]
    tokens[is_opinion] = _opinion_words(vocabulary, labels, opinions, draws)
    tokens[is_name] = _name_words(vocabulary.names, int(is_name.sum()), draws, every_name=every_name)
    return Text(tokens=tokens, starts=np.concatenate([np.zeros(1, dtype=np.int64), ends]))


def _choose_patterns(sentences: Ids, opinions: Ids, draws: Draws) -> Ids:
    is_there = np.arange(_MOST_SENTENCES) < sentences[:, None]
    has_opinion = (draws.ranks(is_there) < opinions[:, None])[is_there]
    opinionated = draws.below_each(len(SENTIMENT_PATTERNS), len(has_opinion))
    neutral = len(SENTIMENT_PATTERNS) + draws.below_each(len(NEUTRAL_PATTERNS), len(has_opinion))
    return np.where(has_opinion, opinionated, neutral)


def _opinion_words(vocabulary: Vocabulary, labels: Ids, opinions: Ids, draws: Draws) -> Ids:
    # The least of three draws: bare majorities are common, so a model must weigh every word well.
    least = (opinions + 1) // 2
    agreeing = least + draws.below(np.repeat(least, 3)).reshape(-1, 3).min(axis=1)
    is_there = np.arange(_MOST_SENTIMENT) < opinions[:, None]
    agrees = (draws.ranks(is_there) < agreeing[:, None])[is_there]
    is_good = agrees == np.repeat(labels == 1, opinions)
    good = vocabulary.good[draws.zipf(len(vocabulary.good), _OPINION_SHIFT, len(is_good))]
    bad = vocabulary.bad[draws.zipf(len(vocabulary.bad), _OPINION_SHIFT, len(is_good))]
    return np.where(is_good, good, bad)


def _name_words(names: Ids, count: int, draws: Draws, *, every_name: bool) -> Ids:
    assert len(names), "a vocabulary without names cannot fill a NAME slot: this is a bug"
    chosen = names[draws.zipf(len(names), _NAME_SHIFT, count)]
    if every_name:
        places = draws.order(count)[: len(names)]
        chosen[places] = names[: len(places)]
    return chosen


def _make_names(count: int, taken: set[str], draws: Draws) -> list[str]:
    names: dict[str, None] = {}
    while len(names) < count:
        parts = draws.below_each(1 << 20, 1 << 14).reshape(-1, 8)
        for row in parts.tolist():
            name = _name(row)
            if name not in taken and len(names) < count:
                names[name] = None
    return list(names)


def _name(row: list[int]) -> str:
    syllables = 2 + row[0] % 3 // 2
    body = "".join(
        ONSETS[row[1 + 2 * i] % len(ONSETS)] + VOWELS[row[2 + 2 * i] % len(VOWELS)] for i in range(syllables)
    )
    return body + ENDINGS[row[7] % len(ENDINGS)]


def _code(token: str, ids: dict[str, int]) -> int:
    if token == "GOOD_OR_BAD":
        return _OPINION
    if token == "NAME":
        return _NAME
    return _LISTED[token] if token.isupper() else ids[token]


def _ids_of(words: tuple[str, ...], ids: dict[str, int]) -> Ids:
    return np.array([ids[word] for word in words], dtype=np.int64)
