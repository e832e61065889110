"""Folders of recordings as LJSpeech's are, with what the Montreal Forced Aligner makes of them.

    metadata.csv                    name|text as written|text as spoken|speaker     the last two may be missing
    wavs/NAME.wav
    TextGrid/NAME.TextGrid          or textgrids/, aligned/, a folder by speaker in them, or beside the WAV

What is wrong with a single recording is kept with it, for whoever uses it to skip it or to refuse all.
"""

from pathlib import Path, PurePosixPath
from typing import NamedTuple

_PLACES = ("TextGrid", "TextGrids", "textgrids", "aligned", "wavs", ".")
_BROKEN = "\ufffd"  # what decoders put for what they cannot read


class Recording(NamedTuple):
    name: str
    text: str
    speaker: str
    wav: Path
    alignment: Path
    wrong: str = ""
    """Why it cannot be used, in a line that names it."""


def find(folder: Path) -> list[Recording]:
    """All of metadata.csv, in its order. ValueError, one line, for what is missing and how to make it."""
    table = folder / "metadata.csv"
    if not table.is_file():
        raise ValueError(f"{folder}: expected metadata.csv with lines of name|text and a folder wavs, got no such file")
    try:
        text = table.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        raise ValueError(f"{table}: expected UTF-8, got {error.reason} at byte {error.start}") from None
    alignments = _Alignments(folder)
    found: list[Recording] = []
    lines: dict[str | Path, int] = {}  # of names and alignments
    for number, line in enumerate(text.split("\n"), 1):  # splitlines() would cut at form feeds and the like, too
        if line.strip():
            recording = _recording(folder, f"{table}: line {number}", line, alignments)
            for what in (recording.name, recording.alignment) if not recording.wrong else ():
                if lines.setdefault(what, number) != number:
                    twice = f"expected {what} once, got it in line {lines[what]}, too; give each recording its own"
                    recording = recording._replace(wrong=f"{table}: line {number}: {twice}")
                    break
            found.append(recording)
    if not found:
        raise ValueError(f"{table}: expected lines of name|text, got none")
    if not alignments:
        raise ValueError(f"{folder}: expected an alignment NAME.TextGrid for each recording, got none; {_how(folder)}")
    return found


def _recording(folder: Path, place: str, line: str, alignments: "_Alignments") -> Recording:
    parts = [part.strip() for part in line.split("|")]
    name = str(PurePosixPath(parts[0].removesuffix(".wav"))) if parts[0] else ""
    text = next((part for part in (*parts[2:3], *parts[1:2]) if part), "")
    speaker = parts[3] if len(parts) > 3 and parts[3] else "speaker"
    wrong = _wrong(name, text, line)
    if wrong:
        return Recording(name, text, speaker, Path(), Path(), f"{place}: {wrong}")
    wav, fitting = folder / "wavs" / f"{name}.wav", alignments.of(name, speaker)
    if len(fitting) > 1:
        several = " and ".join(map(str, fitting[:2]))
        return Recording(name, text, speaker, wav, Path(), f"{wav}: expected one alignment, got {several}; remove one")
    if not fitting:
        wrong = f"{wav}: expected an alignment {PurePosixPath(name).name}.TextGrid, got none; {_how(folder)}"
        return Recording(name, text, speaker, wav, Path(), wrong)
    return Recording(name, text, speaker, wav, fitting[0])


def _wrong(name: str, text: str, line: str) -> str | None:
    path = PurePosixPath(name)
    if not name or "|" not in line:
        return f"expected name|text, got {line[:60]!r}"
    if path.is_absolute() or ".." in path.parts or "\0" in name:
        return f"expected the name of a recording in wavs, got {name[:60]!r}"
    if not text:
        return f"expected what {name} says, got no text"
    if _BROKEN in text or not any(character.isalnum() for character in text):
        return f"expected words that {name} says, got {text[:60]!r}"
    return None


def _how(folder: Path) -> str:
    """To get alignments."""
    return (
        "make them with the Montreal Forced Aligner: put NAME.lab with the text beside each WAV, then"
        f" `mfa align {folder / 'wavs'} english_us_arpa english_us_arpa {folder / 'TextGrid'}`"
    )


class _Alignments:
    """By their place within a folder of alignments, and by their bare names."""

    def __init__(self, folder: Path) -> None:
        self._by_place: dict[str, Path] = {}
        self._by_name: dict[str, list[Path]] = {}
        for place in _PLACES:
            pattern = "*.TextGrid" if place == "." else "**/*.TextGrid"
            within = folder / place
            here: dict[str, list[Path]] = {}
            for path in sorted(within.glob(pattern)):
                self._by_place.setdefault(path.relative_to(within).with_suffix("").as_posix(), path)
                here.setdefault(path.stem, []).append(path)
            self._by_name = here | self._by_name  # the first folder that has it counts

    def __len__(self) -> int:
        return len(self._by_place)

    def of(self, name: str, speaker: str) -> list[Path]:
        """More than one: which is meant cannot be told."""
        for key in (name, f"{speaker}/{name}"):
            if key in self._by_place:
                return [self._by_place[key]]
        path = PurePosixPath(name)
        fitting = self._by_name.get(path.name, [])
        if path.name != name:  # that of another folder is of another recording
            fitting = [alignment for alignment in fitting if self._by_place.get(path.name) == alignment]
        return fitting
