"""A tokenizer gives the same tokens after its way through each format, and in the programs that read them."""

import json

import pytest

from fullstride import exchange, tokens
from fullstride.tokens import bpe

from .saved_models import CHARACTERS, SHAPE, saved_of

pytest.importorskip("gguf")
pytest.importorskip("sentencepiece")
TEXT = "\n".join(f"It is the {i}th song of the {name}, and the singer's  words are old." for i, name in enumerate(
    ["nightingale", "lark", "wren", "owl", "raven", "robin", "thrush", "swallow", "heron", "finch"] * 30))  # fmt: skip
TEXTS = ["Hello, world", "the song of the lark", "", " ", "  two  spaces ", "\n\n\ta"]
TEXTS += ["\u4f60\u597d \u00e9t\u00e9", "\x00\x7f"]  # what has no piece becomes bytes


def trained(text=TEXT, **options):
    import io

    import sentencepiece

    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.Train(
        sentence_iterator=iter(text.split("\n")), model_writer=model, vocab_size=320, byte_fallback=True,
        hard_vocab_limit=False, minloglevel=2, **options,
    )  # fmt: skip
    return bpe.BPE(model.getvalue())


TRAINED = trained(model_type="bpe", normalization_rule_name="identity", remove_extra_whitespaces=False)
TOKENIZERS = [CHARACTERS, TRAINED, tokens.Pieces(TRAINED.pieces(), 1, 2)]
NAMES = ["characters", "bpe", "pieces"]


def saved_with(tokenizer):
    return saved_of(SHAPE | {"vocabulary": tokenizer.size}, tokenizer)


@pytest.mark.parametrize("target", ["model.bin", "model.gguf", "folder"])
@pytest.mark.parametrize("tokenizer", TOKENIZERS, ids=NAMES)
def test_a_tokenizer_is_read_as_it_was_written(tokenizer, target, tmp_path):
    exchange.write(tmp_path / target, saved_with(tokenizer))
    found = exchange.read(tmp_path / target).tokenizer
    assert (found.size, found.bos, found.eos) == (tokenizer.size, 1, 2)
    assert found.pieces() == tokenizer.pieces()
    for text in [*TEXTS, TEXT]:
        assert found.encode(text) == tokenizer.encode(text)
        assert found.decode(found.encode(text)) == text


@pytest.mark.parametrize("tokenizer", TOKENIZERS, ids=NAMES)
def test_transformers_gives_our_tokens(tokenizer, tmp_path):
    transformers = pytest.importorskip("transformers")
    exchange.write(tmp_path / "folder", saved_with(tokenizer))
    theirs = transformers.AutoTokenizer.from_pretrained(tmp_path / "folder")
    assert (len(theirs), theirs.bos_token_id, theirs.eos_token_id) == (tokenizer.size, 1, 2)
    for text in [*TEXTS, TEXT[:1000]]:
        ids = tokenizer.encode(text)
        assert theirs.encode(text) == [tokenizer.bos, *ids]
        assert theirs.encode(text, add_special_tokens=False) == ids
        assert theirs.decode(ids) == text


def test_a_folder_with_the_tokenizer_of_transformers_alone_is_read(tmp_path):
    exchange.write(tmp_path / "folder", saved_with(TRAINED))
    (tmp_path / "folder" / "tokenizer.model").unlink()
    found = exchange.read(tmp_path / "folder").tokenizer
    assert (found.size, found.bos, found.eos) == (TRAINED.size, 1, 2)
    for text in [*TEXTS, TEXT]:
        assert found.encode(text) == TRAINED.encode(text)
    assert [piece.kind for piece in found.pieces()] == [piece.kind for piece in TRAINED.pieces()]


def test_what_transformers_saved_of_our_tokenizer_is_read(tmp_path):
    transformers = pytest.importorskip("transformers")
    exchange.write(tmp_path / "ours", saved_with(TRAINED))
    exchange.write(tmp_path / "folder", saved_of(SHAPE | {"vocabulary": TRAINED.size}))
    transformers.AutoTokenizer.from_pretrained(tmp_path / "ours").save_pretrained(tmp_path / "folder")
    assert exchange.read(tmp_path / "folder").tokenizer.encode(TEXT) == TRAINED.encode(TEXT)


def test_a_fast_tokenizer_of_another_kind_is_left_out_and_the_log_says_so(tmp_path, caplog):
    exchange.write(tmp_path / "folder", saved_of())
    content = {"added_tokens": [], "model": {"type": "BPE", "vocab": {"a": 0}, "merges": []}}
    (tmp_path / "folder" / "tokenizer.json").write_text(json.dumps(content))
    assert exchange.read(tmp_path / "folder").tokenizer is None
    assert "not of Llama's kind, so the model is read without a tokenizer" in caplog.text


@pytest.mark.parametrize("content", ["", "[]", '{"model": {"type": "BPE"}}', '{"model": 3, "added_tokens": []}'])
def test_a_damaged_fast_tokenizer_is_refused(content, tmp_path):
    exchange.write(tmp_path / "folder", saved_of())
    (tmp_path / "folder" / "tokenizer.json").write_text(content)
    with pytest.raises(ValueError, match=r"tokenizer\.json: expected a tokenizer of transformers, got a damaged one"):
        exchange.read(tmp_path / "folder")


@pytest.mark.parametrize("target", ["model.bin", "folder"])
def test_a_tokenizer_that_is_not_the_models_is_refused(target, tmp_path):
    exchange.write(tmp_path / target, saved_with(TRAINED))
    tokens.Pieces(CHARACTERS.pieces(), 1, 2).save(tmp_path if target == "model.bin" else tmp_path / target)
    (tmp_path / "folder" / "tokenizer.model").unlink(missing_ok=True)
    words = f"expected a tokenizer of {TRAINED.size} tokens, as the model has, got .*tokenizer.bin with 271"
    with pytest.raises(ValueError, match=words):
        exchange.read(tmp_path / target)


@pytest.mark.parametrize("target", ["model.bin", "model.gguf", "folder"])
def test_nothing_is_written_with_a_tokenizer_that_is_not_the_models(target, tmp_path):
    words = "expected a tokenizer of 300 tokens, as the model has, got one with 271"
    with pytest.raises(ValueError, match=words):
        exchange.write(tmp_path / target, saved_of(SHAPE | {"vocabulary": 300}, CHARACTERS))
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("options", [{"model_type": "unigram"}, {"model_type": "bpe"}], ids=["unigram", "nfkc"])
def test_a_tokenizer_that_is_more_than_its_pieces_goes_into_a_folder_only(options, tmp_path, caplog):
    other = trained(**options)
    for target in ("model.bin", "model.gguf"):
        with pytest.raises(ValueError, match=r"would give other tokens; a Hugging Face folder keeps its own file"):
            exchange.write(tmp_path / target, saved_with(other))
    written = exchange.write(tmp_path / "folder", saved_with(other))
    assert "tokenizer.json" not in [path.name for path in written]
    assert "not of Llama's kind, so no tokenizer.json is made of it" in caplog.text
    assert exchange.read(tmp_path / "folder").tokenizer.encode(TEXT) == other.encode(TEXT)


SYMBOLS = {"model_type": "bpe", "user_defined_symbols": "[\u03c9]"}


@pytest.mark.parametrize("options", [{"model_type": "unigram"}, SYMBOLS], ids=["unigram", "symbols"])
def test_pieces_that_are_not_united_by_scores_are_refused_whatever_letters_they_have(options, tmp_path):
    greek = "\n".join("\u03b1\u03b2\u03b3 \u03b2\u03b3\u03b4 \u03b1\u03b2 " + "\u03b3\u03b4" * i for i in range(9))
    options = {"normalization_rule_name": "identity", "remove_extra_whitespaces": False} | options
    other = trained(greek, **options)
    for target in ("model.bin", "model.gguf"):
        with pytest.raises(ValueError, match=r"would give other tokens; a Hugging Face folder keeps its own file"):
            exchange.write(tmp_path / target, saved_with(other))
    assert not list(tmp_path.iterdir())


def test_a_tokenizer_named_by_its_size_is_found_as_llama2c_names_it(tmp_path):
    exchange.write(tmp_path / "model.bin", saved_with(TRAINED))
    (tmp_path / "tokenizer.bin").rename(tmp_path / f"tok{TRAINED.size}.bin")
    tokens.Pieces(CHARACTERS.pieces(), 1, 2).save(tmp_path)  # of another model
    assert exchange.read(tmp_path / "model.bin").tokenizer.size == TRAINED.size


def test_a_second_model_shares_the_tokenizer_that_is_there(tmp_path):
    exchange.write(tmp_path / "first.bin", saved_with(TRAINED))
    before = (tmp_path / "tokenizer.bin").stat().st_mtime_ns
    exchange.write(tmp_path / "second.bin", saved_with(TRAINED))
    assert (tmp_path / "tokenizer.bin").stat().st_mtime_ns == before
    with pytest.raises(ValueError, match=r"tokenizer\.bin is there already"):
        exchange.write(tmp_path / "third.bin", saved_with(CHARACTERS))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["first.bin", "second.bin", "tokenizer.bin"]


def test_transformers_unites_by_score_and_not_by_the_order_of_ids(tmp_path):
    transformers = pytest.importorskip("transformers")
    scores = {"\u2581": -9.0, "a": -9.0, "b": -9.0, "c": -9.0, "ab": -2.0, "bc": -1.0}
    special = CHARACTERS.pieces()[:259]
    tokenizer = tokens.Pieces(special + [tokens.Piece(t.encode(), s) for t, s in scores.items()], 1, 2)
    assert tokenizer.encode("abc") == [259, 260, 264]
    exchange.write(tmp_path / "folder", saved_with(tokenizer))
    theirs = transformers.AutoTokenizer.from_pretrained(tmp_path / "folder")
    assert theirs.encode("abc", add_special_tokens=False) == [259, 260, 264]
