"""Hugging Face's folders of a Llama: config.json, model.safetensors or its parts, tokenizer files.

Names differ from ours, rotary pairs do not. transformers 5 has `rope_parameters` where 4 has `rope_theta` and
`rope_scaling`: both are read, and both are written, so either version loads the folder.
"""

import functools
import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from . import huggingface_tokenizer, placing
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

if TYPE_CHECKING:
    from torch import Tensor

CONFIG, WEIGHTS, INDEX = "config.json", "model.safetensors", "model.safetensors.index.json"
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
_READABLE = ("F64", "F32", "F16", "BF16")


def shape_of(folder: Path) -> dict[str, Any]:
    place = folder / CONFIG
    config = _json(place)
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
    from safetensors import SafetensorError, safe_open

    shape = shape_of(folder)
    expected = {theirs(name): name for name in sizes(shape)}
    tensors: dict[str, Tensor] = {}
    found: dict[str, tuple[int, ...]] = {}
    spare_head = None
    for file, names in _parts(folder).items():
        try:
            with safe_open(file, framework="pt") as part:
                for name in part.keys() if names is None else names:
                    if name.endswith("rotary_emb.inv_freq"):  # old versions wrote it; the config says as much
                        continue
                    view = part.get_slice(name)
                    if view.get_dtype() not in _READABLE:
                        allowed = ", ".join(_READABLE)
                        raise ValueError(f"{file}: expected {name} as one of {allowed}, got {view.get_dtype()}")
                    if name == theirs(HEAD) and shape["tied"]:
                        spare_head = part.get_tensor(name).float()
                        continue
                    found[name] = tuple(view.get_shape())
                    tensors[expected.get(name, name)] = part.get_tensor(name).float()
        except SafetensorError as error:
            raise ValueError(f"{file}: expected safetensors, got a file cut short or damaged ({error})") from None
    check_sizes(folder, {name: sizes(shape)[ours] for name, ours in expected.items()}, found)
    if spare_head is not None and not spare_head.equal(tensors[EMBEDDING]):
        raise ValueError(f"{folder}: tie_word_embeddings is true, but lm_head.weight differs from the embedding's")
    tokenizer, place = huggingface_tokenizer.read(folder)
    check_tokenizer(folder, shape, tokenizer, place)
    return SavedModel(shape, with_head(shape, tensors), tokenizer)


def write(folder: Path, saved: SavedModel, replace: bool = False) -> list[Path]:
    tensors = writable(folder, saved)
    _refuse_existing(folder, replace)
    with placing.aside(folder) as partial:
        whole = partial / "folder"
        whole.mkdir()
        tokenizer = saved.tokenizer
        ids = (1, 2) if tokenizer is None else (tokenizer.bos, tokenizer.eos)
        _write_json(whole / CONFIG, _config(saved.shape, *ids))
        named = {theirs(name): tensor for name, tensor in tensors.items()}
        placing.save_tensors(whole / WEIGHTS, named, {"format": "pt"})
        if tokenizer is not None:
            huggingface_tokenizer.write(whole, tokenizer, saved.shape["context"])
        written = sorted(path.name for path in whole.iterdir())
        if folder.is_dir() and not replace:  # it is empty
            folder.rmdir()
        placing.place({whole: folder}, replace)
    return [folder / name for name in written]


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


def _parts(folder: Path) -> dict[Path, list[str] | None]:
    """The files of the weights, with the tensors that each has; None: all that it has."""
    if (folder / WEIGHTS).is_file():
        return {folder / WEIGHTS: None}
    if not (folder / INDEX).is_file():
        pickles = sorted(folder.glob("pytorch_model*.bin"))
        if pickles:
            again = "save it with transformers' save_pretrained(), which writes safetensors"
            raise ValueError(f"{pickles[0]}: a pickle, which can run any code when it is read; {again}")
        raise ValueError(f"{folder}: expected {WEIGHTS} or {INDEX} beside {CONFIG}, got neither")
    weight_map = _json(folder / INDEX).get("weight_map")
    if not isinstance(weight_map, dict) or not weight_map:
        raise ValueError(f"{folder / INDEX}: expected a weight_map of tensors to files, got {weight_map!r}")
    parts: dict[Path, list[str] | None] = {}
    for name, file in weight_map.items():
        if not isinstance(file, str) or Path(file).name != file:
            raise ValueError(f"{folder / INDEX}: expected the name of a file in the folder, got {file!r} for {name}")
        if not (folder / file).is_file():
            raise ValueError(f"{folder / file}: {INDEX} names it, but there is no such file; the folder is incomplete")
        names = parts.setdefault(folder / file, [])
        assert names is not None
        names.append(name)
    return parts


def _refuse_existing(folder: Path, replace: bool) -> None:
    if folder.is_dir() and not folder.is_symlink():
        others = sorted(path.name for path in folder.iterdir() if not _is_of_a_model(path))
        if others:
            raise ValueError(f"{folder}: a folder with more than a model, such as {others[0]}; give another name")
        if not any(folder.iterdir()):
            return
    elif folder.exists():
        raise ValueError(f"{folder}: expected the name of a new folder, got a file")
    placing.refuse_existing(folder, replace)


def _is_of_a_model(path: Path) -> bool:
    names = (CONFIG, INDEX, "generation_config.json", "special_tokens_map.json", "characters.json")
    return path.name in names or path.match("model*.safetensors") or path.match("tokenizer*")


def _json(path: Path) -> dict[str, Any]:
    try:
        content = json.loads(path.read_bytes())
    except ValueError as error:
        raise ValueError(f"{path}: expected JSON, got what is none ({error})") from None
    if not isinstance(content, dict):
        raise ValueError(f"{path}: expected a JSON object, got a {type(content).__name__}")
    return content


def _write_json(path: Path, content: Mapping[str, Any]) -> None:
    path.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
