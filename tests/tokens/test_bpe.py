import io
import sys

import pytest
import sentencepiece
from hypothesis import given
from hypothesis import strategies as st

from fullstride.tokens import bpe
from fullstride.tokens.bpe import BPE

from .test_tokenizers import ANY_TEXT, LIKELY_TEXT


@pytest.fixture(scope="module")
def processor(trained):
    return sentencepiece.SentencePieceProcessor(model_proto=trained._model)


def without_sign(text):
    """sentencepiece takes the sign for a space, so that it does not come back."""
    return text.replace("\u2581", "")


@given(data=st.data())
def test_ids_are_those_of_sentencepiece(trained, processor, data):
    text = without_sign(data.draw(ANY_TEXT | LIKELY_TEXT))
    assert trained.encode(text) == processor.encode(text)


def test_ids_of_a_long_text_are_those_of_sentencepiece(trained, processor, text):
    assert trained.encode(text) == processor.encode(text)


def test_ids_stay_when_more_words_come_than_are_remembered(trained, text, monkeypatch):
    expected = trained.encode(text[:5000])
    monkeypatch.setattr("fullstride.tokens.words._MOST_REMEMBERED", 20)
    tokenizer = BPE(trained._model)
    assert [tokenizer.encode(text[:5000]) for _ in range(2)] == [expected, expected]


def test_vocabulary_is_as_large_as_asked(trained):
    assert trained.size == 600


def test_training_is_the_same_each_time(trained, text):
    assert bpe.train([text], 600)._model == trained._model


@pytest.mark.parametrize("vocabulary", [0, 511, 32001])
def test_vocabulary_out_of_range_is_refused(vocabulary):
    with pytest.raises(ValueError, match=f"^vocabulary: expected 512 to 32000 pieces, got {vocabulary}$"):
        bpe.train(["text"], vocabulary)


def test_text_too_small_for_the_vocabulary_is_refused(text):
    with pytest.raises(
        ValueError, match=r"^vocabulary: the text is good for \d+ pieces, not 32000: give \d+, or more text$"
    ):
        bpe.train([text], 32000)
    with pytest.raises(ValueError, match=r"^vocabulary: the text is good for \d+ pieces, not 512: .* take characters$"):
        bpe.train(["a few words"], 512)


def test_too_many_characters_for_the_vocabulary_are_refused():
    with pytest.raises(
        ValueError, match=r"^vocabulary: the text has so many characters that \d+ pieces are needed, not 512$"
    ):
        bpe.train(["".join(map(chr, range(0x4E00, 0x4E00 + 5000)))], 512)


@pytest.mark.parametrize("parts", [[], [""], ["\n\n"], ["\n", ""]])
def test_text_without_a_line_is_refused(parts):
    with pytest.raises(ValueError, match=r"^the text has no line that pieces could be made of: .* take characters$"):
        bpe.train(parts, 512)


@pytest.mark.parametrize("damage", [lambda model: b"", lambda model: model[:-100], lambda model: b"text\n" * 20])
def test_damaged_file_is_one_line(tmp_path, trained, damage):
    (tmp_path / bpe.FILE).write_bytes(damage(trained._model))
    with pytest.raises(
        ValueError, match=r"tokenizer\.model: expected a sentencepiece model: .*; get it anew$"
    ) as caught:
        bpe.read(tmp_path / bpe.FILE)
    assert "\n" not in str(caught.value)


def test_missing_package_is_named_with_what_gets_it(monkeypatch, trained):
    monkeypatch.setitem(sys.modules, "sentencepiece", None)
    with pytest.raises(
        ValueError, match=r"^sentencepiece is not installed; get it with: pip install 'fullstride\[text\]'$"
    ):
        BPE(trained._model)


def foreign(text, **options):
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.Train(
        sentence_iterator=iter(text.split("\n")), model_writer=model, vocab_size=600, byte_fallback=True, minloglevel=2,
        **options,
    )  # fmt: skip
    return model.getvalue()


@pytest.mark.parametrize(
    "options",
    [
        {"model_type": "bpe"},
        {"model_type": "bpe", "normalization_rule_name": "identity", "add_dummy_prefix": False},
        {"model_type": "bpe", "user_defined_symbols": ["\n", "ing the"], "remove_extra_whitespaces": False},
        {"model_type": "bpe", "split_by_whitespace": False, "normalization_rule_name": "identity"},
    ],
)
def test_model_of_another_kind_gives_the_ids_of_sentencepiece(text, options):
    model = foreign(text, **options)
    theirs, ours = sentencepiece.SentencePieceProcessor(model_proto=model), BPE(model)
    for sample in (text[:3000], "  the  king\n", "\u00bd the", "caf\u00e9 ing the\n\n"):
        assert ours.encode(sample) == theirs.encode(sample)
        assert ours.decode(ours.encode("the king")) == "the king"


def test_model_without_a_sign_for_the_start_is_refused(text):
    with pytest.raises(
        ValueError, match=r"^the tokenizer: expected a sentencepiece model with signs for the start and"
    ):
        BPE(foreign(text, model_type="bpe", bos_id=-1))
