"""Small CLIPs with random weights, ours and those of transformers, and what they make of the same inputs."""

import json

import torch

from fullstride.exchange import huggingface_clip
from fullstride.models import clip
from fullstride.tokens.captions import Captions
from fullstride.tokens.characters import Characters

CHARACTERS = Captions(Characters("the red square"))
SHAPE = {
    "vocabulary": CHARACTERS.vocabulary, "image": 16, "patch": 8, "vision_width": 16, "vision_layers": 2,
    "vision_heads": 2, "context": 12, "text_width": 24, "text_layers": 1, "text_heads": 3, "space": 20,
    "end": CHARACTERS.end, "activation": "gelu",
}  # fmt: skip
SHAPES = [
    SHAPE,
    SHAPE | {"activation": "quick_gelu", "text_layers": 3, "vision_layers": 1},
    SHAPE | {"image": 27, "patch": 5, "vision_heads": 1},  # the last column of patches is left out
    SHAPE | {"end": 7, "vocabulary": 40, "space": 5},
]
NAMES = ["gelu", "quick_gelu", "odd", "end-inside"]


def tensors_of(shape, seed=0):
    """Weights far from their initial values, norms included, so that nothing can be left out unseen."""
    torch.manual_seed(seed)
    model = clip.build(**shape)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_(1.0 if parameter.dim() == 1 else 0.0, 0.3)
        model.log_scale.fill_(2.5)
    return model.state_dict()


def inputs_of(shape):
    """Five captions of all lengths, ended and padded by `end`, and three pictures."""
    generator = torch.Generator().manual_seed(1)
    tokens = torch.randint(shape["vocabulary"] - 1, (5, shape["context"]), generator=generator)
    tokens += tokens >= shape["end"]  # none is the end
    for row, length in zip(tokens, (1, 2, 5, 8, shape["context"] - 1), strict=True):
        row[length:] = shape["end"]
    return tokens, torch.randn(3, 3, shape["image"], shape["image"], generator=generator)


def logits_of(shape, tensors, tokens, images):
    model = clip.build(**shape).eval()
    model.load_state_dict(tensors)
    with torch.no_grad():
        return model.scale * clip.encode_images(model, images) @ clip.encode_texts(model, tokens).t()


def their_logits(model, tokens, images):
    with torch.no_grad():
        return model.eval()(input_ids=tokens, pixel_values=images).logits_per_image


def model_of(shape, eos=None):
    """That of transformers."""

    def section(kind):
        width = shape[f"{kind}_width"]
        return {
            "hidden_size": width, "intermediate_size": 4 * width, "num_hidden_layers": shape[f"{kind}_layers"],
            "num_attention_heads": shape[f"{kind}_heads"], "hidden_act": shape["activation"],
        }  # fmt: skip

    text = {"vocab_size": shape["vocabulary"], "max_position_embeddings": shape["context"]}
    text["eos_token_id"] = shape["end"] if eos is None else eos
    vision = {"image_size": shape["image"], "patch_size": shape["patch"]}
    import transformers

    config = transformers.CLIPConfig(
        text_config=section("text") | text, vision_config=section("vision") | vision, projection_dim=shape["space"]
    )  # fmt: skip
    torch.manual_seed(2)
    model = transformers.CLIPModel(config)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_(1.0 if parameter.dim() == 1 else 0.0, 0.3)
        model.logit_scale.fill_(2.5)
    return model


def folder_of(tmp_path, tokenizer=None):
    huggingface_clip.write(tmp_path / "folder", SHAPE, tensors_of(SHAPE), tokenizer)
    return tmp_path / "folder"


def change(path, section=None, **fields):
    """Fields of a JSON file, or of a mapping in it; None: gone."""
    content = json.loads(path.read_text())
    part = content if section is None else content[section]
    for name, value in fields.items():
        part[name] = value
        if value is None:
            del part[name]
    path.write_text(json.dumps(content))
