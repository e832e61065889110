"""transformers gives our tokens and pictures from what we wrote, and we those of what it wrote."""

import io
import shutil

import pytest
import sentencepiece
import torch
from hypothesis import given
from hypothesis import strategies as st

from fullstride.exchange import huggingface_clip
from fullstride.tokens import BPE, Piece, Pieces, captions
from fullstride.tokens.captions import Captions
from fullstride.tokens.characters import Characters
from tests.tokens.clip_files import TEXTS, vocabulary, write_clip_files
from tests.tokens.conftest import make_text
from tests.tokens.test_tokenizers import ANY_TEXT, LIKELY_TEXT

from .clip_models import CHARACTERS, SHAPE, folder_of, inputs_of, logits_of, model_of, tensors_of

transformers = pytest.importorskip("transformers")


@pytest.fixture(scope="module")
def trained():
    return captions.train([make_text(3000)], "bpe", 600)


@pytest.fixture(scope="module", params=["characters", "bpe"])
def both(request, trained, tmp_path_factory):
    """A tokenizer of ours, and what transformers makes of the folder in which it was written."""
    ours = CHARACTERS if request.param == "characters" else trained
    folder = tmp_path_factory.mktemp(request.param) / "folder"
    shape = SHAPE | {"vocabulary": ours.vocabulary, "end": ours.end}
    huggingface_clip.write(folder, shape, tensors_of(shape), ours)
    return ours, transformers.AutoTokenizer.from_pretrained(folder), folder


@given(data=st.data())
def test_transformers_gives_our_tokens(both, data):
    ours, theirs, _ = both
    text = data.draw(ANY_TEXT | LIKELY_TEXT)
    assert theirs(text, truncation=True)["input_ids"] == ours.encode(text, SHAPE["context"])
    assert theirs(text, truncation=True, max_length=1000)["input_ids"] == ours.encode(text, 1000)


@pytest.mark.parametrize("text", [*TEXTS, "<s> </s><unk>", "<|endoftext|>", "<0x41>", " a ", "\u2581", "\x1c1 22"])
def test_transformers_gives_our_tokens_of_unusual_text(both, text):
    ours, theirs, _ = both
    assert theirs(text, truncation=True, max_length=1000)["input_ids"] == ours.encode(text, 1000)


def test_transformers_pads_as_we_do(both):
    ours, theirs, _ = both
    assert (len(theirs), theirs.bos_token_id, theirs.eos_token_id) == (ours.vocabulary, ours.bos, ours.end)
    assert (theirs.pad_token_id, theirs.padding_side, theirs.model_max_length) == (ours.end, "right", 12)
    texts = ["the", "the red square", ""]
    found = theirs(texts, truncation=True, padding=True, return_tensors="pt")["input_ids"]
    assert torch.equal(found, ours.batch(texts, 12, multiple=1))


def test_our_tokenizer_is_read_again(both):
    ours, _, folder = both
    found = huggingface_clip.read(folder).tokenizer
    assert type(found.tokenizer) is type(ours.tokenizer)
    assert (found.vocabulary, found.end) == (ours.vocabulary, ours.end)
    assert found.tokenizer.pieces() == ours.tokenizer.pieces()


def test_what_transformers_saved_of_our_tokenizer_is_read(both, tmp_path):
    ours, theirs, folder = both
    shutil.copytree(folder, tmp_path / "folder")
    for name in ("characters.json", "tokenizer.model", "tokenizer.json", "tokenizer_config.json"):
        (tmp_path / "folder" / name).unlink(missing_ok=True)
    theirs.save_pretrained(tmp_path / "folder")
    found = huggingface_clip.read(tmp_path / "folder").tokenizer
    for text in ("the  red square", "", "\u65e5 12"):
        assert found.encode(text, 99) == ours.encode(text, 99)


def test_a_piece_may_have_the_name_of_the_end(tmp_path):
    texts = ["<", "<|", "<|endoftext|>", "\u2581", "|endoftext|>", *"|endoftx>"]
    special = CHARACTERS.tokenizer.pieces()[:259]
    ours = Captions(Pieces(special + [Piece(text.encode(), -float(i)) for i, text in enumerate(texts)], 1, 2))
    shape = SHAPE | {"vocabulary": ours.vocabulary, "end": ours.end}
    huggingface_clip.write(tmp_path / "folder", shape, tensors_of(shape), ours)
    theirs = transformers.AutoTokenizer.from_pretrained(tmp_path / "folder")
    assert (theirs.eos_token_id, theirs.convert_tokens_to_ids("<|endoftext|>")) == (ours.end, 261)
    assert theirs("e <|endoftext|>")["input_ids"][-1] == ours.end
    assert theirs("e <|endoftext|>", truncation=True)["input_ids"] == ours.encode("e <|endoftext|>", 12)


def test_the_processor_of_transformers_makes_what_the_model_takes(both):
    pytest.importorskip("PIL")
    import numpy as np

    ours, _, folder = both
    picture = np.random.default_rng(0).integers(0, 256, (16, 16, 3), dtype=np.uint8)
    found = transformers.CLIPProcessor.from_pretrained(folder)(
        text=["the red square"], images=[picture], return_tensors="pt", truncation=True
    )
    expected = (torch.from_numpy(picture).permute(2, 0, 1) / 255 - 0.5) / 0.5
    torch.testing.assert_close(found["pixel_values"][0], expected, rtol=0, atol=1e-6)
    assert found["input_ids"].tolist() == [ours.encode("the red square", 12)]


def test_larger_pictures_are_cut_at_the_middle_by_the_processor(tmp_path):
    pytest.importorskip("PIL")
    import numpy as np

    picture = np.zeros((32, 64, 3), np.uint8)
    picture[:, 16:48] = 255
    processor = transformers.AutoImageProcessor.from_pretrained(folder_of(tmp_path))
    found = processor([picture], return_tensors="pt")["pixel_values"]
    assert found.shape == (1, 3, 16, 16)
    assert torch.equal(found[..., 1:-1], torch.ones(1, 3, 16, 14))  # but where bicubic steps over the edge


THEIR_SHAPE = SHAPE | {"vocabulary": len(vocabulary()), "end": vocabulary()["<|endoftext|>"], "context": 20}


@pytest.mark.parametrize("names", [("vocab.json", "merges.txt"), ("tokenizer.json",)], ids=["older", "newer"])
@pytest.mark.parametrize("eos", [2, None])
def test_a_folder_of_transformers_with_its_tokenizer_gives_the_logits_of_captions(eos, names, tmp_path):
    model = model_of(THEIR_SHAPE, eos)
    model.save_pretrained(tmp_path / "folder")
    write_clip_files(tmp_path / "folder", names)
    texts, (_, images) = ["the king", "the king and the", "A king, 12 kings."], inputs_of(THEIR_SHAPE)
    theirs = transformers.CLIPTokenizer.from_pretrained(tmp_path / "folder")(texts, padding=True, return_tensors="pt")
    found = huggingface_clip.read(tmp_path / "folder")
    ours = logits_of(found.shape, found.tensors, found.tokenizer.batch(texts, 20), images)
    with torch.no_grad():
        expected = model.eval()(**theirs, pixel_values=images).logits_per_image
    torch.testing.assert_close(ours, expected, rtol=0, atol=1e-4)


def test_a_tokenizer_of_transformers_goes_back_as_it_came(tmp_path):
    (tmp_path / "run").mkdir()
    write_clip_files(tmp_path / "run")
    tokenizer = captions.load(tmp_path / "run")
    huggingface_clip.write(tmp_path / "folder", THEIR_SHAPE, tensors_of(THEIR_SHAPE), tokenizer)
    for path in (tmp_path / "run").iterdir():
        assert (tmp_path / "folder" / path.name).read_bytes() == path.read_bytes()
    theirs = transformers.AutoTokenizer.from_pretrained(tmp_path / "folder")
    assert type(theirs).__name__.startswith("CLIPTokenizer")
    for text in TEXTS:
        assert theirs(text)["input_ids"] == tokenizer.encode(text, 999)


def test_a_tokenizer_that_is_not_the_models_is_refused(tmp_path):
    folder = folder_of(tmp_path)
    Captions(Characters("abc")).save(folder)
    words = rf"expected a tokenizer of at most {CHARACTERS.vocabulary} ids, .* got one of 264, its end 263"
    with pytest.raises(ValueError, match=words):
        huggingface_clip.read(folder)
    with pytest.raises(ValueError, match=words):
        huggingface_clip.write(tmp_path / "other", SHAPE, tensors_of(SHAPE), Captions(Characters("abc")))
    assert not (tmp_path / "other").exists()


def test_a_tokenizer_that_is_more_than_its_pieces_is_kept_in_its_own_file_and_the_log_says_so(tmp_path, caplog):
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.Train(
        sentence_iterator=iter(make_text(1000).split("\n")), model_writer=model, model_type="unigram", vocab_size=320,
        byte_fallback=True, hard_vocab_limit=False, minloglevel=2,
    )  # fmt: skip
    ours = Captions(BPE(model.getvalue()))
    shape = SHAPE | {"vocabulary": ours.vocabulary, "end": ours.end}
    written = huggingface_clip.write(tmp_path / "folder", shape, tensors_of(shape), ours)
    assert not {"tokenizer.json", "tokenizer_config.json"} & {path.name for path in written}
    assert "not of Llama's kind, so no tokenizer.json is made of it" in caplog.text
    assert huggingface_clip.read(tmp_path / "folder").tokenizer.encode("the king", 99) == ours.encode("the king", 99)
