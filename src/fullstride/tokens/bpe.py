"""Llama's pieces by sentencepiece: trained on a text, or from a tokenizer.model that is there.

Identity normalisation, all spaces kept, the dummy prefix as Llama has it. A new line is the byte <0x0A>, as in Llama:
sentencepiece trains on lines and has no other way to hold one without a symbol that other programs would not know.
"""

import io
import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from .. import durable
from .decoding import Decoder, Decodes
from .model_file import unites_by_scores, without_prefix
from .tokenizer import SPACE, Kind, Piece
from .words import Words

FILE = "tokenizer.model"
FEWEST, MOST = 512, 32000  # pieces
_LONGEST_LINE = 10_000  # characters; sentencepiece leaves out lines that it finds too long
_PROBE = "\n a  b\n"


class BPE(Decodes):
    def __init__(self, model: bytes, name: str = "the tokenizer") -> None:
        """model: the content of a tokenizer.model; `name` stands in errors."""
        processor = _processor(model, name)
        self.size, self.bos, self.eos = processor.vocab_size(), processor.bos_id(), processor.eos_id()
        if self.bos < 0 or self.eos < 0:
            raise ValueError(f"{name}: expected a sentencepiece model with signs for the start and the end of a text")
        self._model, self._processor = model, processor
        self.unites_by_scores = unites_by_scores(model)  # else the pieces are not all there is to it
        self._without_prefix = _processor(without_prefix(model), name)
        prefix = processor.normalize("a") != self._without_prefix.normalize("a")
        self._decoder = Decoder(self.pieces(), self.bos, prefix)
        keeps_all = self._without_prefix.normalize(_PROBE) == _PROBE.replace(" ", SPACE)
        self._words = Words(self.pieces(), self._without_prefix.encode, prefix) if keeps_all else None

    def encode(self, text: str, start: bool = True) -> list[int]:
        if self._words is not None:
            return self._words.encode(text, start)
        ids: list[int] = (self._processor if start else self._without_prefix).encode(text)
        return ids

    def pieces(self) -> list[Piece]:
        p = self._processor
        return [Piece(p.id_to_piece(id).encode(), p.get_score(id), _kind(p, id)) for id in range(self.size)]

    def save(self, folder: Path) -> Path:
        return durable.replace(folder / FILE, self._model)


def read(path: Path) -> BPE:
    return BPE(path.read_bytes(), str(path))


def train(parts: Iterable[str], vocabulary: int, at_most: bool = False) -> BPE:
    """On the parts of a text, each of which fits into memory. The same text gives the same pieces.

    at_most: a text that is not good for so many pieces gets those that it is good for, if they are FEWEST or more.
    """
    if not FEWEST <= vocabulary <= MOST:
        raise ValueError(f"vocabulary: expected {FEWEST} to {MOST} pieces, got {vocabulary}")
    model, failures = io.BytesIO(), list[BaseException]()
    try:
        _sentencepiece().SentencePieceTrainer.Train(
            sentence_iterator=_lines(parts, failures),
            model_writer=model,
            model_type="bpe",
            vocab_size=vocabulary,
            byte_fallback=True,
            normalization_rule_name="identity",
            remove_extra_whitespaces=False,
            add_dummy_prefix=True,
            allow_whitespace_only_pieces=True,
            split_digits=True,
            character_coverage=0.9995,
            max_sentence_length=8 * _LONGEST_LINE,
            num_threads=1,  # two were no faster, and the number is a part of the file
            minloglevel=2,
            **({"hard_vocab_limit": False} if at_most else {}),  # what is given is a part of the file, too
        )
    except RuntimeError as error:
        raise failures[0] if failures else ValueError(_why(str(error), vocabulary)) from None
    trained = BPE(model.getvalue())
    if trained.size < FEWEST:
        raise ValueError(_too_little(trained.size, vocabulary))
    return trained


def _too_little(most: int, vocabulary: int) -> str:
    enough = f"give {most}, or more text" if most >= FEWEST else "give more text, or take characters"
    return f"vocabulary: the text is good for {most} pieces, not {vocabulary}: {enough}"


def _why(error: str, vocabulary: int) -> str:
    """In sentencepiece's words, which come with places of its source, or in ours."""
    most = re.search(r"set it to a value <= (\d+)", error)
    if most:
        return _too_little(int(most[1]), vocabulary)
    fewest = re.search(r"smaller than required_chars\. \d+ vs (\d+)", error)
    if fewest:
        return f"vocabulary: the text has so many characters that {fewest[1]} pieces are needed, not {vocabulary}"
    if "sentences_.empty()" in error:
        return "the text has no line that pieces could be made of: give more text, or take characters"
    return f"sentencepiece could not train a tokenizer: {' '.join(error.split())}"


def _lines(parts: Iterable[str], failures: list[BaseException]) -> Iterator[str]:
    """failures: gets what went wrong in reading, of which sentencepiece would make words of its own."""
    try:
        for part in parts:
            for line in part.split("\n"):
                for start in range(0, len(line), _LONGEST_LINE):
                    yield line[start : start + _LONGEST_LINE]
    except BaseException as error:
        failures.append(error)
        raise


def _kind(processor: Any, id: int) -> Kind:
    if processor.is_unknown(id):
        return "unknown"
    if processor.is_control(id) or processor.is_unused(id):
        return "control"
    return "byte" if processor.is_byte(id) else "normal"


def _processor(model: bytes, name: str) -> Any:
    sentencepiece = _sentencepiece()
    try:
        if not model:
            raise RuntimeError("the file is empty")
        return sentencepiece.SentencePieceProcessor(model_proto=model)
    except RuntimeError as error:
        why = "it is empty" if not model else "it is cut short, or something else"
        raise ValueError(f"{name}: expected a sentencepiece model: {why}; get it anew") from error


def _sentencepiece() -> Any:
    try:
        import sentencepiece
    except ModuleNotFoundError as error:
        raise ValueError(f"{error.name} is not installed; get it with: pip install 'fullstride[text]'") from None
    return sentencepiece
