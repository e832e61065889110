"""PNG files as sets of pictures come in: RGB of 8 bits a channel, not interlaced.

A row is one byte that says how it was predicted, and the differences to that: 0 nothing, 1 the pixel to the left, 2 the
one above, 3 their mean, 4 the one of left, above and above left that is nearest to left + above - above left (Paeth).
"""

import struct
import zlib

import numpy as np
from numpy.typing import NDArray


def decode(content: bytes) -> NDArray[np.uint8]:
    """(height, width, 3)."""
    if content[:8] != b"\x89PNG\r\n\x1a\n":
        raise ValueError(f"expected a PNG file, got one that begins with {content[:8].hex(' ') or 'nothing'}")
    header, packed, at = b"", [], 8
    while at < len(content):
        size, kind = struct.unpack(">I4s", content[at : at + 8])
        if kind == b"IHDR":
            header = content[at + 8 : at + 8 + size]
        elif kind == b"IDAT":
            packed.append(content[at + 8 : at + 8 + size])
        at += 12 + size
    width, height, *form = struct.unpack(">IIBBBBB", header)
    if form != [8, 2, 0, 0, 0]:
        raise ValueError(f"expected a PNG file of 8-bit RGB, not interlaced, got depth and colour {form[:2]}")
    lines = np.frombuffer(zlib.decompress(b"".join(packed)), np.uint8).reshape(height, 1 + 3 * width)
    kinds, rows = lines[:, 0], lines[:, 1:].reshape(height, width, 3).copy()
    to_the_left = kinds == 1
    rows[to_the_left] = np.cumsum(rows[to_the_left], axis=1, dtype=np.uint8)  # mod 256, as it is meant
    for y in np.flatnonzero(kinds > 1):
        rows[y] = _row(int(kinds[y]), rows[y], rows[y - 1] if y else np.zeros_like(rows[y]))
    return rows


def _row(kind: int, differences: NDArray[np.uint8], above: NDArray[np.uint8]) -> NDArray[np.uint8]:
    if kind == 2:
        return differences + above
    row = np.zeros((len(differences) + 1, 3), np.int32)  # the pixel before the first is black
    over = np.concatenate([np.zeros((1, 3), np.int32), above.astype(np.int32)])
    for x in range(1, len(row)):
        left, up, corner = row[x - 1], over[x], over[x - 1]
        row[x] = (differences[x - 1] + ((left + up) // 2 if kind == 3 else _paeth(left, up, corner))) % 256
    return row[1:].astype(np.uint8)


def _paeth(left: NDArray[np.int32], up: NDArray[np.int32], corner: NDArray[np.int32]) -> NDArray[np.int32]:
    to_left, to_up, to_corner = abs(up - corner), abs(left - corner), abs(left + up - 2 * corner)
    nearest = np.where(to_up <= to_corner, up, corner)
    return np.where((to_left <= to_up) & (to_left <= to_corner), left, nearest)
