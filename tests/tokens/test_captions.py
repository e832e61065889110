"""Captions: the ids of a text between a start and an end, by a tokenizer of ours or by that of a Hugging Face CLIP."""

import json
import sys

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fullstride.tokens import bpe, captions
from fullstride.tokens.captions import Captions
from fullstride.tokens.characters import Characters

from .clip_files import CLIP_FILES, TEXTS, write_clip_files
from .conftest import make_text
from .test_tokenizers import ANY_TEXT, LIKELY_TEXT

KINDS = ["characters", "bpe", "clip"]


@pytest.fixture(params=KINDS, scope="module")
def tokenizer(request, trained, text, tmp_path_factory):
    if request.param == "clip":
        pytest.importorskip("tokenizers")
        folder = tmp_path_factory.mktemp("clip")
        write_clip_files(folder)
        return captions.load(folder)
    return Captions(Characters(text) if request.param == "characters" else trained)


def test_the_end_is_one_id_more_than_our_tokenizers_have(trained):
    assert (Captions(trained).end, Captions(trained).vocabulary) == (600, 601)


@given(data=st.data(), context=st.integers(2, 40))
def test_a_caption_begins_with_the_start_and_has_its_end_once_at_the_end(tokenizer, data, context):
    ids = tokenizer.encode(data.draw(ANY_TEXT | LIKELY_TEXT), context)
    assert ids[0] == tokenizer.bos
    assert ids.index(tokenizer.end) == len(ids) - 1 < context
    assert max(ids) < tokenizer.vocabulary


def test_a_long_caption_is_cut_and_ends_all_the_same(tokenizer):
    whole = tokenizer.encode("the king and the kingdom", 1000)
    assert tokenizer.encode("the king and the kingdom", 5) == [*whole[:4], tokenizer.end]
    assert tokenizer.encode("the king", 1) == [tokenizer.end]
    with pytest.raises(ValueError, match="context: expected 1 token or more, got 0"):
        tokenizer.encode("the king", 0)


def test_white_space_becomes_single_spaces(tokenizer):
    expected = tokenizer.encode("the king", 99)
    assert len(expected) > 3
    for text in ("  the\t\r\n king ", "the\u3000king", "the\u2028\u00a0 king\n"):
        assert tokenizer.encode(text, 99) == expected


@given(text=ANY_TEXT)
def test_white_space_is_what_python_takes_for_it(text):
    text = text.replace("\u2581", " ")
    assert captions.single_spaced(text) == " ".join(text.split())


def test_all_white_space_of_unicode_is_known():
    for space in (c for c in map(chr, range(0x110000)) if c.isspace()):
        assert captions.single_spaced(f"a{space}b") == "a b"


def test_case_is_kept_by_our_tokenizers(trained):
    assert Captions(trained).encode("The", 99) != Captions(trained).encode("the", 99)


def test_halves_of_surrogate_pairs_are_refused(tokenizer):
    with pytest.raises(ValueError, match=r"character 1 of the text is U\+D800"):
        tokenizer.encode("a\ud800", 99)


def test_a_batch_is_as_long_as_its_longest_rounded_up_and_filled_with_the_end(tokenizer):
    texts = ["the king", "", "the"]
    ids = [tokenizer.encode(text, 99) for text in texts]
    longest = max(map(len, ids))
    batch = tokenizer.batch(texts, 99, multiple=5)
    assert batch.dtype == torch.int64
    assert batch.shape == (3, -(-longest // 5) * 5)
    for row, expected in zip(batch.tolist(), ids, strict=True):
        assert row == expected + [tokenizer.end] * (len(row) - len(expected))


def test_a_batch_is_no_longer_than_the_context(tokenizer):
    batch = tokenizer.batch(["the king and the kingdom", "o"], 6, multiple=8)
    assert batch.shape == (2, 6)
    assert batch[0].tolist() == tokenizer.encode("the king and the kingdom", 6)


def test_a_batch_of_no_captions_is_empty(tokenizer):
    assert tokenizer.batch([], 77).shape == (0, 8)


def test_what_was_saved_is_loaded(tokenizer, tmp_path):
    written = tokenizer.save(tmp_path)
    assert sorted(written) == sorted(tmp_path.iterdir())
    found = captions.load(tmp_path)
    assert (found.vocabulary, found.bos, found.end) == (tokenizer.vocabulary, tokenizer.bos, tokenizer.end)
    for text in TEXTS:
        assert found.encode(text, 50) == tokenizer.encode(text, 50)


def test_a_folder_without_a_tokenizer_has_none(tmp_path):
    (tmp_path / "tokenizer_config.json").write_text("{}")
    assert captions.load(tmp_path) is None
    with pytest.raises(ValueError, match=r"expected a tokenizer \(tokenizer\.model, .*\), got none") as refused:
        captions.load_from(tmp_path)
    assert str(tmp_path) in str(refused.value)


def test_characters_are_those_of_the_texts():
    found = captions.train((text for text in ["a  b\n", "\u00e9"]), "characters", 9)
    assert found.tokenizer.alphabet == " ab\u00e9"
    assert found.vocabulary == 3 + 256 + 4 + 1


def test_bpe_has_as_many_pieces_as_asked(text):
    assert captions.train(iter(text.split("\n")), "bpe", 600).vocabulary == 601


def test_bpe_has_fewer_pieces_if_the_texts_are_not_good_for_so_many(text):
    with pytest.raises(ValueError, match=r"good for \d+ pieces, not 32000") as refused:
        bpe.train([captions.single_spaced(text)], 32000)
    most = int(str(refused.value).split(" pieces")[0].split()[-1])
    found = captions.train(iter([text]), "bpe", 32000)
    assert found.vocabulary == most + 1
    assert found.tokenizer.pieces() == bpe.train([captions.single_spaced(text)], most).pieces()


@pytest.mark.parametrize("at_most", [False, True])
def test_texts_that_are_good_for_too_few_pieces_are_refused(at_most):
    words = r"^vocabulary: the text is good for \d+ pieces, not 600: give more text, or take characters$"
    with pytest.raises(ValueError, match=words):
        bpe.train(["a few words"], 600, at_most)


def test_pieces_do_not_depend_on_the_limit_being_a_hard_one():
    parts = [make_text(3000)]
    assert bpe.train(parts, 600, at_most=True).pieces() == bpe.train(parts, 600).pieces()


@pytest.mark.parametrize("names", [("vocab.json", "merges.txt"), ("tokenizer.json",)], ids=["older", "newer"])
def test_transformers_gives_the_ids_of_a_clip_tokenizer(names, tmp_path):
    transformers = pytest.importorskip("transformers")
    write_clip_files(tmp_path, names)
    theirs = transformers.CLIPTokenizer.from_pretrained(tmp_path)
    ours = captions.load(tmp_path)
    assert (ours.vocabulary, ours.bos, ours.end) == (len(theirs), theirs.bos_token_id, theirs.eos_token_id)
    for text in TEXTS:
        assert ours.encode(text, 999) == theirs(text)["input_ids"]
        assert ours.encode(text, 7) == theirs(text, truncation=True, max_length=7)["input_ids"]


def test_a_clip_tokenizer_with_padding_and_truncation_in_its_file_is_read_without(tmp_path):
    tokenizers = pytest.importorskip("tokenizers")
    write_clip_files(tmp_path, ("tokenizer.json",))
    expected = captions.load(tmp_path).encode("the king and the kingdom", 99)
    tokenizer = tokenizers.Tokenizer.from_file(str(tmp_path / "tokenizer.json"))
    tokenizer.enable_truncation(4)
    tokenizer.enable_padding(length=77)
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    assert captions.load(tmp_path).encode("the king and the kingdom", 99) == expected


def test_all_files_of_a_clip_tokenizer_are_kept_to_the_byte(tmp_path):
    pytest.importorskip("tokenizers")
    (tmp_path / "from").mkdir()
    (tmp_path / "to").mkdir()
    write_clip_files(tmp_path / "from")
    captions.load(tmp_path / "from").save(tmp_path / "to")
    for name in CLIP_FILES:
        assert (tmp_path / "to" / name).read_bytes() == (tmp_path / "from" / name).read_bytes()


@pytest.mark.parametrize(
    ("names", "name", "content", "words"),
    [
        (("tokenizer.json",), "tokenizer.json", b"", r"expected the tokenizer\.json of a CLIP, got what is damaged"),
        (("tokenizer.json",), "tokenizer.json", b"\xff{}", r"expected the tokenizer\.json of a CLIP, got what is dam"),
        (("vocab.json", "merges.txt"), "vocab.json", b"[]", r"expected the vocab\.json and merges\.txt of a CLIP, got"),
        (("vocab.json", "merges.txt"), "merges.txt", b"q\n", r"expected the vocab\.json and merges\.txt of a CLIP"),
        (("vocab.json", "merges.txt"), "merges.txt", None, r"expected merges\.txt beside vocab\.json, got none"),
        (("vocab.json", "merges.txt"), "vocab.json", None, r"expected vocab\.json beside merges\.txt, got none"),
        (("vocab.json", "merges.txt"), "added_tokens.json", b'{"<new>": 999}', r"added_tokens\.json has '<new>'"),
    ],
)
def test_damaged_files_are_refused_in_one_line(names, name, content, words, tmp_path):
    pytest.importorskip("tokenizers")
    write_clip_files(tmp_path, names)
    if content is None:
        (tmp_path / name).unlink()
    else:
        (tmp_path / name).write_bytes(content)
    with pytest.raises(ValueError, match=words) as refused:
        captions.load(tmp_path)
    assert str(refused.value).startswith(f"{tmp_path}: ")
    assert "\n" not in str(refused.value)


def test_a_tokenizer_without_signs_is_refused(tmp_path):
    pytest.importorskip("tokenizers")
    (tmp_path / "vocab.json").write_text(json.dumps({"a": 0, "<|endoftext|>": 1}))
    (tmp_path / "merges.txt").write_text("#version: 0.2\n")
    with pytest.raises(ValueError, match=r"expected a tokenizer with signs for the start and the end of a caption"):
        captions.load(tmp_path)


def test_the_signs_are_known_by_their_names_if_no_rule_puts_them(tmp_path):
    pytest.importorskip("tokenizers")
    write_clip_files(tmp_path, ("tokenizer.json",))
    expected = captions.load(tmp_path).encode("the king", 99)
    content = json.loads((tmp_path / "tokenizer.json").read_text()) | {"post_processor": None}
    (tmp_path / "tokenizer.json").write_text(json.dumps(content))
    assert captions.load(tmp_path).encode("the king", 99) == expected


def test_missing_package_is_named_with_what_gets_it(monkeypatch, tmp_path):
    write_clip_files(tmp_path, ("vocab.json", "merges.txt"))
    monkeypatch.setitem(sys.modules, "tokenizers", None)
    with pytest.raises(
        ValueError, match=r"^tokenizers is not installed; get it with: pip install 'fullstride\[transformers\]'$"
    ):
        captions.load(tmp_path)
