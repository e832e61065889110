"""A trained CLIP with its captions: of a run folder, or of the folder that `fullstride export RUN --to DIR` writes.

That is one of Hugging Face's CLIPModel, so `transformers` reads it, and `--init` takes one of theirs.
"""

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torch import Tensor, nn

from ...data.pictures.pairs import Scaling
from ...exchange import huggingface_clip
from ...models import clip
from ...searching import Trained
from ...tokens import captions

if TYPE_CHECKING:
    from . import ClipConfig

_WORDS = "text.embedding.weight"


def is_exported(source: Path) -> bool:
    return (source / "config.json").is_file()


def load(source: Path, weights_of_run: Callable[[], dict[str, Tensor]]) -> Trained:
    """Of a run folder, or of an exported one."""
    if is_exported(source):
        return _of_folder(source)
    if not (source / "config.yaml").is_file():
        raise ValueError(f"{source}: expected the folder of a run of recipe clip, or of a CLIP of Hugging Face")
    from .. import config_files  # which knows this recipe, and that this file

    config: Any = config_files.read(source / "config.yaml")
    if not config.recipe.startswith("clip"):
        raise ValueError(f"{source} is a run of recipe {config.recipe}, which knows no pictures: give a clip's")
    found, shape = captions.load_from(source), config.model.shape()
    model = clip.build(vocabulary=found.vocabulary, end=found.end, **shape)
    model.load_state_dict(weights_of_run())
    return Trained(model.eval(), found, shape["image"], shape["context"], config.data.scaling())


def _of_folder(folder: Path) -> Trained:
    found = huggingface_clip.read(folder)
    if found.tokenizer is None:
        raise ValueError(f"{folder}: expected a tokenizer with the model (tokenizer.json), got none")
    model = clip.build(**found.shape)
    model.load_state_dict(found.tensors)
    scaling = Scaling(*(huggingface_clip.normalisation_of(folder) or ()))
    return Trained(model.eval(), found.tokenizer, found.shape["image"], found.shape["context"], scaling)


def load_into(model: nn.Module, folder: Path) -> None:
    """The weights to start from."""
    found = huggingface_clip.read(folder)
    tensors, own = found.tensors, model.state_dict()
    if found.tokenizer is not None and found.tokenizer.vocabulary == len(own[_WORDS]):
        tensors[_WORDS] = tensors[_WORDS][: len(own[_WORDS])]  # some models have more, which no caption asks for
    if {name: tensor.shape for name, tensor in tensors.items()} != {name: own[name].shape for name in own}:
        raise ValueError(
            f"init: the weights of {folder} do not fit the model that is asked for; leave --model and --data.tokenizer"
            " to the folder"
        )
    model.load_state_dict(tensors)


def write_folder(
    config: "ClipConfig", tensors: dict[str, Tensor], run: Path, target: Path, replace: bool
) -> list[Path]:
    found = captions.load_from(run)
    shape = config.model.shape() | {"vocabulary": found.vocabulary, "end": found.end}
    return huggingface_clip.write(target, shape, tensors, found, replace, config.data.mean, config.data.std)
