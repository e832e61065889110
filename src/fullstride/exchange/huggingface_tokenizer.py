"""Tokenizer files of a Hugging Face folder.

Written are tokenizer.json, which any fast tokenizer of transformers loads, and the tokenizer's own file, such as
tokenizer.model, from which it is read again exactly. A folder that has tokenizer.json alone, as transformers 5 writes
it, is read if its tokenizer is of Llama's kind: BPE with a space as U+2581 and unknown characters as bytes.

The two give the same tokens, but for a U+2581 in the text itself: a fast tokenizer takes it for a space.
"""

import json
import logging
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .saved_model import by_scores

if TYPE_CHECKING:
    from ..tokens import Piece, Tokenizer

logger = logging.getLogger(__name__)
FILE, CONFIG = "tokenizer.json", "tokenizer_config.json"
_SPACE = "\u2581"


def write(folder: Path, tokenizer: "Tokenizer", context: int) -> None:
    own = tokenizer.save(folder)
    pieces = texts(folder, tokenizer)
    is_fast = by_scores(tokenizer)
    if is_fast:
        content = json.dumps(fast(tokenizer, pieces), ensure_ascii=False)
        (folder / FILE).write_text(content + "\n", encoding="utf-8")
    else:
        logger.warning("%s: not of Llama's kind, so no %s is made of it, which would give other tokens", own.name, FILE)
    config = {
        # With LlamaTokenizer, transformers 5 would rebuild the rules for spaces instead of taking those of the file.
        "tokenizer_class": "PreTrainedTokenizerFast" if is_fast else "LlamaTokenizer",
        "bos_token": pieces[tokenizer.bos][0],
        "eos_token": pieces[tokenizer.eos][0],
        "unk_token": unknown(pieces),
        "model_max_length": context,
        "clean_up_tokenization_spaces": False,
    }
    (folder / CONFIG).write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")


def texts(folder: Path, tokenizer: "Tokenizer") -> "list[tuple[str, Piece]]":
    """Its pieces by id, each with its text; a ValueError if two have the same, which no JSON could hold."""
    pieces: dict[str, Piece] = {}
    for id, piece in enumerate(tokenizer.pieces()):
        text = piece.text.decode(errors="replace")
        if text in pieces or text.encode() != piece.text:
            what = "a text in UTF-8 that no other piece has"
            raise ValueError(f"{folder}: every piece must be {what}; {id}, {piece.text!r}, is not")
        pieces[text] = piece
    return list(pieces.items())


def fast(tokenizer: "Tokenizer", pieces: "list[tuple[str, Piece]]") -> dict[str, Any]:
    """The content of tokenizer.json. A text begins with bos, and with a space that is not its own."""
    bos = pieces[tokenizer.bos][0]
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [
            {
                "id": id, "content": text, "special": True, "normalized": False,
                "single_word": False, "lstrip": False, "rstrip": False,
            }
            for id, (text, piece) in enumerate(pieces)
            if piece.kind in ("unknown", "control")
        ],
        "normalizer": {
            "type": "Sequence",
            "normalizers": [
                {"type": "Prepend", "prepend": _SPACE},
                {"type": "Replace", "pattern": {"String": " "}, "content": _SPACE},
            ],
        },
        "pre_tokenizer": None,
        "post_processor": {
            "type": "TemplateProcessing",
            "single": [{"SpecialToken": {"id": bos, "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}],
            "pair": [
                {"SpecialToken": {"id": bos, "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}},
                {"SpecialToken": {"id": bos, "type_id": 1}}, {"Sequence": {"id": "B", "type_id": 1}},
            ],
            "special_tokens": {bos: {"id": bos, "ids": [tokenizer.bos], "tokens": [bos]}},
        },
        "decoder": {
            "type": "Sequence",
            "decoders": [
                {"type": "Replace", "pattern": {"String": _SPACE}, "content": " "},
                {"type": "ByteFallback"},
                {"type": "Fuse"},
                {"type": "Strip", "content": " ", "start": 1, "stop": 0},
            ],
        },
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": unknown(pieces),
            "continuing_subword_prefix": None,
            "end_of_word_suffix": None,
            "fuse_unk": True,
            "byte_fallback": True,
            "ignore_merges": False,
            "vocab": {text: id for id, (text, _) in enumerate(pieces)},
            "merges": _merges(pieces),
        },
    }  # fmt: skip


def _merges(pieces: "list[tuple[str, Piece]]") -> list[list[str]]:
    """Every two pieces that make a piece, in the order in which they are united: by the score of what they make."""
    normal = {text: id for id, (text, piece) in enumerate(pieces) if piece.kind == "normal"}
    pairs = []
    for text, id in normal.items():
        for cut in range(1, len(text)):
            left, right = text[:cut], text[cut:]
            if left in normal and right in normal:
                pairs.append((-pieces[id][1].score, id, normal[left], normal[right]))
    return [[pieces[left][0], pieces[right][0]] for _, _, left, right in sorted(pairs)]


def unknown(pieces: "list[tuple[str, Piece]]") -> str | None:
    return next((text for text, piece in pieces if piece.kind == "unknown"), None)


def read(folder: Path) -> "tuple[Tokenizer | None, Path]":
    """The tokenizer, and the file it is in. None if there is none that is known here; the log says so."""
    from .. import tokens

    for name in tokens.FILES:
        if (folder / name).is_file():
            return tokens.load(folder / name), folder / name
    if not (folder / FILE).is_file():
        return None, folder
    pieces = _pieces(folder / FILE)
    if pieces is None:
        logger.warning("%s: not of Llama's kind, so the model is read without a tokenizer", folder / FILE)
        return None, folder
    by_text = {piece.text: id for id, piece in enumerate(pieces)}
    names = _special_names(folder)
    return tokens.Pieces(pieces, *(by_text.get(name.encode(), id) for name, id in names)), folder / FILE


def _special_names(folder: Path) -> list[tuple[str, int]]:
    try:
        config = json.loads((folder / CONFIG).read_bytes())
    except (OSError, ValueError):
        config = {}
    found = []
    for field, usual, id in (("bos_token", "<s>", 1), ("eos_token", "</s>", 2)):
        name = config.get(field, usual) if isinstance(config, dict) else usual
        name = name.get("content", usual) if isinstance(name, dict) else name
        found.append((name if isinstance(name, str) else usual, id))
    return found


def _pieces(path: Path) -> "list[Piece] | None":
    from ..tokens import Piece

    try:
        content = json.loads(path.read_bytes())
        model, added = content["model"], {token["id"]: token["content"] for token in content["added_tokens"]}
        rules = json.dumps([content.get("normalizer"), content.get("pre_tokenizer")], ensure_ascii=False)
        if model["type"] != "BPE" or not model.get("byte_fallback") or _SPACE not in rules:
            return None
        texts = {id: text for text, id in model["vocab"].items()} | added
        scores: dict[str, float] = {}
        for rank, merge in enumerate(model["merges"]):
            scores.setdefault("".join(merge.split(" ", 1) if isinstance(merge, str) else merge), -float(rank))
        if sorted(texts) != list(range(len(texts))):
            raise ValueError("ids that leave out some")
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        raise ValueError(f"{path}: expected a tokenizer of transformers, got a damaged one ({error})") from None
    pieces = []
    for id in range(len(texts)):
        text = texts[id]
        is_byte = len(text) == 6 and text.startswith("<0x") and text.endswith(">")
        kind: Any = "unknown" if text == model.get("unk_token") else "control" if id in added else "byte"
        pieces.append(Piece(text.encode(), scores.get(text, 0.0), kind if kind != "byte" or is_byte else "normal"))
    return pieces
