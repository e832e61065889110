"""The files that a llama may start from: those of other programs (exchange/), and the .safetensors of our own export.

That is the state_dict() of a run, its config in the metadata.
"""

import logging
from pathlib import Path
from typing import Any

from .. import exchange, tokens
from ..exchange.saved_model import EMBEDDING, HEAD, SavedModel, check_sizes, checked_shape, sizes, with_head

logger = logging.getLogger(__name__)


def shape_of(path: Path) -> dict[str, Any]:
    """The arguments of models.llama.build, without recompute. No weights are read."""
    if not exchange.is_safetensors(path):
        return exchange.shape_of(path)
    with _open(path) as file:
        return _shape(path, file)


def read(path: Path) -> SavedModel:
    """Known by its content, not by its name."""
    return _read_exported(path) if exchange.is_safetensors(path) else exchange.read(path)


def _read_exported(path: Path) -> SavedModel:
    with _open(path) as file:
        shape = _shape(path, file)
        tensors = {name: file.get_tensor(name).float() for name in file.keys()}  # noqa: SIM118, it is no dictionary
    head = tensors.pop(HEAD, None) if shape["tied"] else None
    check_sizes(path, sizes(shape), {name: tensor.shape for name, tensor in tensors.items()})
    if head is not None and not head.equal(tensors[EMBEDDING]):
        raise ValueError(f"{path}: the model is tied, but its head.weight differs from embedding.weight")
    return SavedModel(shape, with_head(shape, tensors), _tokenizer(path, shape))


def _open(path: Path) -> Any:
    from safetensors import SafetensorError, safe_open

    try:
        return safe_open(path, framework="pt")
    except SafetensorError as error:
        raise ValueError(f"{path}: expected safetensors, got a file cut short or damaged ({error})") from None


def _shape(path: Path, file: Any) -> dict[str, Any]:
    """From the metadata; the vocabulary is the tokenizer's, so only the weights know it."""
    metadata = file.metadata() or {}
    names = set(file.keys())
    if "config" not in metadata:
        what = "expected a file of `fullstride export`, with the config of its run"
        raise ValueError(f"{path}: {what}, got one without; a Hugging Face model is read by its folder")
    if EMBEDDING not in names:
        raise ValueError(f"{path}: expected the weights of a Llama, got a model without {EMBEDDING}")
    shape = _configured(path, metadata["config"])
    return checked_shape(path, shape | {"vocabulary": file.get_slice(EMBEDDING).get_shape()[0]})


def _configured(path: Path, text: str) -> dict[str, Any]:
    from . import config_files  # which knows recipe llama, and that this file

    config = config_files.from_yaml(text, f"{path}, its config")
    model: Any = getattr(config, "model", None)
    if not hasattr(model, "shape"):
        raise ValueError(f"{path}: expected the weights of a Llama, got those of recipe {config.recipe}")
    return dict(model.shape())


def _tokenizer(path: Path, shape: dict[str, Any]) -> Any:
    """The file has none. One that lies beside it is taken if it fits."""
    if not any(path.with_name(name).is_file() for name in tokens.FILES):
        return None
    tokenizer = tokens.load(path.parent)
    if tokenizer.size != shape["vocabulary"]:
        logger.warning("the tokenizer beside %s has %d tokens, the model %d: it is left alone",
                       path, tokenizer.size, shape["vocabulary"])  # fmt: skip
        return None
    return tokenizer
