"""What holds for every tokenizer."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fullstride import tokens
from fullstride.tokens import Characters, Piece, Pieces
from fullstride.tokens.tokenizer import Tokenizer

ANY_TEXT = st.text(st.characters(exclude_categories=["Cs"]))
PARTS = ["the", "king", " ", "  ", "\n", "\r\n", "\t", "\u2581", "\0", "\U0001f600", "1234", "\u00e9", "<s>", "<0x41>"]
LIKELY_TEXT = st.lists(st.sampled_from(PARTS)).map("".join)
KINDS = ["characters", "bpe", "pieces"]


@pytest.fixture(params=KINDS, scope="module")
def tokenizer(request, trained, text) -> Tokenizer:
    if request.param == "characters":
        return Characters(text)
    return trained if request.param == "bpe" else Pieces(trained.pieces(), trained.bos, trained.eos)


@given(data=st.data())
def test_any_text_comes_back_exactly(tokenizer, data):
    text = data.draw(ANY_TEXT | LIKELY_TEXT)
    assert tokenizer.decode(tokenizer.encode(text)) == text


UNUSUAL = [
    "",
    " ",
    "\n",
    "\r\n",
    " a",
    "a  b\n\n  c ",
    "\u2581",
    " \u2581 ",
    "\u2581\u2581a",
    "\U0001f600\0",
    "\ufeffa",
    "\u2585",
]


@pytest.mark.parametrize("unusual", UNUSUAL)
def test_unusual_text_comes_back_exactly(tokenizer, unusual):
    assert tokenizer.decode(tokenizer.encode(unusual)) == unusual


@given(data=st.data())
def test_nothing_in_a_text_stands_for_what_is_no_text(tokenizer, data):
    ids = tokenizer.encode(data.draw(ANY_TEXT | LIKELY_TEXT))
    assert all(tokenizer.eos < id < tokenizer.size for id in ids)


@given(data=st.data())
def test_stream_gives_the_text_as_soon_as_it_is_complete(tokenizer, data):
    text = data.draw(ANY_TEXT | LIKELY_TEXT)
    feed = tokenizer.stream()
    assert feed(tokenizer.bos) == ""
    parts = [feed(id) for id in tokenizer.encode(text)]
    assert "".join(parts) == text
    assert not any("\ufffd" in part for part in parts) or "\ufffd" in text


def test_stream_that_goes_on_keeps_its_first_space(tokenizer):
    feed = tokenizer.stream()
    assert "".join(map(feed, tokenizer.encode(" the king", start=False))) == " the king"


def test_text_that_goes_on_has_no_prefix(tokenizer):
    first, second = "the king", "\n  the night"
    assert tokenizer.encode(first) + tokenizer.encode(second, start=False) == tokenizer.encode(first + second)


def test_prefix_is_one_space_before_any_text_but_none(tokenizer):
    assert tokenizer.encode("the") == tokenizer.encode(" the", start=False)
    assert tokenizer.encode("") == []


def test_bytes_that_are_no_text_are_shown_as_such(tokenizer):
    euro = tokenizer.encode("\u20ac", start=False)
    assert len(euro) == 3
    assert tokenizer.decode([euro[0]]) == "\ufffd"
    assert tokenizer.decode([euro[0], euro[1], *tokenizer.encode("x", start=False)]) == "\ufffdx"
    feed = tokenizer.stream()
    assert [feed(id) for id in euro] == ["", "", "\u20ac"]


def test_half_of_a_surrogate_pair_is_refused(tokenizer):
    with pytest.raises(
        ValueError, match=r"^character 2 of the text is U\+D83D, half of a surrogate pair: .*; remove it$"
    ):
        tokenizer.encode("ab\ud83d")


@pytest.mark.parametrize("id", [-1, 10_000])
def test_id_beyond_the_vocabulary_is_refused(tokenizer, id):
    with pytest.raises(ValueError, match=f"^token {id}: expected one from 0 to {tokenizer.size - 1}"):
        tokenizer.decode([id])


def test_bos_and_eos_are_no_text(tokenizer):
    ids = tokenizer.encode("the king")
    assert (tokenizer.bos, tokenizer.eos) == (1, 2)
    assert tokenizer.decode([tokenizer.bos, *ids, tokenizer.eos, tokenizer.bos, *ids]) == "the kingthe king"


def test_saved_and_loaded_it_is_the_same(tokenizer, tmp_path, text):
    path = tokenizer.save(tmp_path)
    assert path.parent == tmp_path
    assert [file.name for file in tmp_path.iterdir()] == [path.name]
    for place in (path, tmp_path):
        loaded = tokens.load(place)
        assert type(loaded) is type(tokenizer)
        assert loaded.pieces() == tokenizer.pieces()
        assert (loaded.size, loaded.bos, loaded.eos) == (tokenizer.size, 1, 2)
        assert loaded.encode(text[:1000]) == tokenizer.encode(text[:1000])


def test_saving_replaces_what_is_there(tokenizer, tmp_path):
    tokenizer.save(tmp_path).write_bytes(b"damaged")
    assert tokens.load(tokenizer.save(tmp_path)).size == tokenizer.size


def test_pieces_begin_as_llamas(tokenizer):
    pieces = tokenizer.pieces()
    assert len(pieces) == tokenizer.size
    assert [piece.text for piece in pieces[:4]] == [b"<unk>", b"<s>", b"</s>", b"<0x00>"]
    assert [piece.kind for piece in pieces[:4]] == ["unknown", "control", "control", "byte"]
    assert pieces[258].text == b"<0xFF>"
    assert {piece.kind for piece in pieces[259:]} == {"normal"}


def test_folder_without_a_tokenizer_is_refused(tmp_path):
    assert tokens.find(tmp_path) is None
    what = f"^no tokenizer in {re.escape(str(tmp_path))}: expected characters.json, tokenizer.model or tokenizer.bin$"
    with pytest.raises(FileNotFoundError, match=what):
        tokens.load(tmp_path)


def test_missing_and_foreign_files_are_refused(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"^no tokenizer .*tokenizer\.model: there is no such file$"):
        tokens.load(tmp_path / "tokenizer.model")
    (tmp_path / "vocab.txt").touch()
    with pytest.raises(ValueError, match=r"vocab\.txt: expected a tokenizer, a file that ends with \.json, \.model or"):
        tokens.load(tmp_path / "vocab.txt")


def test_text_without_byte_pieces_gets_unknown():
    tokenizer = Pieces([Piece(b"<unk>", 0, "unknown"), Piece(b"<s>", 0, "control"), Piece(b"a", 0)], 1, 1)
    assert tokenizer.encode("ab", start=False) == [2, 0]
    assert tokenizer.decode([2, 0]) == "a\ufffd"
