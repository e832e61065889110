import re

import pytest

from fullstride.data.speech.texts import sentences
from fullstride.data.speech.texts.everyday import HELD_OUT
from fullstride.data.speech.texts.inflection import number, plural, verb, with_article, year

GENERATED = [sentences.sentence(5, i) for i in range(3000)]
PINNED = [
    "This is the richest toy in those tropical pharmacies.",
    "There was a magazine to the left of the bronze jar.",
    "The noisy boys become too sensible.",
]


def test_held_out_sentences_are_fifty_of_six_to_twelve_words():
    assert len(HELD_OUT) == len(set(HELD_OUT)) == 50
    assert all(6 <= len(text.split()) <= 12 for text in HELD_OUT)


def test_held_out_sentences_have_no_digits_and_end_as_sentences():
    assert all(re.fullmatch(r"[A-Z][A-Za-z', ]*[.?]", text) for text in HELD_OUT)


def test_a_held_out_sentence_is_drawn_again(monkeypatch):
    first = sentences.sentence(5, 0)
    monkeypatch.setattr(sentences, "_held_out", lambda: frozenset({sentences.key(first.upper())}))
    assert sentences.sentence(5, 0) != first
    assert sentences.sentence(5, 1) == GENERATED[1]


def test_none_of_the_everyday_sentences_comes_out():
    held_out = {sentences.key(text) for text in HELD_OUT}
    assert not held_out & {sentences.key(text) for text in GENERATED}


def test_sentences_are_a_function_of_seed_and_index():
    assert sentences.sentence(7, 123) == sentences.sentence(7, 123)
    assert sentences.sentence(7, 123) != sentences.sentence(8, 123)
    assert sentences.sentence(7, 123) != sentences.sentence(7, 124)


def test_sentences_stay_what_they_were():
    """A prepared corpus goes on where it stopped only if its sentences are the same."""
    assert [sentences.sentence(0, i) for i in range(3)] == PINNED


def test_hardly_a_sentence_comes_twice():
    assert len(set(GENERATED)) > 2970


def test_sentences_have_three_to_sixteen_words():
    assert {len(text.split()) for text in GENERATED} == set(range(3, 17))


def test_sentences_begin_with_a_capital_and_are_plain_words():
    odd = [text for text in GENERATED if not re.fullmatch(r"[A-Z][A-Za-z']*(,? [A-Za-z']+)*[.?!]", text)]
    assert odd == []


def test_vocabulary_is_wide():
    assert len({word for text in GENERATED for word in sentences.key(text).split()}) > 3500


def test_questions_commands_and_statements_come():
    ends = {text[-1] for text in GENERATED}
    assert ends == {".", "?", "!"}
    assert any(text.startswith("Please ") for text in GENERATED)


def test_articles_agree_with_the_sound_that_follows():
    text = " ".join(GENERATED).lower()
    assert re.findall(r"\ba (?!uni|use|usu|one|once|eu)[aeiou]\w*", text) == []
    assert re.findall(r"\ban (?!honest|hour|honor)[^aeiou\W]\w*", text) == []


@pytest.mark.parametrize(
    ("entry", "forms"),
    [
        ("walk", "walk walks walked walked walking"),
        ("stop+", "stop stops stopped stopped stopping"),
        ("carry", "carry carries carried carried carrying"),
        ("bake", "bake bakes baked baked baking"),
        ("agree", "agree agrees agreed agreed agreeing"),
        ("push", "push pushes pushed pushed pushing"),
        ("go/went/gone", "go goes went gone going"),
        ("forget+/forgot/forgotten", "forget forgets forgot forgotten forgetting"),
        ("tie/tied/tied/tying", "tie ties tied tied tying"),
    ],
)
def test_verbs_have_their_forms(entry, forms):
    made = verb(entry)
    assert [made.base, made.third, made.past, made.participle, made.gerund] == forms.split()


def test_the_particle_of_a_verb_stays_as_it_is():
    made = verb("run+_out_of/ran/run")
    assert (made.third, made.gerund, made.particle) == ("runs", "running", "out of")


@pytest.mark.parametrize(
    ("entry", "many"),
    [("cat", "cats"), ("box", "boxes"), ("city", "cities"), ("boy", "boys"), ("child/children", "children"),
     ("post_office", "post offices")],
)  # fmt: skip
def test_nouns_have_their_plural(entry, many):
    assert plural(entry)[1] == many


@pytest.mark.parametrize("phrase", ["an apple", "a cat", "an hour", "a unique plan", "an ugly hat", "an uncle"])
def test_article_goes_by_sound(phrase):
    assert with_article(phrase.split(" ", 1)[1]) == phrase


@pytest.mark.parametrize(
    ("value", "words"),
    [(0, "zero"), (13, "thirteen"), (40, "forty"), (99, "ninety nine"), (100, "one hundred"),
     (205, "two hundred and five"), (1042, "one thousand and forty two"), (52_300, "fifty two thousand three hundred")],
)  # fmt: skip
def test_numbers_are_said_in_words(value, words):
    assert number(value) == words


@pytest.mark.parametrize(
    ("value", "words"),
    [(1904, "nineteen oh four"), (1984, "nineteen eighty four"), (1900, "nineteen hundred"), (2000, "two thousand")],
)
def test_years_are_said_by_hundreds(value, words):
    assert year(value) == words
