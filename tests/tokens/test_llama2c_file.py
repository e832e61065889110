import struct

import pytest

from fullstride.tokens import Characters, Piece, llama2c_file, load
from fullstride.tokens.tokenizer import special_pieces

PIECES = [*special_pieces(), Piece("\u2581the".encode(), -1.0), Piece(b"th", -0.0), Piece("\u00e9".encode(), -2.5)]


def records(path):
    """As run.c reads the file."""
    content = path.read_bytes()
    longest, found, place = struct.unpack_from("<i", content)[0], [], 4
    while place < len(content):
        score, length = struct.unpack_from("<fi", content, place)
        found.append((content[place + 8 : place + 8 + length], score))
        place += 8 + length
    return longest, found


def test_file_is_what_run_c_reads(tmp_path):
    longest, found = records(llama2c_file.write(tmp_path / "tokenizer.bin", PIECES))
    assert longest == len(b"<0x00>") == max(len(text) for text, _ in found)
    assert found[1:4] == [(b"\n<s>\n", 0.0), (b"\n</s>\n", 0.0), (b"<0x00>", 0.0)]
    assert found[259:] == [(b" the", -1.0), (b"th", -0.0), ("\u00e9".encode(), -2.5)]


def test_round_trip_is_exact(tmp_path, trained):
    for pieces in (PIECES, trained.pieces(), Characters("ab \n").pieces()):
        assert llama2c_file.read(llama2c_file.write(tmp_path / "tokenizer.bin", pieces)) == pieces


def test_tokens_of_the_file_are_those_of_what_wrote_it(tmp_path, trained, text):
    for tokenizer in (trained, Characters(text)):
        loaded = load(llama2c_file.write(tmp_path / "tokenizer.bin", tokenizer.pieces()))
        assert loaded.encode(text[:5000] + "\u20ac\u2581 ") == tokenizer.encode(text[:5000] + "\u20ac\u2581 ")


def test_characters_in_the_place_of_bytes_are_read_too(tmp_path):
    texts = [b"<unk>", b"\n<s>\n", b"\n</s>\n", *(chr(byte).encode() for byte in range(256)), b" the"]
    content = struct.pack("<i", 6) + b"".join(struct.pack("<fi", 0.0, len(text)) + text for text in texts)
    (tmp_path / "tokenizer.bin").write_bytes(content)
    assert llama2c_file.read(tmp_path / "tokenizer.bin") == [*special_pieces(), Piece("\u2581the".encode(), 0.0)]


def damaged(content, place, new):
    return content[:place] + new + content[place + len(new) :]


@pytest.mark.parametrize(
    ("damage", "complaint"),
    [
        (lambda content: b"", "got a file of 0 bytes that does not begin with the length of a piece"),
        (lambda content: b"\x08\0", "got a file of 2 bytes"),
        (lambda content: b"GGUF" + content, "does not begin with the length"),
        (lambda content: content[:-1], r"ends in piece 261, at byte \d+: get it anew"),
        (lambda content: content[:-4], r"ends in piece 261, at byte \d+: get it anew"),
        (lambda content: damaged(content, 8, b"\xff\xff\xff\x7f"), "got piece 0 at byte 4 with 2147483647 bytes"),
        (lambda content: damaged(content, 8, b"\xff\xff\xff\xff"), "got piece 0 at byte 4 with -1 bytes"),
        (lambda content: damaged(content, 4, b"\0\0\xc0\x7f"), "got piece 0 .* score nan"),
        (lambda content: content[: 4 + 8 + 5], "got 1 pieces: Llama's begin with 259"),
        (lambda content: content.replace(b"<0x41>", b"<0x40>"), "pieces 3 to 258 are the bytes"),
    ],
)
def test_damaged_file_is_one_line(tmp_path, damage, complaint):
    path = llama2c_file.write(tmp_path / "tokenizer.bin", PIECES)
    path.write_bytes(damage(path.read_bytes()))
    with pytest.raises(
        ValueError, match=rf"tokenizer\.bin: expected llama2\.c's tokenizer\.bin.*{complaint}"
    ) as caught:
        llama2c_file.read(path)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("pieces", "bos"), [(PIECES, 2), (PIECES[:200], 1), (PIECES[3:], 1), ([*PIECES, PIECES[3]], 1)]
)
def test_pieces_that_run_c_would_take_for_others_are_refused(tmp_path, pieces, bos):
    with pytest.raises(ValueError, match=r"llama2\.c wants <s> and </s> as tokens 1 and 2, and the bytes after them$"):
        llama2c_file.write(tmp_path / "tokenizer.bin", pieces, bos)
    assert list(tmp_path.iterdir()) == []
