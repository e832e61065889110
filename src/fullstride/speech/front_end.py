"""From text to the phonemes a model was trained on, as far as they can be had here.

    text -> plain words -> the corpus' synthesiser if it is installed, else its lexicon, else letter rules -> symbols
"""

import json
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from types import ModuleType

from .. import durable
from . import espeak, flite
from .characters import to_ascii
from .letters import letters_to_phonemes
from .normalise import normalise
from .spoken import SILENCE

PADDING = "_"
SYNTHESISERS: dict[str, ModuleType] = {"flite": flite, "espeak": espeak}
ENGINES = (*SYNTHESISERS, "lexicon")
MOST_CHARACTERS = 10_000  # of a line: more than can be said in the phonemes that a model takes
_ALIKE = {  # by ARPAbet: what MFA, then what eSpeak says instead; they have no ax, or other names
    **dict(aa=("A:", "0"), ae=("a",), ah=("ax", "V"), ao=("O:", "0"), aw=("aU",), ax=("ah", "AH", "@", "a#")),
    **dict(ay=("aI",), eh=("E",), er=("3:", "3"), ey=("eI",), ih=("I",), iy=("i:", "i"), ow=("oU",), oy=("OI",)),
    **dict(uh=("U",), uw=("u:",), hh=("h",), ng=("N",), ch=("tS",), jh=("dZ",), sh=("S",), zh=("Z",), th=("T",)),
    **dict(dh=("D",), y=("j",)),
}
_NAMED = 8  # unknown words and symbols a note names


@dataclass(frozen=True)
class Reading:
    """Phonemes to say, and what the reader should know of how they came about, a line each."""

    phonemes: tuple[str, ...]
    notes: tuple[str, ...]


@dataclass(frozen=True)
class FrontEnd:
    """How a corpus' text became symbols. Saved with the model, which has one embedding for each of `symbols`."""

    engine: str  # one of ENGINES
    voice: str  # the engine's
    symbols: tuple[str, ...]  # the first is padding
    lexicon: Mapping[str, tuple[str, ...]] = field(default_factory=dict)  # lower-case word: its phonemes

    def __post_init__(self) -> None:
        if self.engine not in ENGINES:
            raise ValueError(f"expected an engine of {', '.join(ENGINES)}, got {self.engine!r}")
        if not self.symbols or self.symbols[0] != PADDING or SILENCE not in self.symbols:
            found = " ".join(self.symbols[:5]) or "none"
            raise ValueError(f"expected symbols that begin with {PADDING!r} and have {SILENCE!r}, got {found}")
        if len(set(self.symbols)) != len(self.symbols):
            raise ValueError("expected symbols that differ, got one twice")

    def save(self, path: Path) -> None:
        durable.replace(path, (json.dumps(asdict(self), indent=1) + "\n").encode())

    @classmethod
    def load(cls, path: Path) -> "FrontEnd":
        try:
            entries = json.loads(path.read_bytes())
            engine, voice, symbols, lexicon = (entries[name] for name in ("engine", "voice", "symbols", "lexicon"))
            if not all(isinstance(symbol, str) for symbol in (voice, *symbols)):
                raise ValueError("its symbols are not all text")
            return cls(engine, voice, tuple(symbols), {word: tuple(said) for word, said in lexicon.items()})
        except OSError as error:
            raise ValueError(f"{path}: cannot be read: {error.strerror}; it is saved with the model") from error
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            what = str(error).splitlines()[0] if str(error) else type(error).__name__
            raise ValueError(f"{path}: expected a saved front end, got damage: {what}; restore the file") from error

    def phonemes(self, text: str, voice: str | None = None) -> Reading:
        """What to say for a text. Within braces stand phonemes, taken as they are: {hh ax0 l ow1}.

        voice: one of the engine's whose accent it is; another name, or none, is that of the corpus' first.
        """
        if len(text) > MOST_CHARACTERS:  # before the synthesiser says it all, only to be told that it is too much
            raise ValueError(
                f"expected a line of at most {MOST_CHARACTERS:,} characters, got {len(text):,};"
                " put its sentences on lines of their own"
            )
        notes: list[str] = []
        unknown: dict[str, None] = {}
        dropped: dict[str, None] = {}
        said = [SILENCE]
        absent = self._absent()
        for place, part in enumerate(re.split(r"\{([^{}]*)\}", text)):
            if place % 2:
                said += part.split()
                continue
            plain, gone = to_ascii(part)
            dropped.update(dict.fromkeys(gone))
            if any(character.isalnum() for character in plain):
                words = normalise(part).text
                said += self._ask(words, voice) if absent is None else self._read(words, unknown)
            elif set(plain) & set(".,?!;:-"):
                said.append(SILENCE)
        said.append(SILENCE)
        if dropped:
            notes.append(f"left out, for nothing here can say it: {_some(dropped)}")
        if absent:
            notes.append(f"read by the lexicon and letter rules: {absent}")
        if unknown:
            notes.append(f"not in the lexicon, read by letter rules: {_some(unknown)}")
        known = self._known(said, notes)
        if not any(phoneme != SILENCE for phoneme in known):
            raise ValueError(f"expected text with words to say, got {text[:60]!r}; give at least one word or number")
        return Reading(known, tuple(notes))

    def ids(self, phonemes: Iterable[str]) -> list[int]:
        """The places of phonemes among the symbols."""
        places = {symbol: place for place, symbol in enumerate(self.symbols)}
        return [places[phoneme] for phoneme in phonemes]

    def _absent(self) -> str | None:
        """Why the lexicon is used: an empty line if it is the engine."""
        return "" if self.engine == "lexicon" else SYNTHESISERS[self.engine].missing()

    def _ask(self, words: str, voice: str | None) -> tuple[str, ...]:
        engine = SYNTHESISERS[self.engine]
        said: tuple[str, ...] = engine.phonemes(words, voice if voice in engine.VOICES else self.voice)
        return said

    def _read(self, text: str, unknown: dict[str, None]) -> list[str]:
        said: list[str] = []
        for word in re.findall(r"[a-z']+|[.,?!;:]", text.lower()):
            base = word.removesuffix("'s")
            if word in ".,?!;:":
                said.append(SILENCE)
            elif word in self.lexicon:
                said += self.lexicon[word]
            elif base in self.lexicon and base != word:
                said += (*self.lexicon[base], "z")
            else:
                if len(word) > 1:  # a letter's name is no guess
                    unknown[word] = None
                said += letters_to_phonemes(word)
        return said

    def _known(self, said: Iterable[str], notes: list[str]) -> tuple[str, ...]:
        """In symbols of the model, neighbouring silences as one."""
        known: list[str] = []
        lost: dict[str, None] = {}
        symbols = frozenset(self.symbols[1:])
        for phoneme in said:
            nearest = next((symbol for symbol in self._likenesses(phoneme) if symbol in symbols), None)
            if nearest is None:
                lost[phoneme] = None
            elif nearest != SILENCE or known[-1:] != [SILENCE]:
                known.append(nearest)
        if lost:
            notes.append(f"left out, for the model was not trained on it: {_some(lost)}")
        return tuple(known)

    def _likenesses(self, phoneme: str) -> Iterator[str]:
        """It, with another stress, then likewise what it is called or replaced by in other phone sets."""
        yield phoneme
        stressed = phoneme[-1] in "012" and len(phoneme) > 1
        sound, stress = (phoneme[:-1], phoneme[-1]) if stressed else (phoneme, "")
        others = _ALIKE.get(sound.lower(), ())
        # eSpeak's names differ by case alone: T is th, t is t.
        names = (sound, *others) if self.engine == "espeak" else (sound, sound.upper(), sound.lower(), *others)
        for name in names:
            yield from (name + digit for digit in (stress, "0", "1", "2", ""))


def collect_lexicon(pairs: Iterable[tuple[str, tuple[str, ...]]]) -> dict[str, tuple[str, ...]]:
    """Each word in lower case with its most frequent pronunciation; among equals the first in order."""
    counts: dict[str, Counter[tuple[str, ...]]] = defaultdict(Counter)
    for word, said in pairs:
        counts[word.lower()][tuple(said)] += 1
    return {word: min(counts[word].items(), key=lambda entry: (-entry[1], entry[0]))[0] for word in sorted(counts)}


def _some(names: Iterable[str]) -> str:
    listed = list(names)
    more = f" and {len(listed) - _NAMED} more" if len(listed) > _NAMED else ""
    return " ".join(listed[:_NAMED]) + more
