"""Texts read in parts, so that none has to fit into memory, and cut in two: to train on and held out."""

import codecs
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

BLOCK = 1 << 20  # bytes
_LONGEST_LINE = 1 << 12  # bytes; in a longer one the cut is made between two characters


@dataclass(frozen=True)
class Document:
    path: Path
    size: int  # bytes
    cut: int  # where the held-out part begins

    def parts(self, held_out: bool) -> Iterator[str]:
        """The text in parts; all but the first begin with white space, if there is any within a block.

        No piece goes on after white space, so tokens do not depend on where the parts end.
        """
        start, stop = (self.cut, self.size) if held_out else (0, self.cut)
        rest = ""
        for text in _decoded(self.path, start, stop):
            rest += text
            if len(rest) >= BLOCK // 4:  # characters have up to 4 bytes
                end = max(rest.rfind("\n"), 0) or max(rest.rfind(" "), 0) or len(rest)
                yield rest[:end]
                rest = rest[end:]
        if rest:
            yield rest


def find(path: Path, valid_share: float) -> list[Document]:
    """The *.txt files of a folder and the folders in it, in the order of their names, or the one file."""
    if path.is_dir():
        paths = sorted((file for file in path.rglob("*.txt") if file.is_file()), key=lambda file: file.parts)
        if not paths:
            raise ValueError(f"{path}: expected text, files named *.txt, or tokens, *.bin; there are none")
    else:
        paths = [path]
    documents = [_document(file, valid_share) for file in paths]
    if not any(document.size for document in documents):
        raise ValueError(f"{path}: the text is empty" + (f", all {len(paths)} files of it" if len(paths) > 1 else ""))
    return documents


def _document(path: Path, valid_share: float) -> Document:
    """Cut where the first line begins in the held-out share; if it has none, at its first character."""
    size = path.stat().st_size
    start = size - round(size * valid_share)
    if not 0 < start < size:
        return Document(path, size, start)
    with open(path, "rb") as file:
        file.seek(start - 1)
        ahead = file.read(1 + _LONGEST_LINE)
    cut = start + ahead.find(b"\n") if b"\n" in ahead else size
    if cut == size:
        cut = start
        while cut < size and ahead[cut - start + 1] & 0xC0 == 0x80:  # not the first byte of a character
            cut += 1
    return Document(path, size, cut)


def _decoded(path: Path, start: int, stop: int) -> Iterator[str]:
    utf8 = codecs.getincrementaldecoder("utf-8-sig" if start == 0 else "utf-8")()
    with open(path, "rb") as file:
        file.seek(start)
        while start < stop:
            block = file.read(min(BLOCK, stop - start))
            if not block:
                raise ValueError(f"{path}: ends at byte {start}, and had {stop}: it was changed while it was read")
            waiting = len(utf8.getstate()[0])
            try:
                yield utf8.decode(block, final=start + len(block) == stop)
            except UnicodeDecodeError as error:
                raise ValueError(
                    f"{path}: byte {start - waiting + error.start} is not UTF-8: "
                    f"convert it, say by `iconv -f latin1 -t utf-8`, or take it out of the folder"
                ) from None
            start += len(block)
