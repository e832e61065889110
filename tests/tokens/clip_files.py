"""A small tokenizer of CLIP's kind, in the files that Hugging Face has for it."""

import json

CLIP_FILES = ("vocab.json", "merges.txt", "tokenizer.json", "tokenizer_config.json")
MERGES = ["t h", "th e</w>", "k i", "n g", "n g</w>", "ki ng</w>", "a n", "an d</w>", "ki ng", "1 2</w>"]
TEXTS = [
    "the king", "The KING  and\tthe kingdom", "", "  ", "it's 12 o'clock, isn't it?", "caf\u00e9 cafe\u0301", "!!!?",
    "\u65e5\u672c \U0001f600", "a\nb\u3000c", "king-king_king", "the <|endoftext|> king", "\u0130stanbul \u00df",
]  # fmt: skip


def vocabulary():
    """Each byte by a printable character, the same with the end of a word, what is united, and the two signs."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [chr(256 + i) for i in range(256 - len(printable))]
    letters = sorted([chr(code) for code in printable] + others)
    united = dict.fromkeys(merge.replace(" ", "") for merge in MERGES)
    pieces = [*letters, *(letter + "</w>" for letter in letters), *united, "<|startoftext|>", "<|endoftext|>"]
    return {piece: id for id, piece in enumerate(pieces)}


def write_clip_files(folder, names=CLIP_FILES):
    if "vocab.json" in names:
        (folder / "vocab.json").write_text(json.dumps(vocabulary()))
    if "merges.txt" in names:
        (folder / "merges.txt").write_text("\n".join(["#version: 0.2", *MERGES, ""]))
    if "tokenizer.json" in names:
        (folder / "tokenizer.json").write_text(json.dumps(_fast()))
    if "tokenizer_config.json" in names:
        (folder / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": "CLIPTokenizer"}))


def _fast():
    """The rules as transformers writes them."""
    ids = vocabulary()
    signs = [sign for sign in ids if sign.startswith("<|")]
    plain = {"special": True, "normalized": False, "single_word": False, "lstrip": False, "rstrip": False}
    words = r"'s|'t|'re|'ve|'m|'ll|'d|[\p{L}]+|[\p{N}]|[^\s\p{L}\p{N}]+"
    return {
        "version": "1.0",
        "added_tokens": [{"id": ids[sign], "content": sign, **plain} for sign in signs],
        "normalizer": {
            "type": "Sequence",
            "normalizers": [
                {"type": "NFC"},
                {"type": "Replace", "pattern": {"Regex": r"\s+"}, "content": " "},
                {"type": "Lowercase"},
            ],
        },
        "pre_tokenizer": {
            "type": "Sequence",
            "pretokenizers": [
                {"type": "Split", "pattern": {"Regex": words}, "behavior": "Removed", "invert": True},
                {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True},
            ],
        },
        "post_processor": {
            "type": "RobertaProcessing",
            "sep": ["<|endoftext|>", ids["<|endoftext|>"]], "cls": ["<|startoftext|>", ids["<|startoftext|>"]],
            "trim_offsets": False, "add_prefix_space": False,
        },
        "decoder": {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": True},
        "model": {
            "type": "BPE", "dropout": None, "unk_token": "<|endoftext|>", "continuing_subword_prefix": "",
            "end_of_word_suffix": "</w>", "fuse_unk": False, "byte_fallback": False, "ignore_merges": False,
            "vocab": ids, "merges": [merge.split(" ") for merge in MERGES],
        },
    }  # fmt: skip
