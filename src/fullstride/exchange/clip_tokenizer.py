"""Tokenizer files of a Hugging Face CLIP folder, from which transformers gives the ids of tokens/captions.py.

One of ours is written as huggingface_tokenizer.py does it for a Llama, with one more id, the end of a caption, and with
the rule for white space; its own file lies beside it. One that came from Hugging Face goes back as it came.
"""

import json
import logging
from pathlib import Path
from typing import TYPE_CHECKING, Any

from . import huggingface_tokenizer
from .huggingface_files import write_json
from .huggingface_tokenizer import CONFIG, FILE, fast, texts
from .saved_model import by_scores

if TYPE_CHECKING:
    from ..tokens import Tokenizer
    from ..tokens.captions import Captions

logger = logging.getLogger(__name__)
_END = "<|endoftext|>"


def write(folder: Path, captions: "Captions", context: int) -> None:
    from ..tokens.clip_files import ClipTokenizer

    own, tokenizer = captions.save(folder), captions.tokenizer
    if isinstance(tokenizer, ClipTokenizer):
        return
    if not by_scores(tokenizer):
        name = own[0].name
        logger.warning("%s: not of Llama's kind, so no %s is made of it, which would give other tokens", name, FILE)
        return
    pieces = texts(folder, tokenizer)
    names = {text for text, _ in pieces}
    end = _END
    while end in names:  # a text may be about it
        end = f"<{end}>"
    content = json.dumps(_with_end(fast(tokenizer, pieces), tokenizer, end), ensure_ascii=False)
    (folder / FILE).write_text(content + "\n", encoding="utf-8")
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",  # CLIPTokenizer has rules of its own
        "bos_token": pieces[tokenizer.bos][0],
        "eos_token": end,
        "pad_token": end,
        "unk_token": huggingface_tokenizer.unknown(pieces),
        "padding_side": "right",
        "model_max_length": context,
        "clean_up_tokenization_spaces": False,
        "split_special_tokens": True,  # "<s>" in a caption is three characters
    }
    write_json(folder / CONFIG, config)


def _with_end(content: dict[str, Any], tokenizer: "Tokenizer", end: str) -> dict[str, Any]:
    from ..tokens.captions import SPACES

    sign = {"special": True, "normalized": False, "single_word": False, "lstrip": False, "rstrip": False}
    content["added_tokens"].append({"id": tokenizer.size, "content": end, **sign})
    content["model"]["vocab"][end] = tokenizer.size
    content["normalizer"]["normalizers"] = [
        {"type": "Replace", "pattern": {"Regex": SPACES}, "content": " "},
        {"type": "Strip", "strip_left": True, "strip_right": True},
        *content["normalizer"]["normalizers"],
    ]
    template = content["post_processor"]
    template["single"].append({"SpecialToken": {"id": end, "type_id": 0}})
    template["pair"].append({"SpecialToken": {"id": end, "type_id": 1}})
    template["special_tokens"][end] = {"id": end, "ids": [tokenizer.size], "tokens": [end]}
    return content
