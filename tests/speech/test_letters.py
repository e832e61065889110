import pytest

from fullstride.speech.letters import letters_to_phonemes

SAID = {
    "lighter": "l ay1 t er0",
    "make": "m ey1 k",
    "making": "m ey1 k ih0 ng",
    "nation": "n ey1 sh ax0 n",
    "attention": "ae0 t eh1 n sh ax0 n",
    "phone": "f ow1 n",
    "knight": "n ay1 t",
    "quick": "k w ih1 k",
    "queen": "k w iy1 n",
    "church": "ch er1 ch",
    "judge": "jh ah1 jh",
    "cats": "k ae1 t s",
    "dogs": "d aa1 g z",
    "boxes": "b aa1 k s ih0 z",
    "wanted": "w aa1 n t ih0 d",
    "walked": "w ao1 k t",
    "little": "l ih1 t ax0 l",
    "the": "dh ax0",
    "a": "ax0",
    "I": "ay1",
    "tv": "t iy1 v iy1",
    "Mr": "eh1 m aa1 r",
}


@pytest.mark.parametrize("word", SAID)
def test_word_is_said_by_its_letters(word):
    assert " ".join(letters_to_phonemes(word)) == SAID[word]


@pytest.mark.parametrize("word", ["zyzzyva", "don't", "mississippi", "bcdfg", "aeiou", "qqq", "w" * 200, "xylophone"])
def test_every_word_has_one_stressed_vowel_or_is_spelled(word):
    said = letters_to_phonemes(word)
    assert said
    assert any(sound.endswith("1") for sound in said)
    assert all(sound.isascii() and sound == sound.lower() for sound in said)


def test_what_is_no_letter_is_passed_over():
    assert letters_to_phonemes("ca-t!") == letters_to_phonemes("cat")
    assert letters_to_phonemes("'") == ()
