"""Pictures and archives for the tests."""

import io
import struct
import tarfile
import zlib

import numpy as np
from PIL import Image


def picture(seed=0, width=24, height=16):
    return Image.fromarray(np.random.default_rng(seed).integers(0, 256, (height, width, 3), np.uint8))


def plain(colour, mode="RGB", width=24, height=16):
    return Image.new(mode, (width, height), colour)


def encoded(image, form="PNG", **options):
    content = io.BytesIO()
    image.save(content, form, **options)
    return content.getvalue()


def png_header(width, height):
    """A PNG that says to be as large, and has no pixels."""
    chunk = b"IHDR" + struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    parts = (b"\x89PNG\r\n\x1a\n", struct.pack(">I", 13), chunk, struct.pack(">I", zlib.crc32(chunk)))
    idat = b"IDAT" + zlib.compress(b"")
    return b"".join(parts) + struct.pack(">I", len(idat) - 4) + idat + struct.pack(">I", zlib.crc32(idat))


def tar(members):
    """(name, content) of each, in their order."""
    content = io.BytesIO()
    with tarfile.open(fileobj=content, mode="w") as archive:
        for name, data in members:
            header = tarfile.TarInfo(name)
            header.size = len(data)
            archive.addfile(header, io.BytesIO(data))
    return content.getvalue()
