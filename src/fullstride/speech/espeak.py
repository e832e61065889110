"""eSpeak NG: a synthesiser that pip brings (PyPI `espeakng-loader`), each phoneme with its end and its stress.

It tells when a phoneme begins: it ends where the next one begins, and neighbouring silences are one.
"""

import ctypes
import sys
import threading
from importlib import import_module

import numpy as np
from numpy.typing import NDArray

from .spoken import SILENCE, Spoken, request

_NAMES = {"en-us": b"gmw/en-US", "en-gb": b"gmw/en"}  # by language there would be several, by name one
NAME = "eSpeak"
VOICES = tuple(_NAMES)
PAUSE = 0.1  # seconds of silence before and after: it begins at once, and ends as abruptly

_VOWELS = frozenset("aAeEiIoOuUV03@")  # first letters of its names
_STRESS = {"'": "1", ",": "2", "%": "0", "=": "0"}  # its marks before a vowel
_SYNCHRONOUS, _PHONEME_EVENTS, _DO_NOT_EXIT, _UTF8, _BY_CHARACTER = 2, 0x0001, 0x8000, 1, 1
_END_OF_LIST, _PHONEME = 0, 7

_lock = threading.Lock()


class _Event(ctypes.Structure):
    _fields_ = (
        ("type", ctypes.c_int),
        ("identifier", ctypes.c_uint),
        ("text_position", ctypes.c_int),
        ("length", ctypes.c_int),
        ("audio_position", ctypes.c_int),  # ms
        ("sample", ctypes.c_int),
        ("user_data", ctypes.c_void_p),
        ("name", ctypes.c_char * 8),  # of a union that is a pointer in other events
    )


_Callback = ctypes.CFUNCTYPE(
    ctypes.c_int, ctypes.POINTER(ctypes.c_short), ctypes.c_int, ctypes.POINTER(_Event)
)  # samples, how many, events


def missing() -> str | None:
    """What to install, if eSpeak NG cannot be used here."""
    try:
        _unload(ctypes.CDLL(_paths()[0]))
    except (ImportError, OSError) as error:
        return (
            f"expected eSpeak NG, got: {error}; install it (pip install 'fullstride[tts]'), "
            "or use flite, which Debian has (apt-get install flite)"
        )
    return None


def speak(text: str, voice: str) -> Spoken:
    """Says a text, at 22.05 kHz. What ASCII has no likeness of is left out."""
    plain = request(text, voice, sys.modules[__name__])
    with _lock:
        samples, rate, begins = _synthesise(plain, voice)
    if not begins:
        raise ValueError(f"expected eSpeak to say {text[:60]!r}, but it could not; rephrase it")
    pause = np.zeros(round(PAUSE * rate), np.float32)
    samples = np.concatenate([pause, samples, pause])
    merged = [(SILENCE, 0)]
    for name, begin in ((_named(mnemonic), begin + len(pause)) for mnemonic, begin in begins):
        if name != SILENCE or merged[-1][0] != SILENCE:
            merged.append((name, begin))
    if merged[-1][0] != SILENCE:
        merged.append((SILENCE, len(samples) - len(pause)))
    ends = np.array([begin for _, begin in merged[1:]] + [len(samples)]) / rate
    return Spoken(samples, rate, tuple(name for name, _ in merged), ends)


def phonemes(text: str, voice: str = "en-us") -> tuple[str, ...]:
    """What the voice would say."""
    return speak(text, voice).phonemes


def _named(mnemonic: str) -> str:
    """Its name for a phoneme, in ours: the mark of stress moves behind the vowel, as a digit."""
    mark, name = (mnemonic[0], mnemonic[1:]) if mnemonic[0] in _STRESS else ("=", mnemonic)
    if not name or name[0] == "_":
        return SILENCE
    return name + _STRESS[mark] if name[0] in _VOWELS else name


def _paths() -> tuple[str, str]:
    loader = import_module("espeakng_loader")
    return str(loader.get_library_path()), str(loader.get_data_path())


def _synthesise(text: bytes, voice: str) -> tuple[NDArray[np.float32], int, list[tuple[str, int]]]:
    """Samples, their rate, and each phoneme with the sample it begins at."""
    library, data = _paths()
    chunks: list[NDArray[np.int16]] = []
    begins: list[tuple[str, int]] = []

    def take(samples: "ctypes._Pointer[ctypes.c_short]", count: int, events: "ctypes._Pointer[_Event]") -> int:
        if samples and count > 0:
            chunks.append(np.ctypeslib.as_array(samples, (count,)).copy())
        place = 0
        while events[place].type != _END_OF_LIST:
            if events[place].type == _PHONEME and events[place].name:
                begins.append((events[place].name.decode("ascii"), events[place].sample))
            place += 1
        return 0

    # What one text leaves in its variables (phase, flutter) changes the next, and nothing resets them. Loaded anew, at
    # 4 ms a text, the same text gives the same samples.
    espeak = ctypes.CDLL(library)
    callback = _Callback(take)
    try:
        rate = espeak.espeak_Initialize(_SYNCHRONOUS, 0, data.encode(), _PHONEME_EVENTS | _DO_NOT_EXIT)
        if rate <= 0:
            raise OSError(f"eSpeak NG cannot read its data in {data}; pip install --force-reinstall espeakng-loader")
        if espeak.espeak_SetVoiceByName(_NAMES[voice]) != 0:
            raise OSError(f"eSpeak NG has no voice {voice}; pip install --force-reinstall espeakng-loader")
        espeak.espeak_SetSynthCallback(callback)
        espeak.srand(1)  # its noise is the C library's
        espeak.espeak_Synth(
            ctypes.c_char_p(text), ctypes.c_size_t(len(text) + 1), 0, _BY_CHARACTER, 0, _UTF8, None, None
        )
        espeak.espeak_Terminate()
    finally:
        _unload(espeak)
    samples = np.concatenate(chunks) if chunks else np.zeros(0, np.int16)
    return samples.astype(np.float32) / np.float32(32768), int(rate), begins


def _unload(library: ctypes.CDLL) -> None:
    close = getattr(import_module("_ctypes"), "dlclose", None)  # not on Windows
    if close is not None:
        close(library._handle)
