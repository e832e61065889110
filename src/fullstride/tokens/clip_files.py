"""The tokenizer of a Hugging Face CLIP, by its `tokenizers` package: tokenizer.json, or vocab.json and merges.txt.

The older two hold no rules, which are CLIP's: NFC, white space as one space, lower case; words, single digits and runs
of signs are cut apart; the bytes of each become the pieces of BPE, of which a last one of a word ends with </w>.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from .. import durable
from .tokenizer import check_text

FILE, VOCABULARY, MERGES = "tokenizer.json", "vocab.json", "merges.txt"
FILES = (FILE, VOCABULARY, MERGES, "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json")
_START, _END, _WORD_END = "<|startoftext|>", "<|endoftext|>", "</w>"
_WORDS = r"<\|startoftext\|>|<\|endoftext\|>|'s|'t|'re|'ve|'m|'ll|'d|\p{L}+|\p{N}|[^\s\p{L}\p{N}]+"


class ClipTokenizer:
    def __init__(self, files: Mapping[str, bytes], name: str = "the tokenizer") -> None:
        """files: their contents, by name; `name` stands in errors."""
        package = _package()
        self._files = dict(files)
        try:
            self._tokenizer = _of_one(package, files[FILE]) if FILE in files else _of_two(package, files)
        except Exception as error:  # the package has none of its own: all that it raises is this
            which = FILE if FILE in files else f"{VOCABULARY} and {MERGES}"
            words = " ".join(str(error).split())
            raise ValueError(f"{name}: expected the {which} of a CLIP, got what is damaged ({words})") from None
        self.size = int(self._tokenizer.get_vocab_size(with_added_tokens=True))
        self.bos, self.end = _signs(self._tokenizer, name)

    def encode(self, text: str) -> list[int]:
        """Without bos and end."""
        check_text(text)
        ids: list[int] = self._tokenizer.encode(text, add_special_tokens=False).ids
        return ids

    def save(self, folder: Path) -> list[Path]:
        """Its files as they came."""
        return [durable.replace(folder / name, content) for name, content in self._files.items()]


def read(folder: Path) -> ClipTokenizer | None:
    """None: there is none."""
    files = {name: (folder / name).read_bytes() for name in FILES if (folder / name).is_file()}
    if FILE not in files and not files.keys() & {VOCABULARY, MERGES}:
        return None
    for name, other in ((VOCABULARY, MERGES), (MERGES, VOCABULARY)):
        if FILE not in files and name not in files:
            raise ValueError(f"{folder}: expected {name} beside {other}, got none; the tokenizer is incomplete")
    return ClipTokenizer(files, str(folder))


def _of_one(package: Any, content: bytes) -> Any:
    tokenizer = package.Tokenizer.from_str(content.decode())
    tokenizer.no_truncation()  # what it was last used with may stand in the file
    tokenizer.no_padding()
    return tokenizer


def _of_two(package: Any, files: Mapping[str, bytes]) -> Any:
    vocabulary = json.loads(files[VOCABULARY])
    lines = files[MERGES].decode().split("\n")
    merges = [tuple(line.split()) for line in lines if line.strip() and not line.startswith("#version")]
    _refuse_additions(vocabulary, files)
    model = package.models.BPE(
        vocab=vocabulary, merges=merges, end_of_word_suffix=_WORD_END, fuse_unk=False, unk_token=_END
    )
    tokenizer = package.Tokenizer(model)
    rules, cuts, pattern = package.normalizers, package.pre_tokenizers, package.Regex
    tokenizer.normalizer = rules.Sequence([rules.NFC(), rules.Replace(pattern(r"\s+"), " "), rules.Lowercase()])
    tokenizer.pre_tokenizer = cuts.Sequence(
        [cuts.Split(pattern(_WORDS), behavior="removed", invert=True), cuts.ByteLevel(add_prefix_space=False)]
    )
    if _START in vocabulary and _END in vocabulary:
        tokenizer.add_special_tokens([_START, _END])
    return tokenizer


def _refuse_additions(vocabulary: Mapping[str, int], files: Mapping[str, bytes]) -> None:
    added = json.loads(files.get("added_tokens.json", b"{}"))
    for name in added:
        if name not in vocabulary:
            again = "save it with transformers' AutoTokenizer, which writes tokenizer.json"
            raise ValueError(f"added_tokens.json has {name!r}, which {VOCABULARY} has not; {again}")


def _signs(tokenizer: Any, name: str) -> tuple[int, int]:
    """Start and end: what the rules of the file put around a text, or CLIP's own names."""
    ids = tokenizer.encode("").ids
    if len(ids) != 2:
        ids = [tokenizer.token_to_id(sign) for sign in (_START, _END)]
    if None in ids:
        raise ValueError(f"{name}: expected a tokenizer with signs for the start and the end of a caption, got none")
    return int(ids[0]), int(ids[1])


def _package() -> Any:
    try:
        import tokenizers
        import tokenizers.models
        import tokenizers.normalizers
        import tokenizers.pre_tokenizers
    except ModuleNotFoundError as error:
        advice = "get it with: pip install 'fullstride[transformers]'"
        raise ValueError(f"{error.name} is not installed; {advice}") from None
    return tokenizers
