"""Which pairs are in a folder, a table or tar files.

A folder is searched with all folders in it: tables (.csv, .tsv, .jsonl) name pictures and captions; a picture that no
table names has its caption in a .txt of the same name beside it; .tar files have both. All that is found is used. Links
are followed to files in the folder, never to folders.
"""

import os
from dataclasses import dataclass, field
from pathlib import Path

from . import tables, tar_files
from .found import PICTURES, UNREAD, Pair, Place, Skipped, captions_in, folder_split, label_in, said_by, split_in

_LOOKED_FOR = (
    "a table (captions.csv, metadata.csv or another .csv, .tsv or .jsonl), pictures with a .txt of the same name beside"
    " each, or .tar files of webdataset"
)

_OUT = "link leads out of the folder"
_TABLE_OUT = "table names a picture outside the folder; give the folder above both instead"


@dataclass
class _Entry:
    place: Place
    captions: dict[str, None] = field(default_factory=dict)  # in their order
    split: str | None = None
    label: str | None = None


@dataclass
class _Folder:
    root: Path  # resolved
    skipped: Skipped
    entries: dict[str, _Entry] = field(default_factory=dict)
    named: set[str] = field(default_factory=set)  # pictures that a table has, with a caption or without

    def inside(self, path: Path) -> str | None:
        """The path in the folder; None if it leads out of it, over links as well."""
        resolved = Path(os.path.realpath(path))
        return resolved.relative_to(self.root).as_posix() if resolved.is_relative_to(self.root) else None

    def is_usable(self, file: str) -> bool:
        """Of what was found in it: only links lead out, or to nothing. Counts it if not."""
        path = self.root / file
        if not os.path.isfile(path):
            what = "is no file" if os.path.exists(path) else "is a link to what is not there"
            self.skipped.add(UNREAD, f"{file}: {what}")
        elif os.path.islink(path) and self.inside(path) is None:
            self.skipped.add(_OUT, file)
        else:
            return True
        return False

    def add_table(self, table: Path) -> None:
        """As far as it can be read."""
        name = table.relative_to(self.root).as_posix()
        try:
            self._add_rows(table, name)
        except OSError as error:
            self.skipped.add(UNREAD, f"{name}: {said_by(error)}")

    def _add_rows(self, table: Path, name: str) -> None:
        for row in tables.rows(table, name, self.skipped):
            file = None if "\0" in row.file else self.inside(table.parent / row.file)
            if file is None:
                self.skipped.add(_TABLE_OUT, f"{row.where}: {row.file}")
                continue
            self.named.add(file)
            if not os.path.isfile(self.root / file):  # which bears names that are too long
                self.skipped.add("caption without a picture", f"{row.where}: {row.file}")
                continue
            try:
                split = split_in(row.split, row.where, self.skipped)
            except ValueError:
                continue
            captions = captions_in(row.caption, row.where, self.skipped)
            if captions:
                self._add(file, captions, split, label_in(row.label), row.where)

    def add_text(self, name: str, text: str) -> None:
        try:
            caption = (self.root / text).read_bytes().decode("utf-8-sig")
        except UnicodeDecodeError:
            self.skipped.add("caption is not UTF-8", text)
            return
        except OSError as error:
            self.skipped.add(UNREAD, f"{text}: {said_by(error)}")
            return
        captions = captions_in(caption, text, self.skipped)
        if captions:
            self._add(name, captions, None, None, text)

    def _add(self, file: str, captions: list[str], split: str | None, label: str | None, where: str) -> None:
        entry = self.entries.get(file)
        if entry is None:
            try:
                place = Place.whole(self.root / file)
            except OSError as error:
                self.skipped.add(UNREAD, f"{file}: {said_by(error)}")
                return
            entry = self.entries[file] = _Entry(place, split=split, label=label)
        elif split != entry.split:
            self.skipped.add("picture is in two splits", f"{where}: {file}")
            return
        for caption in captions:
            if caption in entry.captions:
                self.skipped.add("line of a table said again", f"{where}: {file}")
            entry.captions[caption] = None

    def pairs(self) -> list[Pair]:
        return [
            Pair(name, entry.place, tuple(entry.captions), entry.split or folder_split(name), entry.label)
            for name, entry in self.entries.items()
        ]


def find(path: Path, skipped: Skipped) -> list[Pair]:
    """In an order that does not depend on the machine. ValueError, one line, if there are none."""
    if path.is_dir():
        found = _in_folder(Path(os.path.realpath(path)), skipped)
    elif path.is_file() and tar_files.is_tar(path):
        found = tar_files.pairs(path, path.name, skipped)
    elif path.is_file() and tables.is_table(path):
        table = Path(os.path.realpath(path.parent)) / path.name
        folder = _Folder(table.parent, skipped)
        folder.add_table(table)
        found = folder.pairs()
    else:
        what = "it is none of them" if path.exists() else "there is no such file"
        raise ValueError(
            f"{path}: expected a folder, a .csv, .tsv, .jsonl or .tar file of pictures and captions; {what}"
        )
    if not found:
        said = f"; {'; '.join(skipped.lines())}" if len(skipped) else ""
        raise ValueError(f"{path}: expected pictures with captions: {_LOOKED_FOR}; found no pair{said}")
    return found


def _in_folder(root: Path, skipped: Skipped) -> list[Pair]:
    folder = _Folder(root, skipped)
    files = _files(root, skipped)
    for file in files:
        if tables.is_table(Path(file)) and folder.is_usable(file):
            try:
                folder.add_table(root / file)
            except ValueError as error:
                skipped.add("table without pictures and captions", str(error))
    _add_texts(folder, [file for file in files if file not in folder.named])
    tars = [file for file in files if tar_files.is_tar(root / file) and folder.is_usable(file)]
    in_tars = [tar_files.pairs(root / file, file, skipped) for file in tars]
    for file in files:
        if file.lower().endswith((".tar.gz", ".tgz", ".tar.bz2", ".tar.xz", ".tar.zst")):
            skipped.add("tar file is packed; unpack it to a .tar", file)
    return sorted(folder.pairs(), key=lambda pair: pair.name) + [pair for pairs in in_tars for pair in pairs]


def _add_texts(folder: _Folder, files: list[str]) -> None:
    """Pictures that no table names: with the .txt beside them."""
    texts = {os.path.splitext(file)[0]: file for file in files if file.lower().endswith(".txt")}
    pictures: dict[str, str] = {}
    for file in files:
        stem, suffix = os.path.splitext(file)
        if suffix.lower() not in PICTURES:
            continue
        if stem not in texts:
            folder.skipped.add("picture without a caption", file)
        elif stem in pictures:
            folder.skipped.add("name occurs twice", f"{file}: its caption is taken by {pictures[stem]}")
        else:
            pictures[stem] = file
            if folder.is_usable(file) and folder.is_usable(texts[stem]):
                folder.add_text(file, texts[stem])
    named = {os.path.splitext(file)[0] for file in folder.named}
    for stem, text in texts.items():
        if stem not in pictures and stem not in named:
            folder.skipped.add("caption without a picture", text)


def _files(root: Path, skipped: Skipped) -> list[str]:
    """All that are not hidden, by their paths in the folder."""
    found: list[str] = []

    def failed(error: OSError) -> None:
        skipped.add("folder cannot be read", f"{os.path.relpath(error.filename, root)}: {said_by(error)}")

    for place, folders, files in os.walk(root, onerror=failed):
        folders[:] = sorted(folder for folder in folders if not folder.startswith((".", "__MACOSX")))
        here = Path(place).relative_to(root)
        for folder in folders:
            if os.path.islink(os.path.join(place, folder)):
                skipped.add("folder is a link; give what it leads to", (here / folder).as_posix())
        found += [(here / file).as_posix() for file in files if not file.startswith(".")]
    return sorted(found)
