import json
import multiprocessing
import random
import tracemalloc

import numpy as np
import pytest

from fullstride import tokens
from fullstride.data import corpus as corpus_module
from fullstride.data import sources, text_files
from fullstride.data.corpus import load_corpus
from fullstride.tokens import Characters, bpe

from ..patience import PATIENCE

SYLLABLES = [first + second for first in "bdklmnrstw" for second in ("a", "e", "i", "o", "u", "an", "ing")]


def make_lines(num_lines):
    choice = random.Random(0)
    words = ["".join(choice.choices(SYLLABLES, k=1 + i % 3)) for i in range(500)]
    return "".join(" ".join(choice.choices(words, k=choice.randint(0, 12))) + "\n" for _ in range(num_lines))


LINES = make_lines(700)


@pytest.fixture(autouse=True)
def cache(monkeypatch, tmp_path):
    """Where tokens are kept."""
    monkeypatch.setenv("FULLSTRIDE_DATA", str(tmp_path / "cache"))
    return tmp_path / "cache" / "tokens"


@pytest.fixture
def folder(tmp_path):
    path = tmp_path / "texts"
    (path / "more").mkdir(parents=True)
    (path / "b.txt").write_text(LINES[:9000])
    (path / "a.txt").write_text("caf\u00e9 \U0001f600\n" * 100)
    (path / "more" / "c.txt").write_text(LINES[9000:])
    (path / "notes.md").write_bytes(b"\xff")
    return path


def content(spans):
    return np.concatenate([span.map() for span in spans]).tolist()


def documents(spans, tokenizer):
    """The texts between one bos and the next."""
    parts: list[list[int]] = []
    for token in content(spans):
        if token == tokenizer.bos:
            parts.append([])
        else:
            parts[-1].append(token)
    return [tokenizer.decode(part) for part in parts]


@pytest.mark.parametrize("tokenizer", ["characters", "bpe"])
def test_all_of_every_text_is_there_in_the_order_of_names(folder, tokenizer):
    corpus = load_corpus(folder, tokenizer, 512)
    train, valid = (documents(spans, corpus.tokenizer) for spans in (corpus.train, corpus.valid))
    texts = [(folder / name).read_text() for name in ("a.txt", "b.txt", "more/c.txt")]
    assert [first + second for first, second in zip(train, valid, strict=True)] == texts
    assert corpus.vocabulary == corpus.tokenizer.size


def test_last_share_of_each_text_is_held_out_from_a_line_on(folder):
    corpus = load_corpus(folder, "characters", 0, valid_share=0.25)
    for held_out, name in zip(documents(corpus.valid, corpus.tokenizer), ("a.txt", "b.txt", "more/c.txt"), strict=True):
        whole = (folder / name).read_text()
        assert 0.25 * len(whole) - 80 < len(held_out) <= 0.25 * len(whole) + 1
        assert whole[: -len(held_out)].endswith("\n")


def test_text_without_lines_is_cut_between_characters(tmp_path):
    for length in range(95, 105):
        (tmp_path / "x.txt").write_text("\U0001f600" * length)
        corpus = load_corpus(tmp_path / "x.txt", "characters", 0)
        train, valid = (documents(spans, corpus.tokenizer) for spans in (corpus.train, corpus.valid))
        assert set(train[0] + valid[0]) == {"\U0001f600"}
        assert len(valid[0]) in (length // 10, length // 10 + 1)


def test_pieces_are_trained_on_what_is_not_held_out(folder):
    with (folder / "a.txt").open("a") as file:
        file.write("zyzyzyzyzy " * 10)
    pieces = [piece.text for piece in load_corpus(folder, "bpe", 512).tokenizer.pieces()]
    assert not any(b"zy" in piece for piece in pieces)


def test_one_file_is_a_text(tmp_path):
    (tmp_path / "story").write_text(LINES)
    corpus = load_corpus(tmp_path / "story", "characters", 0)
    assert "".join(documents(corpus.train, corpus.tokenizer) + documents(corpus.valid, corpus.tokenizer)) == LINES


def test_mark_of_utf8_is_no_text(tmp_path):
    (tmp_path / "x.txt").write_bytes(b"\xef\xbb\xbf" + LINES.encode())
    corpus = load_corpus(tmp_path, "characters", 0)
    assert documents(corpus.train, corpus.tokenizer)[0].startswith(LINES[:20])


@pytest.fixture(params=["characters", "bpe"])
def made(request):
    return Characters(LINES) if request.param == "characters" else bpe.train([LINES], 512)


def test_tokens_do_not_depend_on_where_a_block_ends(tmp_path, monkeypatch, made):
    (tmp_path / "x.txt").write_text(LINES)
    whole = made.encode(LINES[: text_files.find(tmp_path, 0.1)[0].cut])
    for block in (400, 1000, 10**6):
        monkeypatch.setattr(text_files, "BLOCK", block)
        monkeypatch.setenv("FULLSTRIDE_DATA", str(tmp_path / str(block)))
        assert content(load_corpus(tmp_path, made, 0).train) == [made.bos, *whole]


def test_text_is_the_same_wherever_a_block_ends(tmp_path, monkeypatch, made):
    text = LINES[:500] + "\U0001f600 \u20ac" * 50 + "\n" * 10 + " " * 40 + "x" * 300
    (tmp_path / "x.txt").write_text(text)
    for block in (1, 3, 5, 64):
        monkeypatch.setattr(text_files, "BLOCK", block)
        monkeypatch.setenv("FULLSTRIDE_DATA", str(tmp_path / str(block)))
        corpus = load_corpus(tmp_path, made, 0)
        assert "".join(documents(corpus.train, made) + documents(corpus.valid, made)) == text


def test_large_text_takes_little_memory(tmp_path, monkeypatch):
    monkeypatch.setattr(text_files, "BLOCK", 1 << 14)
    (tmp_path / "x.txt").write_text(LINES * 300)
    tracemalloc.start()
    try:
        load_corpus(tmp_path, "characters", 0)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 3e6 < (tmp_path / "x.txt").stat().st_size / 2


def test_tokenizer_that_is_there_is_used(folder, tmp_path):
    for made in (Characters("abc"), bpe.train([LINES], 512)):
        saved = made.save(tmp_path)
        for path in (saved, tmp_path):
            corpus = load_corpus(folder, str(path), 0)
            assert corpus.tokenizer.pieces() == made.pieces()
            assert documents(corpus.train, made)[1].startswith(LINES[:20])
        saved.unlink()


def test_second_time_it_is_there(folder, monkeypatch, cache):
    first = load_corpus(folder, "bpe", 512)
    monkeypatch.setattr(corpus_module, "_train", None)
    assert load_corpus(folder, "bpe", 512).fingerprint == first.fingerprint
    assert len(list(cache.iterdir())) == 1


def test_text_and_settings_make_the_fingerprint(folder, tmp_path):
    def fingerprint(path=folder, tokenizer="bpe", vocabulary=512, **options):
        return load_corpus(path, tokenizer, vocabulary, **options).fingerprint

    first = fingerprint()
    others = {fingerprint(vocabulary=520), fingerprint(tokenizer="characters"), fingerprint(valid_share=0.2)}
    (folder / "b.txt").write_text((folder / "b.txt").read_text().replace("a", "A", 1))
    others.add(fingerprint())
    assert len(others | {first}) == 5
    assert fingerprint(tokenizer="characters", vocabulary=1) == fingerprint(tokenizer="characters", vocabulary=2)


def test_moved_text_is_the_same(folder, tmp_path):
    first = load_corpus(folder, "characters", 0)
    folder.rename(tmp_path / "elsewhere")
    assert load_corpus(tmp_path / "elsewhere", "characters", 0).train == first.train


DAMAGES = {
    "cut short": lambda folder: (folder / "train.bin").write_bytes((folder / "train.bin").read_bytes()[:-2]),
    "changed": lambda folder: (folder / "valid.bin").write_bytes(b"\1" * (folder / "valid.bin").stat().st_size),
    "lost": lambda folder: (folder / "train.bin").unlink(),
    "without tokenizer": lambda folder: (folder / "characters.json").unlink(),
    "without manifest": lambda folder: (folder / "manifest.json").unlink(),
    "manifest damaged": lambda folder: (folder / "manifest.json").write_bytes(b'{"files": ['),
    "manifest of another kind": lambda folder: (folder / "manifest.json").write_text(json.dumps([1])),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_damaged_cache_is_made_again(folder, cache, damage, caplog):
    corpus = load_corpus(folder, "characters", 0)
    first = content(corpus.train), content(corpus.valid)
    DAMAGES[damage](corpus.train[0].path.parent)
    again = load_corpus(folder, "characters", 0)
    assert (content(again.train), content(again.valid)) == first
    assert "it is made again" in caplog.text
    assert len(list(cache.iterdir())) == 1


def test_failure_leaves_nothing_behind(folder, cache, monkeypatch):
    def fail(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Characters, "encode_array", fail)
    with pytest.raises(OSError, match=r"cannot write .*train\.bin: No space left on device"):
        load_corpus(folder, "characters", 0)
    assert list(cache.iterdir()) == []


def _prepare_at(folder, barrier, results):
    barrier.wait()
    results.put(content(load_corpus(folder, "characters", 0).train))


def test_two_processes_at_once_get_the_same(folder, cache):
    context = multiprocessing.get_context("fork")
    barrier, results = context.Barrier(2), context.Queue()
    processes = [context.Process(target=_prepare_at, args=(folder, barrier, results)) for _ in range(2)]
    for process in processes:
        process.start()
    first, second = results.get(timeout=PATIENCE), results.get(timeout=PATIENCE)
    for process in processes:
        process.join()
    assert first == second
    assert len(list(cache.iterdir())) == 1


def refused(*arguments, **options):
    with pytest.raises((ValueError, FileNotFoundError)) as caught:
        load_corpus(*arguments, **options)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_text_that_is_not_utf8_is_named_with_the_place(folder):
    text = LINES.encode()
    for place in (0, 5000, len(text) - 1):
        (folder / "b.txt").write_bytes(text[:place] + b"\xe9" + text[place + 1 :])
        for kind in ("characters", "bpe"):
            assert refused(folder, kind, 512).startswith(f"{folder / 'b.txt'}: byte {place} is not UTF-8: convert it")


def test_character_cut_off_at_the_end_of_a_block_is_named_with_the_place(tmp_path, monkeypatch):
    monkeypatch.setattr(text_files, "BLOCK", 10)
    (tmp_path / "x.txt").write_bytes(b"a" * 9 + "\u20ac".encode()[:2] + b"b" * 200)
    assert "x.txt: byte 9 is not UTF-8" in refused(tmp_path, "characters", 0)


@pytest.mark.parametrize("share", [0, 1, -0.1])
def test_share_out_of_range_is_refused(folder, share):
    assert refused(folder, "characters", 0, share) == f"valid_share: expected a number between 0 and 1, got {share}"


def test_missing_and_empty_texts_are_refused(tmp_path):
    assert refused(tmp_path / "x", "bpe", 512) == f"no text in {tmp_path / 'x'}, which is not there"
    shakespeare = sources.default_folder("shakespeare")
    assert refused(shakespeare, "bpe", 512).endswith("not there: `fullstride data shakespeare` gets it")
    (tmp_path / "empty").mkdir()
    assert refused(tmp_path / "empty", "bpe", 512).endswith(
        "empty: expected text, files named *.txt, or tokens, *.bin; there are none"
    )
    (tmp_path / "empty" / "a.txt").touch()
    assert refused(tmp_path / "empty", "bpe", 512).endswith("empty: the text is empty")
    (tmp_path / "empty" / "b.txt").touch()
    assert refused(tmp_path / "empty", "bpe", 512).endswith("empty: the text is empty, all 2 files of it")


def test_text_too_small_to_hold_anything_out_is_refused(tmp_path):
    (tmp_path / "x.txt").write_text("ab")
    assert refused(tmp_path, "characters", 0).endswith("too short to hold 0.1 of it out: give more text")


def test_missing_tokenizer_is_refused(folder, tmp_path):
    assert "no tokenizer" in refused(folder, str(tmp_path / "tokenizer.model"), 0)
    assert "no tokenizer in" in refused(folder, str(tmp_path), 0)


def test_wrong_vocabulary_is_refused_and_nothing_kept(folder, cache):
    assert refused(folder, "bpe", 100) == "vocabulary: expected 512 to 32000 pieces, got 100"
    assert list(cache.iterdir()) == []


# Files of tokens


def write(path, values):
    np.asarray(values, "<u2").tofile(path)


@pytest.mark.parametrize("name", ["val.bin", "valid.bin"])
def test_nanogpt_files_are_used_as_they_are(tmp_path, cache, name):
    (tmp_path / "input.txt").write_text("the text")
    write(tmp_path / "train.bin", range(50))
    write(tmp_path / name, range(50, 60))
    corpus = load_corpus(tmp_path, "bpe", 60)
    assert content(corpus.train) == list(range(50))
    assert content(corpus.valid) == list(range(50, 60))
    assert (corpus.tokenizer, corpus.vocabulary) == (None, 60)
    assert not cache.exists()


def test_first_of_llama2c_shards_is_held_out(tmp_path):
    for i in (2, 0, 1):
        write(tmp_path / f"data{i:02}.bin", range(10 * i, 10 * i + 10))
    bpe.train([LINES], 512).save(tmp_path)
    corpus = load_corpus(tmp_path, "bpe", 0)
    assert content(corpus.valid) == list(range(10))
    assert content(corpus.train) == list(range(10, 30))
    assert corpus.vocabulary == corpus.tokenizer.size == 512


def test_end_of_a_single_file_is_held_out(tmp_path):
    write(tmp_path / "data.bin", range(100))
    tokens.Pieces(Characters("a").pieces(), 1, 2).save(tmp_path)  # tokenizer.bin is no file of tokens
    for path in (tmp_path, tmp_path / "data.bin"):
        corpus = load_corpus(path, "characters", 0)
        assert content(corpus.train) == list(range(90))
        assert content(corpus.valid) == list(range(90, 100))
        assert corpus.vocabulary == 261


def test_tokenizer_given_for_tokens_is_loaded(tmp_path):
    write(tmp_path / "data.bin", range(100))
    (tmp_path / "other").mkdir()
    path = Characters("abc").save(tmp_path / "other")
    assert load_corpus(tmp_path, str(path), 0).tokenizer.alphabet == " abc"
    assert load_corpus(tmp_path, str(tmp_path / "other"), 0).vocabulary == 263
    assert "no tokenizer" in refused(tmp_path, str(tmp_path / "nothing.json"), 0)


@pytest.mark.parametrize("place", [0, 50, 89, 90, 99])
def test_token_beyond_the_vocabulary_is_named_with_its_place(tmp_path, place):
    values = [1] * 100
    values[place] = 500
    path = tmp_path / "data.bin"
    write(path, values)
    expected = (
        f"data.bin: token 500 at byte {2 * place}: expected one below 500, the vocabulary: the file was made with "
    )
    assert expected in refused(path, "bpe", 500)
    assert load_corpus(path, "bpe", 501).vocabulary == 501


@pytest.mark.parametrize(
    ("damage", "complaint"),
    [(b"", "the file is empty"), (b"\1\0\1", "got 3 bytes, an odd number: it was cut short, or is no file of tokens")],
)
@pytest.mark.parametrize("name", ["train.bin", "val.bin"])
def test_damaged_file_of_tokens_is_one_line(tmp_path, name, damage, complaint):
    write(tmp_path / "train.bin", range(50))
    write(tmp_path / "val.bin", range(50))
    (tmp_path / name).write_bytes(damage)
    assert refused(tmp_path, "bpe", 60).startswith(f"{tmp_path / name}: expected tokens, two bytes each")
    assert complaint in refused(tmp_path, "bpe", 60)


@pytest.mark.parametrize("vocabulary", [0, 65537])
def test_senseless_vocabulary_of_tokens_is_refused(tmp_path, vocabulary):
    write(tmp_path / "data.bin", range(50))
    assert refused(tmp_path, "bpe", vocabulary).startswith(f"vocabulary: expected 1 to 65536 tokens, got {vocabulary}")


def test_other_tokens_have_another_fingerprint(tmp_path):
    fingerprints = set()
    for values in (range(50), range(51), [*range(49), 7], [7, *range(1, 50)]):
        write(tmp_path / "data.bin", values)
        fingerprints.add(load_corpus(tmp_path, "bpe", 60).fingerprint)
    assert len(fingerprints) == 4
