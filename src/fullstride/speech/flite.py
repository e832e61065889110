"""Flite 2.2: small voices of real speakers, each phoneme with its end and its stress.

Through its shared libraries (Debian `flite`): the program prints no stress, and costs a process a sentence.
"""

import ctypes
import sys
import threading
from collections.abc import Iterator
from functools import lru_cache
from itertools import groupby

import numpy as np

from .spoken import SILENCE, Spoken, request

NAME = "flite"
VOICES = ("slt", "rms", "awb", "kal16")

_lock = threading.Lock()  # flite keeps what it is at in global variables; processes do not share them


class _Wave(ctypes.Structure):
    _fields_ = (
        ("type", ctypes.c_char_p),
        ("rate", ctypes.c_int),
        ("num_samples", ctypes.c_int),
        ("num_channels", ctypes.c_int),
        ("samples", ctypes.POINTER(ctypes.c_short)),
    )


def missing() -> str | None:
    """What to install, if flite cannot be used here."""
    try:
        _library()
        for voice in VOICES:
            ctypes.CDLL(f"libflite_cmu_us_{voice}.so.1")
    except (OSError, AttributeError) as error:
        return (
            f"expected flite's libraries, got: {error}; install them (apt-get install flite), "
            "or use eSpeak NG, which pip has (pip install 'fullstride[tts]')"
        )
    return None


def speak(text: str, voice: str) -> Spoken:
    """Says a text, at 16 kHz. What ASCII has no likeness of is left out."""
    plain = request(text, voice, sys.modules[__name__])
    with _lock:
        flite = _library()
        flite.srand(1)  # its noise is the C library's: the same text sounds the same, as from a new process
        utterance = flite.flite_synth_text(plain, _voice(voice))
        if not utterance:
            raise ValueError(f"expected flite to say {text[:60]!r}, but it could not; rephrase it")
        try:
            segments = list(_segments(flite, utterance))
            wave = flite.utt_wave(utterance).contents
            samples = np.ctypeslib.as_array(wave.samples, (wave.num_samples,)).astype(np.float32) / np.float32(32768)
            rate = wave.rate
        finally:
            flite.delete_utterance(utterance)
    names, ends, places = zip(*segments, strict=True)
    # The last silence may be said to end after the sound: by up to 5 ms, in kal16 by 0.12 s.
    return Spoken(samples, rate, names, np.minimum(np.array(ends), len(samples) / rate), _words(names, places))


def phonemes(text: str, voice: str = "slt") -> tuple[str, ...]:
    """What the voice would say. It does say it, in about 1/50 of the time it takes to listen."""
    return speak(text, voice).phonemes


def _words(names: tuple[str, ...], places: tuple[tuple[str, int], ...]) -> tuple[tuple[str, tuple[str, ...]], ...]:
    """Neighbouring phonemes of one word, and how each was pronounced."""
    grouped = groupby(zip(places, names, strict=True), key=lambda entry: entry[0])
    return tuple((place[0], tuple(name for _, name in group)) for place, group in grouped if place[0])


def _segments(flite: ctypes.CDLL, utterance: int) -> Iterator[tuple[str, float, tuple[str, int]]]:
    """Name and end of each phoneme, and the word that it is in, by name and address; a pause is in none."""
    item = flite.relation_head(flite.utt_relation(utterance, b"Segment"))
    while item:
        name = flite.flite_ffeature_string(item, b"name").decode("ascii")
        if name != SILENCE and flite.flite_ffeature_string(item, b"ph_vc") == b"+":
            name += flite.flite_ffeature_string(item, b"R:SylStructure.parent.stress").decode("ascii")
        word = None if name == SILENCE else flite.path_to_item(item, b"R:SylStructure.parent.parent")
        of = (flite.flite_ffeature_string(word, b"name").decode("ascii"), word) if word else ("", 0)
        yield name, flite.item_feat_float(item, b"end"), of
        item = flite.item_next(item)


@lru_cache(maxsize=1)
def _library() -> ctypes.CDLL:
    flite = ctypes.CDLL("libflite.so.1")
    pointer, text = ctypes.c_void_p, ctypes.c_char_p
    flite.flite_synth_text.argtypes, flite.flite_synth_text.restype = [text, pointer], pointer
    flite.utt_relation.argtypes, flite.utt_relation.restype = [pointer, text], pointer
    flite.utt_wave.argtypes, flite.utt_wave.restype = [pointer], ctypes.POINTER(_Wave)
    flite.delete_utterance.argtypes, flite.delete_utterance.restype = [pointer], None
    flite.relation_head.argtypes, flite.relation_head.restype = [pointer], pointer
    flite.item_next.argtypes, flite.item_next.restype = [pointer], pointer
    flite.item_feat_float.argtypes, flite.item_feat_float.restype = [pointer, text], ctypes.c_float
    flite.flite_ffeature_string.argtypes, flite.flite_ffeature_string.restype = [pointer, text], text
    flite.path_to_item.argtypes, flite.path_to_item.restype = [pointer, text], pointer
    flite.srand.argtypes, flite.srand.restype = [ctypes.c_uint], None  # libc's, which it is linked with
    flite.flite_init()
    return flite


@lru_cache(maxsize=len(VOICES))
def _voice(name: str) -> int:
    register = ctypes.CDLL(f"libflite_cmu_us_{name}.so.1")[f"register_cmu_us_{name}"]
    register.argtypes, register.restype = [ctypes.c_void_p], ctypes.c_void_p
    voice: int = register(None)
    return voice
