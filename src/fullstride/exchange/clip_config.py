"""config.json and preprocessor_config.json of a Hugging Face CLIP folder.

Fields that a file leaves out are as transformers has them. A config from before transformers 4.31 has eos_token_id 2,
whatever the end of a caption is: transformers then looks at the highest id instead, and so does this.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from .huggingface_files import CONFIG, PREPROCESSOR, PROCESSOR, read_json

_BOTH = {"hidden_act": "quick_gelu", "layer_norm_eps": 1e-5}
_TEXT = _BOTH | {
    "vocab_size": 49408, "hidden_size": 512, "intermediate_size": 2048, "num_hidden_layers": 12,
    "num_attention_heads": 8, "max_position_embeddings": 77, "eos_token_id": 49407,
}  # fmt: skip
_VISION = _BOTH | {
    "hidden_size": 768, "intermediate_size": 3072, "num_hidden_layers": 12, "num_attention_heads": 12,
    "num_channels": 3, "image_size": 224, "patch_size": 32,
}  # fmt: skip
_SPACE = 512
"""What transformers takes for a field that a config leaves out."""
_TEXT_COUNTS = {
    "vocabulary": "vocab_size", "context": "max_position_embeddings", "text_width": "hidden_size",
    "text_layers": "num_hidden_layers", "text_heads": "num_attention_heads",
}  # fmt: skip
_VISION_COUNTS = {
    "image": "image_size", "patch": "patch_size", "vision_width": "hidden_size", "vision_layers": "num_hidden_layers",
    "vision_heads": "num_attention_heads",
}  # fmt: skip
_ARGUMENTS = (
    "vocabulary", "image", "patch", "vision_width", "vision_layers", "vision_heads", "context", "text_width",
    "text_layers", "text_heads", "space", "end", "activation",
)  # fmt: skip
_ACTIVATIONS = ("gelu", "quick_gelu")
_MOST = {"vision_layers": 4096, "text_layers": 4096, "image": 1 << 16, "patch": 1 << 16}
_MOST_OF_OTHERS = 1 << 20
"""Far above any model: a damaged number would be as many layers, made before a weight is read."""


def shape_of(folder: Path) -> dict[str, Any]:
    """The arguments of models.clip.build, without dropout and chunk. No weights are read."""
    place = folder / CONFIG
    if not place.is_file():
        raise ValueError(f"{folder}: expected a Hugging Face folder of a CLIP, got none: there is no {CONFIG}")
    config = read_json(place)
    if config.get("model_type") != "clip":
        raise ValueError(f"{place}: expected model_type clip, got {config.get('model_type')!r}; it cannot be read")
    if config.get("quantization_config") is not None:
        raise ValueError(f"{place}: expected weights of floating point, got a quantised model; it cannot be read")
    text = _section(place, config, "text_config", _TEXT)
    vision = _section(place, config, "vision_config", _VISION)
    shape = {name: text[other] for name, other in _TEXT_COUNTS.items()}
    shape |= {name: vision[other] for name, other in _VISION_COUNTS.items()}
    shape |= {"space": config.get("projection_dim", _SPACE), "activation": text["hidden_act"]}
    shape["end"] = text["eos_token_id"]
    if shape["end"] == 2 and type(shape["vocabulary"]) is int:
        shape["end"] = shape["vocabulary"] - 1
    _check_architecture(place, text, vision)
    return checked_shape(place, shape)


def normalisation_of(folder: Path) -> tuple[tuple[float, ...], tuple[float, ...]] | None:
    """Mean and standard deviation by which the model's pictures are made; None: the folder does not say."""
    place = next((folder / name for name in (PREPROCESSOR, PROCESSOR) if (folder / name).is_file()), None)
    if place is None:
        return None
    config = read_json(place)
    config = config.get("image_processor", {}) if place.name == PROCESSOR else config  # as transformers 5 has it
    if not isinstance(config, dict) or "image_mean" not in config or "image_std" not in config:
        return None
    found = []
    for name in ("image_mean", "image_std"):
        values = config[name]
        if not isinstance(values, list) or len(values) != 3 or not all(type(x) in (int, float) for x in values):
            raise ValueError(f"{place}: expected {name} to be three numbers, got {values!r}")
        found.append(tuple(float(x) for x in values))
    if min(found[1]) <= 0:
        raise ValueError(f"{place}: expected image_std to be above 0, got {config['image_std']}")
    return found[0], found[1]


def _section(place: Path, config: Mapping[str, Any], name: str, defaults: Mapping[str, Any]) -> dict[str, Any]:
    """text_config or vision_config, complete. Older files have a text_config_dict too, which then holds alone."""
    section = config.get(f"{name}_dict")
    section = config.get(name) if section is None else section
    if section is None:
        section = {}
    if not isinstance(section, dict):
        raise ValueError(f"{place}: expected {name} to be a mapping, got {section!r}")
    return {**defaults, **section}


def _check_architecture(place: Path, text: Mapping[str, Any], vision: Mapping[str, Any]) -> None:
    differs = f"{place}: the architecture differs: expected"
    for name, section in (("text_config", text), ("vision_config", vision)):
        width, hidden, eps, activation = (
            section[field] for field in ("hidden_size", "intermediate_size", "layer_norm_eps", "hidden_act")
        )
        if type(width) is int and hidden != 4 * width:
            raise ValueError(f"{differs} intermediate_size of {name} to be 4 x hidden_size, {4 * width}, got {hidden}")
        if eps != 1e-5:
            raise ValueError(f"{differs} layer_norm_eps of {name} to be 1e-05, got {eps}")
        if activation not in _ACTIVATIONS:
            raise ValueError(f"{differs} hidden_act of {name} to be gelu or quick_gelu, got {activation!r}")
    if text["hidden_act"] != vision["hidden_act"]:
        both = f"{text['hidden_act']} and {vision['hidden_act']}"
        raise ValueError(f"{differs} hidden_act to be the same for text and vision, got {both}")
    if vision["num_channels"] != 3:
        raise ValueError(f"{differs} num_channels to be 3, got {vision['num_channels']}")


def checked_shape(source: object, shape: Mapping[str, Any]) -> dict[str, Any]:
    """The shape, if a model can have it; else a ValueError that names the file."""
    for name in _ARGUMENTS[:-2]:
        most = _MOST.get(name, _MOST_OF_OTHERS)
        if type(shape[name]) is not int or not 1 <= shape[name] <= most:
            raise ValueError(f"{source}: expected {name} to be from 1 to {most}, got {shape[name]!r}")
    if shape["patch"] > shape["image"]:
        raise ValueError(f"{source}: expected a patch of at most {shape['image']}, the image, got {shape['patch']}")
    for encoder in ("vision", "text"):
        width, heads = shape[f"{encoder}_width"], shape[f"{encoder}_heads"]
        if width % heads:
            raise ValueError(f"{source}: expected {encoder}_width to be a multiple of its heads ({heads}), got {width}")
    end, last = shape["end"], shape["vocabulary"] - 1
    if type(end) is not int or not 0 <= end <= last:
        raise ValueError(f"{source}: expected the end of captions (eos_token_id) to be from 0 to {last}, got {end!r}")
    if shape["activation"] not in _ACTIVATIONS:
        raise ValueError(f"{source}: expected activation to be gelu or quick_gelu, got {shape['activation']!r}")
    return {name: shape[name] for name in _ARGUMENTS}


def config_of(shape: Mapping[str, Any], bos: int | None) -> dict[str, Any]:
    def section(kind: str, counts: Mapping[str, str]) -> dict[str, Any]:
        width = shape[f"{kind}_width"]
        return {
            "model_type": f"clip_{kind}_model",
            **{other: shape[name] for name, other in counts.items()},
            "intermediate_size": 4 * width,
            "projection_dim": shape["space"],
            "hidden_act": shape["activation"],
            "layer_norm_eps": 1e-5,
            "attention_dropout": 0.0,
        }

    signs = {"bos_token_id": bos, "eos_token_id": shape["end"], "pad_token_id": shape["end"]}
    return {
        "architectures": ["CLIPModel"],
        "model_type": "clip",
        "projection_dim": shape["space"],
        "text_config": section("text", _TEXT_COUNTS) | signs,
        "vision_config": section("vision", _VISION_COUNTS) | {"num_channels": 3},
        **signs,
        "torch_dtype": "float32",
    }


def preprocessor_of(size: int, mean: Sequence[float], std: Sequence[float]) -> dict[str, Any]:
    return {
        "image_processor_type": "CLIPImageProcessor",
        "processor_class": "CLIPProcessor",
        "do_convert_rgb": True,
        "do_resize": True,
        "size": {"shortest_edge": size},
        "resample": 3,  # bicubic
        "do_center_crop": True,
        "crop_size": {"height": size, "width": size},
        "do_rescale": True,
        "rescale_factor": 1 / 255,
        "do_normalize": True,
        "image_mean": list(mean),
        "image_std": list(std),
    }
