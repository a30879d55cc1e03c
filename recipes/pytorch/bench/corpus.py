"""A corpus for language models with the size and shape of the Penn Treebank, or a user's own.

The real one (Marcus et al., 1993, as Mikolov et al., 2010, prepared it) has a vocabulary of 10,000, and for
training 929,589 words in 42,068 sentences: 22 to a sentence with its end. A generated one has that vocabulary
and that mean; words occur by Zipf's law. Times depend on sizes, not on which word stands where.
"""

import os
from pathlib import Path

import numpy as np

VOCABULARY = 10_000
_MEAN, _SENTENCES = 21, 2_000
_MOST_BYTES = 64 << 20


def words(rank: int) -> "list[int]":
    """Return a rank's words by number, from 0 for the end of a sentence."""
    path = os.environ.get("ENVBUILD_DATA", "")
    return _read(Path(path)) if path else _generated(rank)


def _generated(rank: int) -> "list[int]":
    random = np.random.RandomState(2026 + rank)
    chances = 1.0 / np.arange(1, VOCABULARY)
    chances /= chances.sum()
    numbers = []
    for length in random.poisson(_MEAN, _SENTENCES):
        numbers += (1 + random.choice(VOCABULARY - 1, size=length, p=chances)).tolist()
        numbers.append(0)
    return numbers


def _read(path: Path) -> "list[int]":
    """Return the words of a text, a sentence a line; the most frequent have the smallest numbers."""
    with path.open(encoding="utf-8", errors="replace") as file:
        sentences = [line.split() for line in file.read(_MOST_BYTES).splitlines()]
    counts: dict = {}
    for sentence in sentences:
        for word in sentence:
            counts[word] = counts.get(word, 0) + 1
    known = sorted(counts, key=lambda word: (-counts[word], word))[: VOCABULARY - 2]
    # The last number is that of all words that are not known.
    numbers = {word: number for number, word in enumerate(known, 1)}
    return [
        number
        for sentence in sentences
        for number in [*(numbers.get(word, VOCABULARY - 1) for word in sentence), 0]
    ]
