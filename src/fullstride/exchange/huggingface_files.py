"""The files of a Hugging Face folder, whatever its model is: config.json, model.safetensors or its parts."""

import contextlib
import json
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from . import placing

if TYPE_CHECKING:
    from torch import Tensor

CONFIG, WEIGHTS, INDEX = "config.json", "model.safetensors", "model.safetensors.index.json"
PREPROCESSOR, PROCESSOR = "preprocessor_config.json", "processor_config.json"
_OTHERS = (
    PREPROCESSOR, PROCESSOR, "generation_config.json", "special_tokens_map.json", "added_tokens.json",
    "vocab.json", "merges.txt", "characters.json",
)  # fmt: skip
_READABLE = ("F64", "F32", "F16", "BF16")


def read_json(path: Path) -> dict[str, Any]:
    try:
        content = json.loads(path.read_bytes())
    except ValueError as error:
        raise ValueError(f"{path}: expected JSON, got what is none ({error})") from None
    if not isinstance(content, dict):
        raise ValueError(f"{path}: expected a JSON object, got a {type(content).__name__}")
    return content


def write_json(path: Path, content: Mapping[str, Any]) -> None:
    path.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")


def read_tensors(folder: Path, is_spare: Callable[[str], bool]) -> "dict[str, Tensor]":
    """The weights in fp32, by the names that the files have for them.

    is_spare: of a name; what old versions wrote although the config says as much, which is left out.
    """
    from safetensors import SafetensorError, safe_open

    tensors: dict[str, Tensor] = {}
    for file, names in _parts(folder).items():
        try:
            with safe_open(file, framework="pt") as part:
                for name in part.keys() if names is None else names:
                    if is_spare(name):
                        continue
                    dtype = part.get_slice(name).get_dtype()
                    if dtype not in _READABLE:
                        raise ValueError(f"{file}: expected {name} as one of {', '.join(_READABLE)}, got {dtype}")
                    tensors[name] = part.get_tensor(name).float()
        except SafetensorError as error:
            raise ValueError(f"{file}: expected safetensors, got a file cut short or damaged ({error})") from None
    return tensors


@contextlib.contextmanager
def written(folder: Path, replace: bool) -> Iterator[tuple[Path, list[Path]]]:
    """A folder to write in, which becomes `folder` if all goes well, and a list that then has the files of it."""
    refuse_existing(folder, replace)
    with placing.aside(folder) as partial:
        whole = partial / "folder"
        whole.mkdir()
        files: list[Path] = []
        yield whole, files
        names = sorted(path.name for path in whole.iterdir())
        if folder.is_dir() and not replace:  # it is empty
            folder.rmdir()
        placing.place({whole: folder}, replace)
        files += [folder / name for name in names]


def refuse_existing(folder: Path, replace: bool) -> None:
    if folder.is_dir() and not folder.is_symlink():
        others = sorted(path.name for path in folder.iterdir() if not _is_of_a_model(path))
        if others:
            raise ValueError(f"{folder}: a folder with more than a model, such as {others[0]}; give another name")
        if not any(folder.iterdir()):
            return
    elif folder.exists():
        raise ValueError(f"{folder}: expected the name of a new folder, got a file")
    placing.refuse_existing(folder, replace)


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
    weight_map = read_json(folder / INDEX).get("weight_map")
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


def _is_of_a_model(path: Path) -> bool:
    known = path.name in (CONFIG, INDEX, *_OTHERS)
    return known or path.match("model*.safetensors") or path.match("tokenizer*")
