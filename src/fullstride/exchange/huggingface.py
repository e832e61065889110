"""Hugging Face's folders of a Llama: config.json, model.safetensors or its parts, tokenizer files.

Names differ from ours, rotary pairs do not. transformers 5 has `rope_parameters` where 4 has `rope_theta` and
`rope_scaling`: both are read, and both are written, so either version loads the folder.
"""

import functools
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from . import huggingface_tokenizer, placing
from .huggingface_files import CONFIG, WEIGHTS, read_json, read_tensors, write_json, written
from .saved_model import (
    EMBEDDING,
    HEAD,
    SavedModel,
    check_sizes,
    check_tokenizer,
    checked_shape,
    renamed,
    sizes,
    with_head,
    writable,
)

__all__ = ["CONFIG", "read", "shape_of", "theirs", "write"]

_NAMES = {
    "embedding.": "model.embed_tokens.", "layers.": "model.layers.", "norm.": "model.norm.", "head.": "lm_head.",
    ".attention_norm.": ".input_layernorm.", ".mlp_norm.": ".post_attention_layernorm.",
    ".attention.query.": ".self_attn.q_proj.", ".attention.key.": ".self_attn.k_proj.",
    ".attention.value.": ".self_attn.v_proj.", ".attention.output.": ".self_attn.o_proj.",
    ".mlp.gate.": ".mlp.gate_proj.", ".mlp.up.": ".mlp.up_proj.", ".mlp.down.": ".mlp.down_proj.",
}  # fmt: skip
theirs = functools.partial(renamed, names=_NAMES)
"""The name that a weight has in transformers' LlamaForCausalLM."""
_COUNTS = {
    "vocabulary": "vocab_size", "width": "hidden_size", "layers": "num_hidden_layers", "heads": "num_attention_heads",
    "hidden": "intermediate_size", "context": "max_position_embeddings",
}  # fmt: skip
_PLAIN = {"hidden_act": "silu", "attention_bias": False, "mlp_bias": False, "quantization_config": None}
"""Settings that a model here cannot have otherwise, with what they are if nothing is said."""


def shape_of(folder: Path) -> dict[str, Any]:
    place = folder / CONFIG
    config = read_json(place)
    if config.get("model_type") != "llama":
        found = config.get("model_type")
        raise ValueError(f"{place}: expected model_type llama, got {found!r}; other models are not read")
    for name, plain in _PLAIN.items():
        if config.get(name, plain) != plain:
            found = "a quantised model" if name == "quantization_config" else repr(config[name])
            raise ValueError(f"{place}: expected {name} to be {plain!r}, got {found}; such a model cannot be read")
    for name in _COUNTS.values():
        if name not in config:
            raise ValueError(f"{place}: expected {name} among its fields, got none; the config is incomplete")
    shape = {name: config[other] for name, other in _COUNTS.items()}
    kv_heads = config.get("num_key_value_heads")
    shape["kv_heads"] = shape["heads"] if kv_heads is None else kv_heads
    shape["tied"] = bool(config.get("tie_word_embeddings", False))
    shape["rope_base"], shape["eps"] = _rope_base(place, config), config.get("rms_norm_eps", 1e-6)
    shape = checked_shape(place, shape)
    head_dim = config.get("head_dim")
    if head_dim is not None and head_dim * shape["heads"] != shape["width"]:
        plain = f"hidden_size / num_attention_heads, {shape['width'] // shape['heads']}"
        raise ValueError(f"{place}: expected head_dim to be {plain}, got {head_dim}; such a model cannot be read")
    return shape


def read(folder: Path) -> SavedModel:
    shape = shape_of(folder)
    expected = {theirs(name): name for name in sizes(shape)}
    # Old versions wrote the table of rotary positions, which the config gives.
    found = read_tensors(folder, lambda name: name.endswith("rotary_emb.inv_freq"))
    spare_head = found.pop(theirs(HEAD), None) if shape["tied"] else None
    as_there = {name: sizes(shape)[ours] for name, ours in expected.items()}
    check_sizes(folder, as_there, {name: tensor.shape for name, tensor in found.items()})
    tensors = {expected[name]: tensor for name, tensor in found.items()}
    if spare_head is not None and not spare_head.equal(tensors[EMBEDDING]):
        raise ValueError(f"{folder}: tie_word_embeddings is true, but lm_head.weight differs from the embedding's")
    tokenizer, place = huggingface_tokenizer.read(folder)
    check_tokenizer(folder, shape, tokenizer, place)
    return SavedModel(shape, with_head(shape, tensors), tokenizer)


def write(folder: Path, saved: SavedModel, replace: bool = False) -> list[Path]:
    tensors, tokenizer = writable(folder, saved), saved.tokenizer
    with written(folder, replace) as (whole, files):
        ids = (1, 2) if tokenizer is None else (tokenizer.bos, tokenizer.eos)
        write_json(whole / CONFIG, _config(saved.shape, *ids))
        named = {theirs(name): tensor for name, tensor in tensors.items()}
        placing.save_tensors(whole / WEIGHTS, named, {"format": "pt"})
        if tokenizer is not None:
            huggingface_tokenizer.write(whole, tokenizer, saved.shape["context"])
    return files


def _config(shape: Mapping[str, Any], bos: int, eos: int) -> dict[str, Any]:
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        **{other: shape[name] for name, other in _COUNTS.items()},
        "num_key_value_heads": shape["kv_heads"],
        "head_dim": shape["width"] // shape["heads"],
        "rms_norm_eps": shape["eps"],
        "rope_theta": shape["rope_base"],
        "rope_parameters": {"rope_type": "default", "rope_theta": shape["rope_base"]},
        "tie_word_embeddings": shape["tied"],
        "hidden_act": "silu",
        "attention_bias": False,
        "mlp_bias": False,
        "bos_token_id": bos,
        "eos_token_id": eos,
        "torch_dtype": "float32",
    }


def _rope_base(place: Path, config: Mapping[str, Any]) -> Any:
    """Of either spelling. Angles that are scaled in any way are refused."""
    base = config.get("rope_theta", 10000.0)
    for field in ("rope_scaling", "rope_parameters"):
        value = config.get(field)
        if value is None:
            continue
        if not isinstance(value, dict):
            raise ValueError(f"{place}: expected {field} to be a mapping, got {value!r}")
        kind = value.get("rope_type", value.get("type", "default"))
        if kind != "default" or value.get("partial_rotary_factor", 1.0) != 1.0:
            raise ValueError(f"{place}: expected plain rotary positions, got {field} {kind!r}; it cannot be read")
        base = value.get("rope_theta", base)
    return base
