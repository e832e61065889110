"""Pictures and captions of one's own, and emoji, as the recipe takes them: see source.py."""

import functools
import hashlib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from .. import _random, emoji_source, sources
from . import decoded, listing, reading, tar_files
from .decoded import Decoded
from .found import Pair, Skipped
from .similar_captions import SimilarCaptions, same
from .source import Classes, Kind

_CAPTION, _EASY, _MEDIUM, _HARD = 31, 32, 33, 34  # streams of the seed
_TRIES = 16  # of random captions, before all are looked at
_HARDEST = 4  # captions that share the most words, of which one is drawn


class Collection:
    """Pairs whose pictures were decoded once. prompts: of the labels the pairs have, for classes()."""

    def __init__(
        self, pairs: Sequence[Pair], digests: Sequence[str], size: int, pixels: NDArray[np.uint8] | None = None,
        rows: Sequence[int] = (), seed: int = 0, prompts: Mapping[str, str] | None = None, classes_name: str = "class",
    ) -> None:  # fmt: skip
        """rows: where the pictures are in `pixels`; without those they are decoded whenever they are asked for."""
        self.pairs, self.size, self.seed = pairs, size, seed
        self._pixels, self._rows = pixels, rows
        self._prompts, self._classes_name = prompts or {}, classes_name
        self._captions = [caption for pair in pairs for caption in pair.captions]
        self._hardest: dict[int, list[int]] = {}
        self._fingerprint = _fingerprint(pairs, digests, size)

    @property
    def fingerprint(self) -> str:
        return self._fingerprint

    def __len__(self) -> int:
        return len(self.pairs)

    def picture(self, index: int) -> NDArray[np.uint8]:
        if self._pixels is not None:
            return np.array(self._pixels[self._rows[index]])
        pair = self.pairs[index]
        try:
            with reading.quiet():
                return reading.decode(pair.place.read(), self.size)
        except reading.Unusable as error:
            where = f"{pair.place.path} at byte {pair.place.offset}"
            raise ValueError(f"{where}: {error.reason}, and could be: it was changed while in use ({error})") from None

    def caption(self, index: int, draw: int = 0) -> str:
        captions = self.pairs[index].captions
        return captions[self._number(_CAPTION, index, draw) % len(captions) if draw else 0]

    def wrong_caption(self, index: int, kind: Kind, draw: int = 0) -> str:
        """easy: any that is not its own; medium: with a word in common; hard: one of those that share the most."""
        own = self._own(index)
        if kind == "hard":
            hardest = self._hardest_of(index)
            if hardest:
                return self._captions[hardest[self._number(_HARD, index, draw) % len(hardest) if draw else 0]]
        if kind in ("medium", "hard"):
            found = self._with_a_word(index, draw, own)
            if found is not None:
                return found
        found = self._not_own(range(len(self._captions)), self._number(_EASY, index, draw), own)
        if found is None:
            raise ValueError(
                f"expected captions that differ, to have wrong ones; all {len(self):,} pairs have that of"
                f" {self.pairs[index].name}; give more pairs, or hold out more of them"
            )
        return found

    def is_own(self, index: int, caption: str) -> bool:
        return same(caption) in self._own(index)

    def classes(self) -> Sequence[Classes]:
        labels = list(self._prompts)
        places = {label: i for i, label in enumerate(labels)}
        having = [i for i, pair in enumerate(self.pairs) if pair.label in places]
        if len(labels) < 2 or not having:
            return ()
        numbers = [places[str(self.pairs[i].label)] for i in having]
        return (Classes(self._classes_name, list(self._prompts.values()), numbers, _Picked(self.picture, having)),)

    @functools.cached_property
    def _similar(self) -> SimilarCaptions:
        return SimilarCaptions(self._captions)

    def _own(self, index: int) -> set[str]:
        return {same(caption) for caption in self.pairs[index].captions}

    def _number(self, stream: int, index: int, draw: int) -> int:
        return int(_random.bits(self.seed, stream, np.array([index]), np.array([draw]))[0])

    def _not_own(self, ids: Sequence[int] | NDArray[np.int32], number: int, own: set[str]) -> str | None:
        """One of the captions `ids`: some random ones are tried, then all in turn."""
        tries = _random.mix64(np.uint64(number) + np.arange(_TRIES, dtype=np.uint64)) % np.uint64(len(ids))
        for place in (*tries, *range(len(ids))):
            caption = self._captions[ids[int(place)]]
            if same(caption) not in own:
                return caption
        return None

    def _with_a_word(self, index: int, draw: int, own: set[str]) -> str | None:
        """A random word of its own, then a random caption with that word."""
        number = self._number(_MEDIUM, index, draw)
        words = self._similar.content_words(self.pairs[index].captions)
        for i in range(len(words)):
            found = self._not_own(self._similar.having(words[(number + i) % len(words)]), number, own)
            if found is not None:
                return found
        return None

    def _hardest_of(self, index: int) -> list[int]:
        """Remembered: it depends on nothing but the index."""
        if index not in self._hardest:
            seen, found = self._own(index), []
            for i in self._similar.ranked(self.pairs[index].captions, self._number(_HARD, index, 0)):
                text = same(self._captions[i])
                if text not in seen:
                    seen.add(text)
                    found.append(int(i))
                if len(found) == _HARDEST:
                    break
            self._hardest[index] = found
        return self._hardest[index]


class _Picked:
    """Pictures of some pairs, by their places among these."""

    def __init__(self, picture: Callable[[int], NDArray[np.uint8]], indices: Sequence[int]) -> None:
        self._picture, self._indices = picture, indices

    def __call__(self, place: int) -> NDArray[np.uint8]:
        return self._picture(self._indices[place])


def load(path: Path, size: int, valid_share: float = 0.1, seed: int = 0) -> tuple[Collection, Collection, Skipped]:
    """(to train on, held out, what was skipped) of a folder, a .csv, .tsv, .jsonl or .tar file: see listing.py.

    What is said of splits is done: a column `split`, folders train and valid (val, test), or names of tar files that
    start so. Otherwise a share is held out, by a hash of names and seed. A column `label` or `class` makes classes() of
    what is held out.
    """
    if not 0 < valid_share < 1:
        raise ValueError(f"valid_share: expected a number above 0 and below 1, got {valid_share:g}")
    skipped = Skipped()
    found = decoded.check(listing.find(path, skipped), size, skipped)
    if len(found.pairs) < 2:
        said = f"; {'; '.join(skipped.lines())}" if len(skipped) else ""
        raise ValueError(f"{path}: expected at least 2 pairs, to hold one out, got {len(found.pairs)}{said}")
    is_valid = _is_valid(found.pairs, valid_share, seed)
    train, valid = ([i for i in range(len(is_valid)) if is_valid[i] == which] for which in (False, True))
    labels = sorted({found.pairs[i].label or "" for i in valid} - {""})
    prompts = {label: f"a picture of {label}" for label in labels}
    return _part(found, train, size, seed), _part(found, valid, size, seed, prompts), skipped


def load_emoji(
    path: Path, size: int, held_out: str = "twitter", seed: int = 0, num_valid: int | None = 500
) -> tuple[Collection, Collection, Skipped]:
    """(to train on, held out, what was skipped) of the tar files that `fullstride data emoji` makes.

    Trained on are the drawings of all vendors but one; held out are num_valid random ones of that vendor, None: all of
    them. It draws the same things: nearly all captions that are held out were trained on, with other drawings. So this
    tells whether a drawing in another style is known, not whether a new caption is understood.
    """
    if held_out not in emoji_source.VENDORS:
        raise ValueError(f"held_out: expected one of {', '.join(emoji_source.VENDORS)}, got {held_out!r}")
    skipped = Skipped()
    pairs: list[Pair] = []
    for vendor in emoji_source.VENDORS:
        file = path / f"{vendor}.tar"
        if not file.is_file():
            raise FileNotFoundError(f"no {file.name} in {path}: `{sources.command('emoji', path)}` fetches it")
        pairs += tar_files.pairs(file, vendor, skipped, label=("category",))
    found = decoded.check(pairs, size, skipped)
    is_held = [pair.name.startswith(f"{held_out}/") for pair in found.pairs]
    train = [i for i, held in enumerate(is_held) if not held]
    valid = sorted((i for i, held in enumerate(is_held) if held), key=lambda i: _hash(found.pairs[i].name, seed))
    if not train or not valid:
        raise ValueError(f"{path}: expected emoji of several vendors, got none; {'; '.join(skipped.lines())}")
    valid = sorted(valid[:num_valid])
    return (
        _part(found, train, size, seed),
        _part(found, valid, size, seed, emoji_source.PROMPTS, "category"),
        skipped,
    )


def _part(
    found: Decoded, rows: list[int], size: int, seed: int, prompts: Mapping[str, str] | None = None, name: str = "class"
) -> Collection:
    pairs, digests = [found.pairs[i] for i in rows], [found.digests[i] for i in rows]
    return Collection(pairs, digests, size, found.pixels, rows, seed, prompts, name)


def _is_valid(pairs: Sequence[Pair], share: float, seed: int) -> list[bool]:
    said = [pair.split == "valid" for pair in pairs]
    if any(said) and not all(said):
        return said
    hashes = [_hash(pair.name, seed) for pair in pairs]
    count = sum(number < share * 2**64 for number in hashes)
    least = 2 if len(pairs) >= 4 else 1  # wrong captions are those of others
    last = sorted(hashes)[min(max(count, least), len(pairs) - 1) - 1]
    return [number <= last for number in hashes]


def _hash(name: str, seed: int) -> int:
    digest = hashlib.sha256(f"{seed} ".encode() + name.encode("utf-8", "surrogateescape")).digest()
    return int.from_bytes(digest[:8], "big")


def _fingerprint(pairs: Sequence[Pair], digests: Sequence[str], size: int) -> str:
    digest = hashlib.sha256(f"{size}\n".encode())
    for pair, content in zip(pairs, digests, strict=True):
        digest.update("\0".join((content, *pair.captions)).encode() + b"\n")
        digest.update(pair.name.encode("utf-8", "surrogateescape") + b"\n")
    return digest.hexdigest()
