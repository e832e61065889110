"""IDX, the format of the MNIST files: two zeros, the type (8: bytes), the number of dimensions, their sizes, the bytes.

The sizes are big-endian numbers of four bytes; the first is the number of records.
"""

import gzip
import struct
import zlib
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from .. import durable


def find(folder: Path, name: str) -> Path | None:
    """The file, or the gzipped one. Some unpackers spell train-images-idx3-ubyte as train-images.idx3-ubyte."""
    head, _, tail = name.rpartition("-idx")
    for spelling in (name, f"{head}.idx{tail}"):
        for path in (folder / spelling, folder / f"{spelling}.gz"):
            if path.is_file():
                return path
    return None


def read(path: Path, shape: tuple[int | None, ...]) -> NDArray[np.uint8]:
    """The records (N, *shape) of a file, None: any size. Whatever is wrong is a ValueError that names it and where."""
    content = _content(path)
    header = 4 + 4 * (1 + len(shape))
    magic = bytes([0, 0, 8, 1 + len(shape)])
    if content[:4] != magic or len(content) < header:
        raise ValueError(
            f"{path}: expected an IDX file of {1 + len(shape)} dimensions, beginning with the bytes {magic.hex(' ')}; "
            f"it begins with {content[:4].hex(' ') or 'nothing'} and is {len(content)} bytes long; get it anew"
        )
    num_records, *found = struct.unpack(f">{1 + len(shape)}I", content[4:header])
    if any(got != wanted for got, wanted in zip(found, shape, strict=True) if wanted is not None) or 0 in found:
        raise ValueError(f"{path}: expected records of {_times(shape)} bytes, got {_times(tuple(found))} at byte 8")
    size = int(np.prod(found, dtype=np.int64))
    expected = header + num_records * size
    if len(content) < expected:
        raise ValueError(
            f"{path}: ends at byte {len(content)}, in record {(len(content) - header) // size} of {num_records}; "
            f"expected {expected} bytes; get it anew"
        )
    if len(content) > expected:
        more = len(content) - expected
        raise ValueError(f"{path}: {more} bytes too many after record {num_records - 1}; get it anew")
    return np.frombuffer(content, np.uint8, offset=header).reshape(num_records, *found)


def read_labels(path: Path, num_classes: int) -> NDArray[np.uint8]:
    labels = read(path, ())
    wrong = np.flatnonzero(labels >= num_classes)
    if wrong.size:
        record = int(wrong[0])
        raise ValueError(
            f"{path}: label {labels[record]} of record {record} (byte {8 + record}): "
            f"expected one from 0 to {num_classes - 1}"
        )
    return labels


def encode(records: NDArray[np.uint8]) -> bytes:
    return struct.pack(f">HBB{records.ndim}I", 0, 8, records.ndim, *records.shape) + records.tobytes()


def write(path: Path, records: NDArray[np.uint8]) -> None:
    durable.replace(path, encode(records))


def _content(path: Path) -> bytes:
    content = path.read_bytes()
    if path.suffix != ".gz":
        return content
    try:
        return gzip.decompress(content)
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise ValueError(f"{path}: not a whole gzip file ({error}); get it anew") from error


def _times(shape: tuple[int | None, ...]) -> str:
    return " x ".join("any" if size is None else str(size) for size in shape) or "1"
