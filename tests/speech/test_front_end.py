import pytest

from fullstride.speech import espeak, flite
from fullstride.speech.front_end import FrontEnd, collect_lexicon

ARPABET = """
aa0 aa1 ae0 ae1 ah0 ah1 ao0 ao1 aw1 ax0 ay0 ay1 eh0 eh1 er0 er1 ey0 ey1 ih0 ih1 iy0 iy1 ow0 ow1 oy1 uh1 uw0 uw1
b ch d dh f g hh jh k l m n ng p r s sh t th v w y z zh
"""
SYMBOLS = ("_", "pau", *ARPABET.split())
LEXICON = {"hello": ("hh", "ax0", "l", "ow1"), "world": ("w", "er1", "l", "d"), "dog": ("d", "ao1", "g")}
needs_flite = pytest.mark.skipif(flite.missing() is not None, reason="needs flite, a package of Debian")


@pytest.fixture
def no_flite(monkeypatch):
    monkeypatch.setattr(flite, "missing", lambda: "expected flite's libraries, got none; apt-get install flite")


def front_end(engine="flite", voice="slt", symbols=SYMBOLS, lexicon=LEXICON):
    return FrontEnd(engine, voice, symbols, lexicon)


@needs_flite
def test_installed_engine_is_asked_with_plain_words():
    reading = front_end().phonemes("Dr. Smith paid $5.")
    assert reading.phonemes == flite.phonemes("Doctor Smith paid five dollars.")
    assert reading.notes == ()


def test_engine_is_given_the_words_as_they_are_said(monkeypatch):
    asked = []

    def answer(text, voice):
        asked.append((text, voice))
        return "pau", "hh", "pau"

    monkeypatch.setattr(flite, "missing", lambda: None)
    monkeypatch.setattr(flite, "phonemes", answer)
    reading = front_end(voice="rms").phonemes("It costs $5.")
    assert asked == [("It costs five dollars.", "rms")]
    assert reading.phonemes == ("pau", "hh", "pau")


def test_espeak_is_asked_where_the_corpus_was_spoken_by_it():
    said = espeak.phonemes("five dogs", "en-gb")
    reading = front_end("espeak", "en-gb", ("_", *dict.fromkeys(said))).phonemes("5 dogs")
    assert reading.phonemes == said


def test_missing_engine_leaves_lexicon_and_letters_and_says_so(no_flite):
    reading = front_end().phonemes("Hello, blick!")
    assert reading.phonemes == ("pau", "hh", "ax0", "l", "ow1", "pau", "b", "l", "ih1", "k", "pau")
    assert len(reading.notes) == 2
    assert "apt-get install flite" in reading.notes[0]
    assert "letter rules: blick" in reading.notes[1]


def test_lexicon_engine_asks_nobody_and_needs_no_note(no_flite):
    reading = front_end("lexicon").phonemes("hello world")
    assert reading.phonemes == ("pau", *LEXICON["hello"], *LEXICON["world"], "pau")
    assert reading.notes == ()


def test_possessive_of_a_known_word_is_known():
    assert front_end("lexicon").phonemes("the dog's world").phonemes[3:7] == ("d", "ao1", "g", "z")


def test_phonemes_in_braces_are_taken_as_they_are():
    reading = front_end("lexicon").phonemes("hello {b l ih1 k} world")
    assert reading.phonemes == ("pau", *LEXICON["hello"], "b", "l", "ih1", "k", *LEXICON["world"], "pau")


def test_corpus_in_upper_case_gets_letters_in_upper_case():
    symbols = ("_", "pau", "B", "L", "IH0", "IH1", "K", "AH0", "DH")
    reading = front_end("lexicon", "", symbols, {}).phonemes("the blick")
    assert reading.phonemes == ("pau", "DH", "AH0", "B", "L", "IH1", "K", "pau")


def test_espeaks_corpus_gets_letters_in_its_names(monkeypatch):
    monkeypatch.setattr(espeak, "missing", lambda: "expected eSpeak NG, got none")
    symbols = ("_", "pau", "T", "t", "I1", "I0", "N", "k", "eI1")
    assert front_end("espeak", "en-us", symbols, {}).phonemes("think").phonemes == ("pau", "T", "I1", "N", "k", "pau")


def test_unknown_stress_becomes_a_known_one():
    symbols = ("_", "pau", "ow0", "l")
    assert front_end("lexicon", "", symbols, {}).phonemes("{l ow2}").phonemes == ("pau", "l", "ow0", "pau")


def test_unknown_phoneme_is_left_out_with_a_note():
    reading = front_end("lexicon").phonemes("hello {qq l}")
    assert reading.phonemes == ("pau", *LEXICON["hello"], "l", "pau")
    assert reading.notes == ("left out, for the model was not trained on it: qq",)


def test_unknown_characters_are_left_out_with_a_note():
    reading = front_end("lexicon").phonemes("hello \U0001f600 world {l} \u6f22")
    assert reading.notes == ("left out, for nothing here can say it: \U0001f600 \u6f22",)


def test_silences_are_one():
    said = front_end("lexicon").phonemes("... hello ... , ; world ?! ").phonemes
    assert said == ("pau", *LEXICON["hello"], "pau", *LEXICON["world"], "pau")


@pytest.mark.parametrize("text", ["", " ", "...", "{}", "{pau}", "{qq}", "\U0001f600", "\u6f22\u5b57", "'"])
def test_nothing_to_say_is_refused_in_one_line(text):
    with pytest.raises(ValueError, match="expected text with words to say") as refusal:
        front_end("lexicon").phonemes(text)
    assert "\n" not in str(refusal.value)


def test_ids_are_places_among_the_symbols():
    end = front_end("lexicon")
    assert end.ids(("pau", "aa0", "zh")) == [1, 2, len(SYMBOLS) - 1]


def test_what_is_saved_is_loaded(tmp_path):
    end = front_end()
    end.save(tmp_path / "front_end.json")
    assert FrontEnd.load(tmp_path / "front_end.json") == end


DAMAGED = [
    *("", "{", "[]", "{}", "\0"),
    '{"engine": "x", "voice": "", "symbols": ["_", "pau"], "lexicon": {}}',
    '{"engine": "flite", "voice": "slt", "symbols": ["pau"], "lexicon": {}}',
    '{"engine": "flite", "voice": "slt", "symbols": ["_", "pau", 3], "lexicon": {}}',
    '{"engine": "flite", "voice": "slt", "symbols": ["_", "pau"], "lexicon": [1]}',
]


@pytest.mark.parametrize("content", DAMAGED)
def test_damage_is_one_line_that_names_the_file(tmp_path, content):
    path = tmp_path / "front_end.json"
    path.write_text(content)
    with pytest.raises(ValueError, match=r"front_end\.json: expected a saved front end, got damage") as refusal:
        FrontEnd.load(path)
    assert "\n" not in str(refusal.value)


def test_missing_file_is_one_line_that_names_it(tmp_path):
    with pytest.raises(ValueError, match=r"none\.json: cannot be read"):
        FrontEnd.load(tmp_path / "none.json")


def test_lexicon_has_the_most_frequent_pronunciation():
    pairs = [("The", ("DH", "IY0")), ("the", ("DH", "AH0")), ("the", ("DH", "AH0")), ("a", ("AH0",))]
    assert collect_lexicon(pairs) == {"a": ("AH0",), "the": ("DH", "AH0")}
