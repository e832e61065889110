"""tokenizer.bin, which llama2.c's run.c loads: int32 bytes of the longest piece, then float32 score, int32 bytes, the
bytes of each. A space is a space in it. The number of pieces is not in the file: run.c has it from the model.
"""

import math
import struct
from pathlib import Path

from .. import durable
from .tokenizer import NUM_BYTES, NUM_SPECIAL, SPACE, Piece, special_pieces

FILE = "tokenizer.bin"
BOS, EOS = 1, 2  # as run.c has it, whatever the file says
_LONGEST = 1 << 16  # bytes; far above any piece


def read(path: Path) -> list[Piece]:
    """Whatever is wrong with the file is a ValueError that names it and the position."""
    content = path.read_bytes()
    what = f"{path}: expected llama2.c's tokenizer.bin"
    longest = struct.unpack_from("<i", content)[0] if len(content) >= 4 else 0
    if not 0 < longest <= _LONGEST:
        raise ValueError(f"{what}, got a file of {len(content):,} bytes that does not begin with the length of a piece")
    texts: list[bytes] = []
    scores: list[float] = []
    place = 4
    while place < len(content):
        if place + 8 > len(content):
            raise ValueError(f"{what}, which ends in piece {len(texts)}, at byte {len(content)}: get it anew")
        score, length = struct.unpack_from("<fi", content, place)
        if not 0 <= length <= longest or not math.isfinite(score):
            raise ValueError(
                f"{what}, got piece {len(texts)} at byte {place} with {length} bytes and score {score}: expected at "
                f"most {longest} bytes and a finite score; get it anew"
            )
        place += 8 + length
        if place > len(content):
            raise ValueError(f"{what}, which ends in piece {len(texts)}, at byte {len(content)}: get it anew")
        texts.append(content[place - length : place])
        scores.append(score)
    first = NUM_SPECIAL + NUM_BYTES
    if len(texts) < first:
        raise ValueError(f"{what}, got {len(texts)} pieces: Llama's begin with {first}, three signs and 256 bytes")
    special = [Piece(piece.text, score, piece.kind) for piece, score in zip(special_pieces(), scores, strict=False)]
    old = [chr(byte).encode() for byte in range(NUM_BYTES)]  # llama2.c's first exports had characters for bytes
    if texts[NUM_SPECIAL:first] not in ([piece.text for piece in special[NUM_SPECIAL:]], old):
        raise ValueError(f"{what}, in which pieces 3 to 258 are the bytes <0x00> to <0xFF>; they are not: get it anew")
    normal = zip(texts[first:], scores[first:], strict=True)
    return special + [Piece(text.replace(b" ", SPACE.encode()), score) for text, score in normal]


def write(path: Path, pieces: list[Piece], bos: int = BOS, eos: int = EOS) -> Path:
    """For run.c, which takes 1 and 2 for the start and the end, and 3 ... 258 for the bytes."""
    bytes_at = [piece.kind == "byte" for piece in pieces]
    if (bos, eos) != (BOS, EOS) or not all(bytes_at[NUM_SPECIAL:][:NUM_BYTES]) or sum(bytes_at) != NUM_BYTES:
        raise ValueError(
            f"cannot write {path}: llama2.c wants <s> and </s> as tokens 1 and 2, and the bytes after them"
        )
    texts = [piece.text.replace(SPACE.encode(), b" ") for piece in pieces]
    texts[BOS], texts[EOS] = b"\n<s>\n", b"\n</s>\n"  # as llama2.c's own export writes them
    records = [struct.pack("<fi", piece.score, len(text)) + text for piece, text in zip(pieces, texts, strict=True)]
    return durable.replace(path, struct.pack("<i", max(map(len, texts))) + b"".join(records))
