"""Hugging Face's folders of a CLIP: config.json, model.safetensors or its parts, files for captions and for pictures.

Layers are those of models/clip.py, their names are not. Our scale of the logits is at most 100, that of transformers is
what the file says; so what is written says no more than that.
"""

import functools
import logging
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from . import clip_tokenizer, placing
from .clip_config import checked_shape, config_of, normalisation_of, preprocessor_of, shape_of
from .huggingface_files import CONFIG, PREPROCESSOR, WEIGHTS, read_tensors, write_json, written
from .saved_model import check_sizes, plain, renamed

if TYPE_CHECKING:
    from torch import Tensor

    from ..tokens.captions import Captions

__all__ = ["ClipModel", "normalisation_of", "read", "shape_of", "theirs", "write"]

logger = logging.getLogger(__name__)
_NAMES = {
    "vision.patches.": "vision_model.embeddings.patch_embedding.",
    "vision.class_token": "vision_model.embeddings.class_embedding",
    "vision.positions": "vision_model.embeddings.position_embedding.weight",
    "vision.first_norm.": "vision_model.pre_layrnorm.",  # sic
    "vision.blocks.": "vision_model.encoder.layers.",
    "vision.norm.": "vision_model.post_layernorm.",
    "vision.projection.": "visual_projection.",
    "text.embedding.": "text_model.embeddings.token_embedding.",
    "text.positions": "text_model.embeddings.position_embedding.weight",
    "text.blocks.": "text_model.encoder.layers.",
    "text.norm.": "text_model.final_layer_norm.",
    "text.projection.": "text_projection.",
    "log_scale": "logit_scale",
    ".attention_norm.": ".layer_norm1.", ".mlp_norm.": ".layer_norm2.",
    ".attention.query.": ".self_attn.q_proj.", ".attention.key.": ".self_attn.k_proj.",
    ".attention.value.": ".self_attn.v_proj.", ".attention.output.": ".self_attn.out_proj.",
    ".mlp.0.": ".mlp.fc1.", ".mlp.2.": ".mlp.fc2.",
}  # fmt: skip
theirs = functools.partial(renamed, names=_NAMES)
"""The name that a weight has in transformers' CLIPModel."""
HALF = (0.5, 0.5, 0.5)


@dataclass(frozen=True)
class ClipModel:
    shape: dict[str, Any]
    """Arguments of models.clip.build, without dropout and chunk."""
    tensors: "dict[str, Tensor]"
    """In fp32, by the names of the model's state_dict()."""
    tokenizer: "Captions | None" = None


def read(folder: Path) -> ClipModel:
    from ..tokens import captions

    shape = shape_of(folder)
    sizes = _sizes(shape)
    expected = {theirs(name): name for name in sizes}
    # Old versions wrote the numbers 0, 1, 2, ... of the positions.
    found = read_tensors(folder, lambda name: name.endswith(".position_ids"))
    as_there = {name: sizes[ours] for name, ours in expected.items()}
    check_sizes(folder, as_there, {name: tensor.shape for name, tensor in found.items()}, "CLIP")
    tokenizer = captions.load(folder)
    _check_tokenizer(folder, shape, tokenizer)
    tensors = {ours: found[name] for name, ours in expected.items()}
    if float(tensors["log_scale"]) > _most_log_scale() + 1e-4:
        scale = math.exp(min(float(tensors["log_scale"]), 700.0))
        logger.warning("%s: its logits are scaled by %.6g; here by at most 100, in the same order", folder, scale)
    return ClipModel(shape, tensors, tokenizer)


def write(
    folder: Path, shape: Mapping[str, Any], tensors: "Mapping[str, Tensor]", tokenizer: "Captions | None" = None,
    replace: bool = False, mean: Sequence[float] = HALF, std: Sequence[float] = HALF,
) -> list[Path]:  # fmt: skip
    """Whole or not at all. mean and std: of the pictures' channels, from 0 to 1, by which the model's are made."""
    end = shape.get("end")
    shape = {"activation": "gelu", **shape, "end": shape["vocabulary"] - 1 if end is None else end}
    shape = checked_shape(folder, shape)
    if shape["end"] == 2 != shape["vocabulary"] - 1:
        raise ValueError(f"{folder}: transformers takes an end of captions that is 2 for the highest id; have another")
    sizes = _sizes(shape)
    check_sizes(folder, sizes, {name: tensor.shape for name, tensor in tensors.items()}, "CLIP")
    _check_tokenizer(folder, shape, tokenizer)
    named = {theirs(name): plain(folder, name, tensors[name]) for name in sizes}
    named[theirs("log_scale")] = named[theirs("log_scale")].clamp(max=_most_log_scale())
    with written(folder, replace) as (whole, files):
        write_json(whole / CONFIG, config_of(shape, None if tokenizer is None else tokenizer.bos))
        write_json(whole / PREPROCESSOR, preprocessor_of(shape["image"], mean, std))
        placing.save_tensors(whole / WEIGHTS, named, {"format": "pt"})
        if tokenizer is not None:
            clip_tokenizer.write(whole, tokenizer, shape["context"])
    return files


def _sizes(shape: Mapping[str, Any]) -> dict[str, tuple[int, ...]]:
    """The size of each weight of the model, by name. No memory is taken for them."""
    import torch

    from ..models import clip

    with torch.device("meta"):
        model = clip.build(**shape)
    return {name: tuple(tensor.shape) for name, tensor in model.state_dict().items()}


def _check_tokenizer(folder: Path, shape: Mapping[str, Any], tokenizer: "Captions | None") -> None:
    """The model may have more ids than the tokenizer, as some are padded to a round number."""
    if tokenizer is None:
        return
    if tokenizer.vocabulary > shape["vocabulary"] or tokenizer.end != shape["end"]:
        expected = f"expected a tokenizer of at most {shape['vocabulary']} ids, its end {shape['end']}"
        found = f"one of {tokenizer.vocabulary}, its end {tokenizer.end}"
        raise ValueError(f"{folder}: {expected}, as the model has; got {found}, which is not the model's")


def _most_log_scale() -> float:
    from ..models.clip import MOST_SCALE

    return math.log(MOST_SCALE)
