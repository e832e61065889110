"""fullstride speak: of a run and of an exported folder, of lines and files, and of what is neither."""

import io
import re
import sys

import numpy as np
import pytest

from fullstride import cli
from fullstride.machine.memory import as_size
from fullstride.sound import wav
from fullstride.speech import espeak

from ..recipes.speech_corpus import tiny_run
from . import commands
from .commands import one_line

SHOWN = re.compile(
    r"(.*): (\d+\.\d\d) s of speech in \d+\.\d\d s, \d+\.\d\d of real time \(model .* s, Griffin-Lim .* s\)"
)


def speak(capsys, *words):
    """(what was printed, what was on stderr)"""
    run = tiny_run(2)  # which the first test that asks for it trains, and tells of it
    capsys.readouterr()
    assert cli.main(["speak", str(run), *map(str, words), "--iterations", "2"]) == 0
    return capsys.readouterr()


def refused(capsys, *words):
    capsys.readouterr()
    code: object
    try:
        code = cli.main(["speak", *map(str, words)])
    except SystemExit as ended:  # of the parser
        code = ended.code
    assert code == 2
    return one_line(capsys.readouterr().err)


def length(path):
    sound = wav.read(path)
    assert sound.rate == 22050
    return len(sound.samples)


def test_a_text_becomes_a_file_and_its_real_time_factor_is_shown(tmp_path, capsys):
    out, err = speak(capsys, "The king went home.", "--out", tmp_path / "a.wav")
    shown = SHOWN.fullmatch(out.strip())
    assert shown[1] == str(tmp_path / "a.wav")
    assert float(shown[2]) == pytest.approx(length(tmp_path / "a.wav") / 22050, abs=0.01)
    assert err == ""


def test_half_the_speed_is_twice_the_length(tmp_path, capsys):
    for name, speed in (("a.wav", 1), ("b.wav", 0.5)):
        speak(capsys, "The king went home.", "--out", tmp_path / name, "--speed", speed)
    assert length(tmp_path / "b.wav") == pytest.approx(2 * length(tmp_path / "a.wav"), abs=256)


def test_lines_of_a_file_become_one_sound_with_pauses(tmp_path, capsys):
    (tmp_path / "lines.txt").write_bytes("\ufeffHello there.\r\n\r\n  We like tea. \n".encode())
    for name, text in (("a", "Hello there."), ("b", "We like tea.")):
        speak(capsys, text, "--out", tmp_path / f"{name}.wav")
    speak(capsys, "--file", tmp_path / "lines.txt", "--out", tmp_path / "both.wav")
    parts = length(tmp_path / "a.wav") + length(tmp_path / "b.wav")
    assert length(tmp_path / "both.wav") == parts + round(0.25 * 22050)


def test_lines_of_standard_input_become_a_file_each_in_a_folder(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"Hello there.\nWe like tea.\n")))
    out, _ = speak(capsys, "-", "--out", tmp_path / "said")
    assert sorted(file.name for file in (tmp_path / "said").iterdir()) == ["001.wav", "002.wav"]
    assert SHOWN.fullmatch(out.strip())[1] == f"{tmp_path / 'said'}, 2 files"


def test_mels_are_saved_as_vocoders_read_them(tmp_path, capsys):
    speak(capsys, "Hello there.", "--out", tmp_path / "a.wav", "--mels", tmp_path / "mels")
    mel = np.load(tmp_path / "mels" / "001.npy")
    assert mel.shape == (80, length(tmp_path / "a.wav") // 256)
    assert mel.dtype == np.float32
    assert [file.name for file in (tmp_path / "mels").iterdir()] == ["001.npy"]


def test_a_speaker_has_a_number_and_a_name(tmp_path, capsys):
    for name, wish in (("number", "1"), ("name", "en-gb"), ("first", "0")):
        speak(capsys, "Hello there.", "--out", tmp_path / f"{name}.wav", "--speaker", wish)
    number, name, first = ((tmp_path / f"{x}.wav").read_bytes() for x in ("number", "name", "first"))
    assert number == name != first


def test_a_file_that_is_there_is_replaced_whole(tmp_path, capsys):
    (tmp_path / "a.wav").write_bytes(b"old")
    speak(capsys, "Hello.", "--out", tmp_path / "a.wav")
    assert length(tmp_path / "a.wav") > 0
    assert [file.name for file in tmp_path.iterdir()] == ["a.wav"]


def test_what_is_refused_leaves_a_file_as_it_was(tmp_path, capsys):
    (tmp_path / "a.wav").write_bytes(b"old")
    (tmp_path / "lines.txt").write_text("Hello there.\n\U0001f600\n")
    words = ["--file", tmp_path / "lines.txt", "--out", tmp_path / "a.wav", "--iterations", "1"]
    assert "line 2: expected text with words to say" in refused(capsys, tiny_run(2), *words)
    assert (tmp_path / "a.wav").read_bytes() == b"old"


def test_what_was_guessed_is_said_on_stderr(tmp_path, capsys, monkeypatch):
    tiny_run(2)  # while eSpeak NG is here
    monkeypatch.setattr(espeak, "missing", lambda: "expected eSpeak NG, got none")
    out, err = speak(capsys, "The xylograph went home.", "--out", tmp_path / "a.wav")
    assert SHOWN.fullmatch(out.strip())
    assert "fullstride: read by the lexicon and letter rules: expected eSpeak NG, got none" in err
    assert re.search(r"^fullstride: not in the lexicon, read by letter rules: .*\bxylograph\b", err, re.MULTILINE)


def test_an_exported_folder_has_no_checkpoints_to_choose_from(tmp_path, capsys):
    assert cli.main(["export", str(tiny_run(2)), "--to", str(tmp_path / "voice")]) == 0
    line = refused(capsys, tmp_path / "voice", "Hello.", "--out", tmp_path / "a.wav", "--checkpoint", "last")
    assert "--checkpoint: expected a run, got" in line


def test_an_exported_folder_speaks_as_its_run(tmp_path, capsys):
    assert cli.main(["export", str(tiny_run(2)), "--to", str(tmp_path / "voice")]) == 0
    size = sum(file.stat().st_size for file in (tmp_path / "voice").iterdir())
    assert capsys.readouterr().out == f"{tmp_path / 'voice'}: of step 2, {as_size(size)}\n"
    words = ["Hello there.", "--iterations", "2", "--out"]
    speak(capsys, *words[:1], "--out", tmp_path / "run.wav")
    assert cli.main(["speak", str(tmp_path / "voice"), *words, str(tmp_path / "voice.wav")]) == 0
    assert (tmp_path / "voice.wav").read_bytes() == (tmp_path / "run.wav").read_bytes()


def test_a_run_of_another_recipe_is_one_line(tmp_path, capsys):
    assert commands.train(tmp_path / "run") == 0
    line = refused(capsys, tmp_path / "run", "Hello.", "--out", tmp_path / "a.wav")
    assert line.endswith("run is a run of recipe mlp, which does not speak: give a fastspeech2's")


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (["nowhere", "Hello.", "--out", "TMP/a.wav"], "nowhere: expected the folder of a run of recipe fastspeech2"),
        (["RUN", "--out", "TMP/a.wav"], "expected a text, as in `fullstride speak RUN"),
        (["RUN", "Hello.", "--file", "x", "--out", "TMP/a.wav"], "expected a text, as in `fullstride speak RUN"),
        (["RUN", "--file", "TMP/none.txt", "--out", "TMP/a.wav"], "none.txt"),
        (["RUN", "--file", "TMP", "--out", "TMP/a.wav"], "expected a text file, got a folder"),
        (["RUN", "--file", "TMP/empty.txt", "--out", "TMP/a.wav"], "empty.txt: expected lines of text, got none"),
        (["RUN", "--file", "TMP/latin.txt", "--out", "TMP/a.wav"], "latin.txt: expected UTF-8, got"),
        (["RUN", "", "--out", "TMP/a.wav"], "expected text with words to say, got ''"),
        (["RUN", "\U0001f600", "--out", "TMP/a.wav"], "expected text with words to say, got"),
        (["RUN", "the king went home and " * 400, "--out", "TMP/a.wav"], "expected a sentence of at most 1000"),
        (["RUN", "Hello.", "--out", "TMP/none/a.wav"], "--out: there is no folder"),
        (["RUN", "Hello.", "--out", "TMP/none/folder"], "--out: there is no folder"),
        (["RUN", "Hello.", "--out", "TMP/a.mp3"], "--out: expected a name that ends with .wav, or a folder's"),
        (["RUN", "Hello.", "--out", "TMP/folder.wav"], "--out: expected a name that ends with .wav, or a folder's"),
        (["RUN", "Hello.", "--out", "TMP/latin.txt"], "--out: expected a name that ends with .wav, or a folder's"),
        (["RUN", "Hello.", "--out", "TMP/a.wav", "--speaker", "2"], "expected one of 0 en-us, 1 en-gb; got 2"),
        (["RUN", "Hello.", "--out", "TMP/a.wav", "--speaker", "bob"], "expected one of 0 en-us, 1 en-gb; got bob"),
        (["RUN", "Hello.", "--out", "TMP/a.wav", "--speed", "0"], "expected a number from 0.1 to 10, got '0'"),
        (["RUN", "Hello.", "--out", "TMP/a.wav", "--pitch", "nan"], "expected a number from 0.1 to 10, got 'nan'"),
        (["RUN", "Hello.", "--out", "TMP/a.wav", "--checkpoint", "9"], "has no checkpoint of step 9 that is whole"),
        (["RUN", "Hello.", "--out", "TMP/a.wav", "--checkpoint", "x"], "--checkpoint: expected best, last or"),
    ],
)
def test_bad_input_is_one_line(tmp_path, capsys, words, line):
    (tmp_path / "empty.txt").write_text("\n \n")
    (tmp_path / "latin.txt").write_bytes("caf\u00e9".encode("latin-1"))
    (tmp_path / "folder.wav").mkdir()
    known = {"RUN": str(tiny_run(2))}
    assert line in refused(capsys, *(known.get(word, word.replace("TMP", str(tmp_path))) for word in words))
    assert not (tmp_path / "a.wav").exists()
