"""What a machine that nobody here wrote understands of speech: pocketsphinx, free dictation, its own English model.

    word error rate = (words put in + left out + taken for others) / words said, over all sentences together

The fewest such changes are counted (Levenshtein), of words without case and punctuation, contractions written out.
"""

import errno
import importlib
import re
from collections.abc import Callable, Sequence
from concurrent.futures.process import BrokenProcessPool
from functools import cache, partial
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from ..machine import pool_process

T = TypeVar("T")

RATE = 16000  # samples a second, which its model is for

_WHOLE = {"won't": "will not", "can't": "can not", "cannot": "can not", "shan't": "shall not", "let's": "let us"}
# Not after every word: "the dog's bone" belongs to the dog.
_IS = frozenset({"it", "he", "she", "that", "this", "there", "here", "what", "where", "who", "how", "when"})
_ENDS = (("n't", " not"), ("'re", " are"), ("'ve", " have"), ("'ll", " will"), ("'m", " am"), ("'d", " would"))


class RecogniserDied(RuntimeError):
    """A process that listened ended, and nobody had ended it."""


def missing() -> str | None:
    """What to install, if there is no recogniser here."""
    try:
        importlib.import_module("pocketsphinx")
    except ImportError as error:
        return (
            f"expected the recogniser pocketsphinx, got: {error}; install it (pip install 'fullstride[tts]'), "
            "or go without word error rates, for all else works"
        )
    return None


def transcribe(samples: NDArray[np.float32], rate: int) -> str:
    """The words heard in a sound, in lower case; "" if there are none. Nothing heard before has a part in it."""
    from ..sound.wav import resample

    samples = np.asarray(samples, np.float32)
    if samples.ndim != 1:
        raise ValueError(f"expected the samples of one channel, (N,), got {samples.shape}; mix the channels first")
    if not np.isfinite(samples).all():
        raise ValueError("expected finite samples, got NaN or infinity among them; look at what made the sound")
    wave = (np.clip(resample(samples, rate, RATE), -1.0, 1.0) * 32767).astype("<i2")
    if not wave.any():  # it would hear "so" in silence
        return ""
    decoder = _decoder()
    # Forgets the sounds before this one: without it 3 of 50 sentences were heard otherwise in another order.
    decoder.reinit_feat()
    decoder.start_utt()
    decoder.process_raw(wave.tobytes(), full_utt=True)
    decoder.end_utt()
    found = decoder.hyp()
    return "" if found is None else str(found.hypstr)


def transcribe_all(
    sounds: Sequence[tuple[NDArray[np.float32], int]], processes: int, between: Callable[[], object] = lambda: None
) -> list[str]:
    """What is heard in each of (samples, rate), by so many processes. `between` is called after each, and may raise."""
    if processes < 1:
        raise ValueError(f"processes: expected a number from 1 on, got {processes}")
    heard: list[str] = []
    if processes == 1 or len(sounds) < 2:
        for number, sound in enumerate(sounds):
            heard.append(_named(number, partial(transcribe, *sound)))
            between()
        return heard
    with pool_process.executor(min(processes, len(sounds))) as pool:
        try:
            futures = [_named(i, partial(pool.submit, transcribe, *sound)) for i, sound in enumerate(sounds)]
            for number, future in enumerate(futures):
                heard.append(_named(number, future.result))
                between()
        except BaseException:
            pool.shutdown(wait=True, cancel_futures=True)
            raise
    return heard


def word_error_rate(references: Sequence[str], heard: Sequence[str]) -> float:
    """Above 1 where more was heard than was said."""
    if len(references) != len(heard):
        raise ValueError(f"expected as many sentences heard as said, got {len(heard)} and {len(references)}")
    said = [words(text) for text in references]
    num_words = sum(map(len, said))
    if not num_words:
        raise ValueError(f"expected words to compare with, got none in {len(references)} sentences")
    return sum(_changes(one, words(other)) for one, other in zip(said, heard, strict=True)) / num_words


def words(text: str) -> list[str]:
    """Without case and punctuation, "don't" as "do not", "it's" as "it is"."""
    plain = text.lower().replace("\u2019", "'")
    found = re.findall(r"[^\W_]+(?:'[^\W_]+)*", plain)
    return [word for one in found for word in _written_out(one).split()]


def _written_out(word: str) -> str:
    if word in _WHOLE:
        return _WHOLE[word]
    if word.endswith("'s") and word[:-2] in _IS:
        return f"{word[:-2]} is"
    for end, instead in _ENDS:
        if word.endswith(end):
            return word.removesuffix(end) + instead
    return word


def _changes(said: list[str], heard: list[str]) -> int:
    """Levenshtein's distance, row by row."""
    row = list(range(len(heard) + 1))
    for i, word in enumerate(said, 1):
        before, row = row, [i]
        for j, other in enumerate(heard, 1):
            row.append(min(before[j] + 1, row[-1] + 1, before[j - 1] + (word != other)))
    return row[-1]


@cache
def _decoder() -> Any:
    """One a process: its model takes longer to load than a sentence to hear."""
    absent = missing()
    if absent is not None:
        raise OSError(absent)
    pocketsphinx: Any = importlib.import_module("pocketsphinx")
    return pocketsphinx.Decoder(samprate=RATE, loglevel="FATAL")  # else it tells of itself on stderr


def _named(number: int, result: Callable[[], T]) -> T:
    try:
        return result()
    except ValueError as error:
        raise ValueError(f"sound {number}: {error}") from None
    except BrokenProcessPool:
        raise RecogniserDied(
            f"sound {number}: expected a process to hear it, but one ended, killed perhaps for want of memory; "
            "try fewer processes"
        ) from None
    except OSError as error:
        if error.errno not in (errno.EAGAIN, errno.ENOMEM):  # else no more processes, by a limit or for want of memory
            raise
        raise RecogniserDied(f"sound {number}: expected a process to hear it, but none starts: {error}") from None
