import random

import pytest

from fullstride.tokens import bpe

WORDS = [
    "the", "thee", "then", "there", "king", "kingdom", "night", "knight", "love", "loved", "lovely", "O", "o'er", "12",
    "1234", "  spaced",
    "caf\u00e9", "na\u00efve", "\u03b1\u03b2\u03b3", "\u65e5\u672c", "and", "sand", "hand", "handsome",
]  # fmt: skip


def make_text(num_words: int) -> str:
    """Text in which words come in all orders, with their beginnings and ends as words of their own."""
    choice = random.Random(0)
    words = []
    for _ in range(num_words):
        word = choice.choice(WORDS)
        words.append(
            word[: choice.randint(1, len(word))] + choice.choice(["", "", "s", "ing", "est", ".", ",\n", "\n\n"])
        )
    return " ".join(words)


@pytest.fixture(scope="session")
def text():
    return make_text(20_000)


@pytest.fixture(scope="session")
def trained(text):
    return bpe.train([text], 600)
