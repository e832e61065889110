"""Captions that share words with a caption, found by an index from words to captions.

    score(a, b) = sum over shared words w of log(1 + N / n_w)          n_w of N captions have w: rare words count more

Computed for one caption at a time, of at most a few thousand candidates.
"""

import math
import re
from collections import defaultdict
from collections.abc import Iterable, Sequence

import numpy as np
from numpy.typing import NDArray

from .. import _random

_WORD = re.compile(r"[^\W_]+")
_MOST_OF_A_WORD = 1024  # candidates
_MOST = 4096  # candidates
_STOP_WORDS = """
    a an and are as at be been being but by can do does for from had has have he her here his how in into is
    it its no not of off on one onto or our out over she so some such that the their them then there these
    they this those to under up was we were what when where which while who whose will with you your
"""


def words(text: str) -> list[str]:
    return _WORD.findall(text.casefold())


def same(text: str) -> str:
    """Equal for captions that differ in case and spaces alone."""
    return " ".join(text.casefold().split())


_STOP = frozenset(words(_STOP_WORDS))


class SimilarCaptions:
    def __init__(self, captions: Sequence[str]) -> None:
        lists: dict[str, list[int]] = defaultdict(list)
        for i, caption in enumerate(captions):
            for word in set(words(caption)):
                lists[word].append(i)
        self._having: dict[str, NDArray[np.int32]] = {word: np.array(ids, np.int32) for word, ids in lists.items()}
        self._num = len(captions)

    def content_words(self, captions: Iterable[str]) -> list[str]:
        """Those that say what is to be seen and that other captions may have, the rarest first."""
        found = {word for caption in captions for word in words(caption)} - _STOP
        return sorted(found & self._having.keys(), key=lambda word: (len(self._having[word]), word))

    def having(self, word: str) -> NDArray[np.int32]:
        """The captions with a word, by their numbers."""
        return self._having[word]

    def ranked(self, captions: Iterable[str], turn: int = 0) -> NDArray[np.int32]:
        """Numbers of captions, those that share most first. turn: any number, in whose order come equal ones."""
        parts, weights, left = [], [], _MOST
        for word in self.content_words(captions):
            ids = self._having[word]
            weight = math.log1p(self._num / len(ids))
            most = min(left, _MOST_OF_A_WORD)
            if len(ids) > most:
                start = turn % len(ids)
                ids = np.concatenate([ids[start : start + most], ids[: max(0, start + most - len(ids))]])
            parts.append(ids)
            weights.append(np.full(len(ids), weight))
            left -= len(ids)
        if not parts:
            return np.empty(0, np.int32)
        candidates, places = np.unique(np.concatenate(parts), return_inverse=True)
        scores = np.bincount(places.ravel(), np.concatenate(weights))
        order = _random.mix64(candidates.astype(np.uint64) + np.uint64(turn))
        return candidates[np.lexsort((order, -scores))]
