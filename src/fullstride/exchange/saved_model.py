"""What every format holds: the shape of a Llama, its weights, and the tokenizer it was trained with.

Weights carry the names of models/llama.py. Its rotary pairs are (i, i + d/2), as Hugging Face has them; llama2.c and
GGUF pair (2i, 2i + 1), so the rows of their query and key weights stand in another order within each head.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import Tensor

    from ..tokens import Tokenizer

COUNTS = ("vocabulary", "width", "layers", "heads", "kv_heads", "hidden", "context")
_PROBE = "The quick  brown fox,\n\tjumped over 13 lazy dogs. \u00c9t\u00e9 of\ufb01ce \u4f60\u597d\n "
HEAD, EMBEDDING = "head.weight", "embedding.weight"
_MOST = 2**31 - 1  # of what is counted; llama2.c's header holds no more
_MOST_LAYERS = 4096  # far above any model: a damaged number would be as many names, listed before any is read


@dataclass(frozen=True)
class SavedModel:
    shape: dict[str, Any]
    """Arguments of models.llama.build, without recompute."""
    tensors: "dict[str, Tensor]"
    """In fp32, by the names of the model's state_dict(). What was read may lie in the file and be loaded when used."""
    tokenizer: "Tokenizer | None" = None


def checked_shape(source: object, shape: Mapping[str, Any]) -> dict[str, Any]:
    """The shape, if a model can have it; else a ValueError that names the file."""
    for name in COUNTS:
        if type(shape[name]) is not int or shape[name] < 1:
            raise ValueError(f"{source}: expected {name} to be 1 or more, got {shape[name]!r}; the file is damaged")
        most = _MOST_LAYERS if name == "layers" else _MOST
        if shape[name] > most:
            raise ValueError(f"{source}: expected {name} to be at most {most}, got {shape[name]}; the file is damaged")
    width, heads, kv_heads = shape["width"], shape["heads"], shape["kv_heads"]
    if width % (2 * heads):
        raise ValueError(f"{source}: expected a width that is a multiple of 2 x heads ({2 * heads}), got {width}")
    if heads % kv_heads:
        raise ValueError(f"{source}: expected kv_heads to be a divisor of heads ({heads}), got {kv_heads}")
    for name in ("rope_base", "eps"):
        if type(shape[name]) not in (int, float) or not 0 < shape[name] < float("inf"):
            raise ValueError(f"{source}: expected {name} to be above 0, got {shape[name]!r}")
    known = (*COUNTS, "tied", "rope_base", "eps")
    return {name: shape[name] for name in known} | {"rope_base": float(shape["rope_base"]), "eps": float(shape["eps"])}


def sizes(shape: Mapping[str, Any]) -> dict[str, tuple[int, ...]]:
    """The size of each weight of the model, by name. A tied head is not among them."""
    width, hidden = shape["width"], shape["hidden"]
    kv_width = width // shape["heads"] * shape["kv_heads"]
    expected: dict[str, tuple[int, ...]] = {EMBEDDING: (shape["vocabulary"], width)}
    for i in range(shape["layers"]):
        layer = f"layers.{i}."
        expected[layer + "attention_norm.weight"] = (width,)
        expected[layer + "attention.query.weight"] = (width, width)
        expected[layer + "attention.key.weight"] = (kv_width, width)
        expected[layer + "attention.value.weight"] = (kv_width, width)
        expected[layer + "attention.output.weight"] = (width, width)
        expected[layer + "mlp_norm.weight"] = (width,)
        expected[layer + "mlp.gate.weight"] = (hidden, width)
        expected[layer + "mlp.up.weight"] = (hidden, width)
        expected[layer + "mlp.down.weight"] = (width, hidden)
    expected["norm.weight"] = (width,)
    if not shape["tied"]:
        expected[HEAD] = (shape["vocabulary"], width)
    return expected


def renamed(name: str, names: Mapping[str, str]) -> str:
    """A weight's name elsewhere: of `names`, those that begin with a dot stand anywhere in it, others at its start."""
    for ours, other in names.items():
        if name.startswith(ours) or (ours[0] == "." and ours in name):
            name = name.replace(ours, other, 1)
    return name


def check_sizes(
    source: object, expected: Mapping[str, tuple[int, ...]], found: Mapping[str, Iterable[int]], model: str = "Llama"
) -> None:
    """Both by the names that the file has for the tensors, so that a reader can look for them there."""
    for name, size in expected.items():
        if name not in found:
            raise ValueError(f"{source}: expected a tensor {name}, got none; the file is incomplete")
        if tuple(found[name]) != size:
            got = tuple(int(n) for n in found[name])
            raise ValueError(f"{source}: expected {name} of size {size}, got {got}; it does not fit the file's config")
    for name in found:
        if name not in expected:
            raise ValueError(f"{source}: a tensor {name} that no {model} has: it would be lost, so nothing is read")


def check_tokenizer(source: object, shape: Mapping[str, Any], tokenizer: "Tokenizer | None", place: object) -> None:
    if tokenizer is not None and tokenizer.size != shape["vocabulary"]:
        expected = f"expected a tokenizer of {shape['vocabulary']} tokens, as the model has"
        hint = ": put its own there, or the model elsewhere" if isinstance(place, Path) else ""
        raise ValueError(f"{source}: {expected}, got {place} with {tokenizer.size}, which is not the model's{hint}")


def by_scores(tokenizer: "Tokenizer") -> bool:
    """Whether the pieces and their scores are all there is to it, which is all that other formats hold of it.

    A sentencepiece model may be of another kind, unigram say; change a text before it cuts it, as by NFKC; or have
    symbols of its user's, which are never cut. The first it tells; the others show in a text, and in the pieces.
    """
    from .. import tokens

    if not getattr(tokenizer, "unites_by_scores", True):
        return False
    pieces = tokenizer.pieces()
    alone = tokens.Pieces(pieces, tokenizer.bos, tokenizer.eos)
    texts = [piece.text.decode(errors="replace").replace("\u2581", " ") for piece in pieces if piece.kind == "normal"]
    if alone.encode(_PROBE) != tokenizer.encode(_PROBE):
        return False
    return all(alone.encode(text, start=False) == tokenizer.encode(text, start=False) for text in texts)


def check_by_scores(path: Path, tokenizer: "Tokenizer | None") -> None:
    if tokenizer is not None and not by_scores(tokenizer):
        what = "this format holds pieces and their scores, by which the model's tokenizer would give other tokens"
        raise ValueError(f"{path}: {what}; a Hugging Face folder keeps its own file")


def writable(path: Path, saved: SavedModel) -> "dict[str, Tensor]":
    """The weights to write, all there and of one head if tied; else a ValueError."""
    import torch

    expected = sizes(checked_shape(path, saved.shape))
    tensors = dict(saved.tensors)
    if saved.shape["tied"]:
        head = tensors.pop(HEAD, None)
        if head is not None and head is not tensors.get(EMBEDDING) and not torch.equal(head, tensors[EMBEDDING]):
            raise ValueError(f"{path}: the model is tied, but its head.weight differs from embedding.weight")
    check_sizes(path, expected, {name: tensor.shape for name, tensor in tensors.items()})
    check_tokenizer(path, saved.shape, saved.tokenizer, "one")
    return {name: plain(path, name, tensors[name]) for name in expected}


def plain(path: Path, name: str, tensor: "Tensor") -> "Tensor":
    """A weight as files have it: its numbers one after the other."""
    import torch

    if tensor.dtype != torch.float32:
        raise ValueError(f"{path}: expected {name} in float32, got {str(tensor.dtype).removeprefix('torch.')}")
    return tensor.detach().contiguous()


def with_head(shape: Mapping[str, Any], tensors: "dict[str, Tensor]") -> "dict[str, Tensor]":
    """As the model's state_dict() has them: a tied head is there under its own name."""
    return tensors | {HEAD: tensors[EMBEDDING]} if shape["tied"] else tensors


def interleaved(name: str, weight: "Tensor", shape: Mapping[str, Any]) -> "Tensor":
    """Rows of rotary pairs (i, i + d/2) in each head -> pairs (2i, 2i + 1); a weight that is not turned as it is."""
    heads = _rotary_heads(name, shape)
    return weight.unflatten(0, (heads, 2, -1)).transpose(1, 2).reshape(weight.shape) if heads else weight


def halved(name: str, weight: "Tensor", shape: Mapping[str, Any]) -> "Tensor":
    """The way back."""
    heads = _rotary_heads(name, shape)
    return weight.unflatten(0, (heads, -1, 2)).transpose(1, 2).reshape(weight.shape) if heads else weight


def _rotary_heads(name: str, shape: Mapping[str, Any]) -> int:
    """How many heads the rows of a weight belong to, if they are turned; else 0."""
    if name.endswith("attention.query.weight"):
        return int(shape["heads"])
    return int(shape["kv_heads"]) if name.endswith("attention.key.weight") else 0
