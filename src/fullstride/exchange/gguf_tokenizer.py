"""The vocabulary in the metadata of a GGUF file: pieces with scores, as sentencepiece has them."""

import logging
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ..tokens import Tokenizer

logger = logging.getLogger(__name__)
_TYPES = {"normal": 1, "unknown": 2, "control": 3, "byte": 6}
_KINDS: dict[int, Any] = {1: "normal", 2: "unknown", 3: "control", 4: "normal", 5: "control", 6: "byte"}
"""4 is user-defined; 5 is unused, which no text becomes."""
_NONE = ("no_vocab", "none")  # llama.cpp's words for a model whose tokens come as numbers


def add(writer: Any, tokenizer: "Tokenizer | None") -> None:
    if tokenizer is None:
        writer.add_tokenizer_model(_NONE[0])
        return
    pieces = tokenizer.pieces()
    writer.add_tokenizer_model("llama")
    writer.add_tokenizer_pre("default")
    writer.add_token_list([piece.text for piece in pieces])
    writer.add_token_scores([piece.score for piece in pieces])
    writer.add_token_types([_TYPES[piece.kind] for piece in pieces])
    writer.add_bos_token_id(tokenizer.bos)
    writer.add_eos_token_id(tokenizer.eos)
    for id, piece in enumerate(pieces):
        if piece.kind == "unknown":
            writer.add_unk_token_id(id)
    writer.add_add_bos_token(True)
    writer.add_add_eos_token(False)
    writer.add_add_space_prefix(True)


def read(path: Path, field: Callable[..., Any]) -> "Tokenizer | None":
    """field(name, default) gives a value of the metadata; without a default it has to be there."""
    from .. import tokens

    kind = field("tokenizer.ggml.model", _NONE[0])
    if kind in _NONE:
        return None
    if kind != "llama":
        logger.warning("%s: its tokenizer is of kind %s, not llama, so the model is read without it", path, kind)
        return None
    if not field("tokenizer.ggml.add_space_prefix", True):
        logger.warning("%s: its texts begin without a space; here they begin with one, as Llama's do", path)
    texts, scores = field("tokenizer.ggml.tokens"), field("tokenizer.ggml.scores")
    types = field("tokenizer.ggml.token_type", [1] * len(texts))
    if not len(texts) == len(scores) == len(types):
        found = f"{len(texts)}, {len(scores)} and {len(types)}"
        raise ValueError(f"{path}: expected as many tokens as scores and types, got {found}; the file is damaged")
    pieces = [
        tokens.Piece(text.encode(), score, _KINDS.get(type, "normal"))
        for text, score, type in zip(texts, scores, types, strict=True)
    ]
    return tokens.Pieces(pieces, field("tokenizer.ggml.bos_token_id", 1), field("tokenizer.ggml.eos_token_id", 2))
