from pathlib import Path

import pytest

from fullstride.data import sources
from fullstride.data.speech.texts.everyday import HELD_OUT
from fullstride.data.speech.texts.text_sentences import from_text

PLAY = """THE TRAGEDY OF NOBODY

ACT I.

Scene I. A platform before the castle.

[Enter two sentinels, who
do not speak.]

Ber.
Who is there now? I think I hear them.--Stand, and
unfold yourself! [Exit.] Good night, sweet
prince of ours.

FIRST SENTINEL
Enter HAMLET, reading
Long live the king!
"""


def cut(folder: Path, text: str, seed: int = 0) -> set[str]:
    path = folder / "text.txt"
    path.write_text(text, encoding="utf-8")
    return set(from_text([path], seed))


def test_a_play_gives_what_is_said_and_no_stage_directions(tmp_path):
    assert cut(tmp_path, PLAY) == {
        "Who is there now?", "I think I hear them.", "Stand, and unfold yourself!", "Good night, sweet prince of ours.",
        "Long live the king!",
    }  # fmt: skip


def test_abbreviations_and_initials_end_no_sentence(tmp_path):
    text = "Mr. Smith met J. Brown in St. Albans. Then they went home."
    assert cut(tmp_path, text) == {"Mr. Smith met J. Brown in St. Albans.", "Then they went home."}


def test_sentences_of_too_few_words_are_left_out(tmp_path):
    assert cut(tmp_path, "So it is. Come in. He is here.") == {"So it is.", "He is here."}


def test_a_long_sentence_is_cut_at_semicolons(tmp_path):
    long = "one two three four five six seven eight nine ten eleven twelve thirteen"
    assert cut(tmp_path, f"It was {long}; and then {long}!") == {f"It was {long}.", f"And then {long}!"}


def test_a_long_sentence_that_cannot_be_cut_is_left_out(tmp_path):
    assert cut(tmp_path, f"{'word ' * 26}here. This one is short.") == {"This one is short."}


def test_sentences_with_unknown_symbols_are_left_out(tmp_path):
    text = "We like \u732b very much. Write to a@b today. Prices rose 5 percent. A caf\u00e9 is near."
    assert cut(tmp_path, text) == {"Prices rose 5 percent.", "A cafe is near."}


def test_curly_quotes_and_dashes_become_plain(tmp_path):
    text = "\u201cI don\u2019t know,\u201d she said. He came \u2014 at last \u2014 to me."
    assert cut(tmp_path, text) == {"I don't know, she said.", "He came, at last, to me."}


def test_what_has_no_end_is_no_sentence(tmp_path):
    assert cut(tmp_path, "A heading of the text\n\nHere it begins at last.") == {"Here it begins at last."}


def test_a_sentence_comes_once(tmp_path):
    path = tmp_path / "text.txt"
    path.write_text("Here it is again. Here it is again! And so on.")
    assert sorted(from_text([path], 0)) == ["And so on.", "Here it is again."]


def test_held_out_sentences_do_not_come(tmp_path):
    assert cut(tmp_path, f"{HELD_OUT[3]} Another one is here.") == {"Another one is here."}


def test_the_order_is_a_function_of_the_seed(tmp_path):
    path = tmp_path / "text.txt"
    path.write_text(" ".join(f"This is number {i}." for i in range(50)))
    one, same, other = from_text([path], 1), from_text([path], 1), from_text([path], 2)
    assert one == same
    assert one != other
    assert sorted(one) == sorted(other)


def test_a_text_longer_than_a_part_is_read_whole(tmp_path):
    path = tmp_path / "text.txt"
    path.write_text("\n\n".join(f"This is number {i} of many." for i in range(15_000)))
    assert len(from_text([path], 0)) == 15_000


def test_windows_line_ends_are_line_ends(tmp_path):
    (tmp_path / "text.txt").write_bytes(b"A title here\r\n\r\nThe text goes\r\non and on.\r\n")
    assert from_text([tmp_path], 0) == ["The text goes on and on."]


def test_the_name_shakespeare_is_its_folder(tmp_path, monkeypatch):
    monkeypatch.setenv("FULLSTRIDE_DATA", str(tmp_path))
    monkeypatch.chdir(tmp_path.parent)
    (tmp_path / "shakespeare").mkdir()
    (tmp_path / "shakespeare" / "a.txt").write_text("To be, or not to be.")
    assert from_text([Path("shakespeare")], 0) == ["To be, or not to be."]


def test_shakespeare_that_is_not_there_is_told_with_the_command(tmp_path, monkeypatch):
    monkeypatch.setenv("FULLSTRIDE_DATA", str(tmp_path / "none"))
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ValueError, match="get it by `fullstride data shakespeare`"):
        from_text([Path("shakespeare")], 0)
    assert sources.default_folder("shakespeare") == tmp_path / "none" / "shakespeare"


def test_a_path_that_is_not_there_is_named(tmp_path):
    with pytest.raises(ValueError, match=r"none\.txt: expected a text file or a folder"):
        from_text([tmp_path / "none.txt"], 0)


def test_a_text_without_sentences_is_refused(tmp_path):
    (tmp_path / "a.txt").write_text("word\n")
    with pytest.raises(ValueError, match=r"a\.txt: expected sentences of 3 to 25 words .* got none"):
        from_text([tmp_path / "a.txt"], 0)
