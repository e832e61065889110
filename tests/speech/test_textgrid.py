import numpy as np
import pytest

from fullstride.speech import textgrid
from fullstride.speech.textgrid import Interval

LONG = """File type = "ooTextFile"
Object class = "TextGrid"

xmin = 0
xmax = 1.5
tiers? <exists>
size = 2
item []:
    item [1]:
        class = "IntervalTier"
        name = "words"
        xmin = 0
        xmax = 1.5
        intervals: size = 4
        intervals [1]:
            xmin = 0
            xmax = 0.2
            text = ""
        intervals [2]:
            xmin = 0.2
            xmax = 0.5
            text = "hi"
        intervals [3]:
            xmin = 0.5
            xmax = 1.2
            text = "Say ""so"" now"
        intervals [4]:
            xmin = 1.2
            xmax = 1.5
            text = ""
    item [2]:
        class = "IntervalTier"
        name = "phones"
        xmin = 0
        xmax = 1.5
        intervals: size = 6
        intervals [1]:
            xmin = 0
            xmax = 0.2
            text = "sil"
        intervals [2]:
            xmin = 0.2
            xmax = 0.3
            text = "HH"
        intervals [3]:
            xmin = 0.3
            xmax = 0.5
            text = "AY1"
        intervals [4]:
            xmin = 0.5
            xmax = 1.2
            text = "S"
        intervals [5]:
            xmin = 1.2
            xmax = 1.3
            text = "sp"
        intervals [6]:
            xmin = 1.3
            xmax = 1.5
            text = ""
"""
SHORT = """File type = "ooTextFile"
Object class = "TextGrid"

0
1.5
<exists>
3
"PointTier"
"clicks"
0
1.5
1
0.7
"click"
"IntervalTier"
"words"
0
1.5
1
0.2
0.5
"hi"
"IntervalTier"
"phones"
0
1.5
2
0.2
0.3
"HH"
0.3
0.5
"AY1"
"""


def written(folder, text, encoding="utf-8"):
    path = folder / "said.TextGrid"
    path.write_bytes(text.encode(encoding))
    return path


def test_long_form_gives_every_tier(tmp_path):
    tiers = textgrid.read(written(tmp_path, LONG))
    assert list(tiers) == ["words", "phones"]
    assert tiers["words"][1] == Interval(0.2, 0.5, "hi")
    assert tiers["words"][2].text == 'Say "so" now'
    assert len(tiers["phones"]) == 6


def test_short_form_is_read_and_points_are_passed_over(tmp_path):
    tiers = textgrid.read(written(tmp_path, SHORT))
    assert tiers == {
        "words": [Interval(0.2, 0.5, "hi")],
        "phones": [Interval(0.2, 0.3, "HH"), Interval(0.3, 0.5, "AY1")],
    }


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16"])
def test_every_encoding_of_praat_is_read(tmp_path, encoding):
    text = LONG.replace('"hi"', '"\u00e9t\u00e9"')
    assert textgrid.read(written(tmp_path, text, encoding))["words"][1].text == "\u00e9t\u00e9"


def test_silences_of_any_name_are_one_pause(tmp_path):
    names, ends = textgrid.phonemes(written(tmp_path, LONG))
    assert names == ("pau", "HH", "AY1", "S", "pau")
    np.testing.assert_array_equal(ends, [0.2, 0.3, 0.5, 1.2, 1.5])


def test_gap_before_a_phoneme_is_a_pause(tmp_path):
    names, ends = textgrid.phonemes(written(tmp_path, SHORT))
    assert names == ("pau", "HH", "AY1")
    np.testing.assert_array_equal(ends, [0.2, 0.3, 0.5])


def test_tier_may_carry_its_speaker(tmp_path):
    names, _ = textgrid.phonemes(written(tmp_path, LONG.replace('"phones"', '"ann - phones"')))
    assert names[1] == "HH"


def test_words_come_with_the_phonemes_inside_them(tmp_path):
    assert textgrid.pronunciations(written(tmp_path, LONG)) == [("hi", ("HH", "AY1")), ('say "so" now', ("S",))]


DAMAGED = {
    "empty": "",
    "no TextGrid": "hello there",
    "another object": LONG.replace('"TextGrid"', '"Sound"'),
    "cut": LONG[:700],
    "cut in quotes": LONG[:-5],
    "backwards": LONG.replace("xmax = 0.3", "xmax = 0.1"),
    "overlapping": LONG.replace("xmin = 0.5", "xmin = 0.4"),
    "no phones": LONG.replace('"phones"', '"other"'),
    "silent": LONG.replace('"HH"', '""').replace('"AY1"', '""').replace('"S"', '"spn"'),
    "broken count": LONG.replace("size = 6", "size = -6"),
}


@pytest.mark.parametrize("kind", DAMAGED)
def test_damage_is_one_line_that_names_the_file(tmp_path, kind):
    path = written(tmp_path, DAMAGED[kind])
    with pytest.raises(ValueError, match=r"said\.TextGrid: ") as refusal:
        textgrid.phonemes(path)
    assert "\n" not in str(refusal.value)


def test_bytes_that_are_no_text_are_refused_by_name(tmp_path):
    path = tmp_path / "said.TextGrid"
    path.write_bytes(b"\x80\x81" * 50)
    with pytest.raises(ValueError, match=r"said\.TextGrid: expected text in UTF-8"):
        textgrid.read(path)


def test_missing_file_is_refused_by_name(tmp_path):
    with pytest.raises(ValueError, match=r"none\.TextGrid: cannot be read"):
        textgrid.read(tmp_path / "none.TextGrid")
