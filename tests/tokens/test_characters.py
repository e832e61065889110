import json

import pytest

from fullstride.tokens import Characters, characters


def test_ids_are_the_special_ones_then_bytes_then_code_points():
    tokenizer = Characters("ba\n")
    assert tokenizer.size == 259 + 4
    assert tokenizer.encode("\nab") == [260, 259, 261, 262]  # "\n", " ", "a", "b"


def test_other_characters_are_bytes():
    assert Characters("ab").encode("a\u00e9\U0010ffff", start=False) == [
        260, 3 + 0xC3, 3 + 0xA9, 3 + 0xF4, 3 + 0x8F, 3 + 0xBF, 3 + 0xBF,
    ]  # fmt: skip


def test_the_sign_for_a_space_is_no_character_of_its_own():
    tokenizer = Characters("a\u2581")
    assert tokenizer.alphabet == " a"
    assert tokenizer.encode("\u2581", start=False) == [3 + 0xE2, 3 + 0x96, 3 + 0x81]


def test_too_many_characters_are_refused():
    with pytest.raises(ValueError, match=r"^the text has 65,278 characters, more than 65,277: use bpe$"):
        Characters(map(chr, range(0x10000, 0x10000 + 65_277)))


def test_half_of_a_surrogate_pair_is_refused():
    with pytest.raises(ValueError, match="half of a surrogate pair"):
        Characters("a\udc00")


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        (b"", "what is no JSON"),
        (b"\xff\xfe", "what is no JSON"),
        (b"[]", '"format"'),
        (b'{"alphabet": " a"}', '"format"'),
        (json.dumps({"format": characters._FORMAT}).encode(), "every character once"),
        (json.dumps({"format": characters._FORMAT, "alphabet": "ba "}).encode(), "every character once"),
        (json.dumps({"format": characters._FORMAT, "alphabet": "  a"}).encode(), "every character once"),
        (json.dumps({"format": characters._FORMAT, "alphabet": "ab"}).encode(), "with a space in it"),
        (json.dumps({"format": characters._FORMAT, "alphabet": ""}).encode(), "with a space in it"),
    ],
)
def test_damaged_file_is_one_line(tmp_path, content, complaint):
    (tmp_path / characters.FILE).write_bytes(content)
    with pytest.raises(ValueError, match=rf"characters\.json: expected an alphabet .*{complaint}") as caught:
        characters.read(tmp_path / characters.FILE)
    assert "\n" not in str(caught.value)
