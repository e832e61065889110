import pytest
from hypothesis import given
from hypothesis import strategies as st

from fullstride.tokens import Piece, Pieces
from fullstride.tokens.tokenizer import special_pieces

from .test_tokenizers import ANY_TEXT, LIKELY_TEXT


@pytest.fixture(scope="module")
def pieces(trained):
    return Pieces(trained.pieces(), trained.bos, trained.eos)


@given(data=st.data())
def test_ids_are_those_of_sentencepiece(pieces, trained, data):
    text = data.draw(ANY_TEXT | LIKELY_TEXT)
    assert pieces.encode(text) == trained.encode(text)


def test_ids_of_a_long_text_are_those_of_sentencepiece(pieces, trained, text):
    assert pieces.encode(text) == trained.encode(text)


def test_long_word_is_put_together_as_by_sentencepiece(pieces, trained):
    word = "thekinghandsomelovely" * 2000
    assert pieces.encode(word) == trained.encode(word)


def made_of(**scores):
    return Pieces([*special_pieces(), *(Piece(text.encode(), score) for text, score in scores.items())], 1, 2)


def texts(tokenizer, text):
    return [tokenizer.decode([id]) for id in tokenizer.encode(text, start=False)]


def test_highest_score_is_united_first():
    assert texts(made_of(a=0, b=0, c=0, ab=-2, bc=-1), "abc") == ["a", "bc"]


def test_first_of_equal_scores_is_united_first():
    assert texts(made_of(a=0, aa=-1), "aaa") == ["aa", "a"]


def test_union_of_unions_is_found():
    assert texts(made_of(a=0, b=0, ab=-1, abab=-2), "ababab") == ["abab", "ab"]


@pytest.mark.parametrize(("bos", "eos", "what"), [(600, 2, "bos"), (1, -1, "eos")])
def test_sign_that_is_no_piece_is_refused(trained, bos, eos, what):
    with pytest.raises(ValueError, match=f"^{what}: expected one of the 600 pieces"):
        Pieces(trained.pieces(), bos, eos)


def test_no_pieces_are_refused():
    with pytest.raises(ValueError, match=r"^pieces: expected some, got none$"):
        Pieces([], 1, 2)
