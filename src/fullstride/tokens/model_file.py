"""What a tokenizer.model says of itself and sentencepiece does not tell, or no longer lets change.

The file is a protocol buffer: fields one after the other, each a number and a value. sentencepiece reads it, but has no
call for the kind of its pieces, and the module of protobuf that could be asked is not always installed.
"""

from collections.abc import Iterator

_TRAINER, _KIND = 2, 3  # numbers of the fields
_NORMALIZER, _ADD_DUMMY_PREFIX = 3, 3
_UNIGRAM, _BPE, _CHARACTERS = 1, 2, 4


def unites_by_scores(model: bytes) -> bool:
    """Whether a text is made of pieces by uniting neighbours, the highest score first; characters are never united.

    A unigram model weighs all ways to cut a text instead: its scores are logarithms of probabilities.
    """
    kind = _UNIGRAM  # if nothing is said
    for number, value in _fields(model):
        if number == _TRAINER and isinstance(value, bytes):
            kind = next((found for at, found in _fields(value) if at == _KIND and isinstance(found, int)), kind)
    return kind in (_BPE, _CHARACTERS)


def without_prefix(model: bytes) -> bytes:
    """The same model with no space put before a text.

    Of a message that comes twice, the later values hold and the others stay; override_normalizer_spec(), which did
    this, is not in sentencepiece 0.2.3.
    """
    setting = bytes([_ADD_DUMMY_PREFIX << 3, 0])
    return model + bytes([_NORMALIZER << 3 | 2, len(setting)]) + setting


def _fields(message: bytes) -> Iterator[tuple[int, int | bytes]]:
    """(number, value) of each; of a damaged message those that are whole."""
    place = 0
    try:
        while place < len(message):
            tag, place = _number(message, place)
            wire = tag & 7
            if wire == 0:
                value, place = _number(message, place)
                yield tag >> 3, value
                continue
            size, place = _number(message, place) if wire == 2 else ({1: 8, 5: 4}[wire], place)
            yield tag >> 3, message[place : place + size]
            place += size
    except (IndexError, KeyError):
        return


def _number(message: bytes, place: int) -> tuple[int, int]:
    """Seven bits a byte, the lowest first; the eighth says that more follow. And the place after it."""
    value = shift = 0
    while True:
        byte = message[place]
        place += 1
        value |= (byte & 0x7F) << shift
        shift += 7
        if byte < 0x80:
            return value, place
