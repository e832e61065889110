"""The folder of a voice: what `fullstride export RUN --to DIR` writes and `fullstride speak DIR` reads, by itself.

    model.safetensors     the weights, fp32
    config.json           arguments of models/fastspeech2.py, the convention of its mels, sample rate
    front_end.json        text to phonemes; the number of each phoneme
    speakers.json         their names, and how pitch and energy are scaled
    model.py              the model in plain PyTorch, which needs nothing of Fullstride
"""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from torch import Tensor

from ... import durable, speaking
from ...exchange import placing
from ...models import fastspeech2
from ...sound import mel
from ...speaking import FRONT_END, SPEAKERS, Voice
from ...speech.front_end import FrontEnd

CONFIG, WEIGHTS = "config.json", "model.safetensors"


def is_exported(source: Path) -> bool:
    return (source / CONFIG).is_file()


def load_voice(source: Path, weights_of_run: Callable[[], dict[str, Tensor]]) -> Voice:
    """Of a run folder, or of an exported one."""
    if is_exported(source):
        arguments, tensors = _read_config(source / CONFIG), _read_weights(source / WEIGHTS)
    elif (source / "config.yaml").is_file():
        from .. import config_files  # which knows this recipe, and that this file

        config: Any = config_files.read(source / "config.yaml")
        if not config.recipe.startswith("fastspeech2"):
            raise ValueError(f"{source} is a run of recipe {config.recipe}, which does not speak: give a fastspeech2's")
        tensors = weights_of_run()
        arguments = sizes(tensors) | config.model.shape()
    else:
        raise ValueError(f"{source}: expected the folder of a run of recipe fastspeech2, or of an exported voice")
    try:
        model = fastspeech2.build(**arguments)
        model.load_state_dict(tensors)
    except (RuntimeError, TypeError, ValueError, ZeroDivisionError) as error:
        why = str(error).splitlines()[-1].strip()
        raise ValueError(f"{source}: expected weights that fit its config, got others ({why})") from None
    front_end, speakers = FrontEnd.load(source / FRONT_END), speaking.load_speakers(source)
    for name, listed in ((FRONT_END, front_end.symbols), (SPEAKERS, speakers)):
        count = sizes(tensors)["phonemes" if name == FRONT_END else "speakers"]
        if len(listed) != count:
            raise ValueError(f"{source / name}: expected {count} entries, as its weights have, got {len(listed)}")
    return Voice(model.eval(), front_end, speakers)


def sizes(tensors: dict[str, Tensor]) -> dict[str, int]:
    """What only the corpus knew."""
    speakers = tensors.get("speakers.weight")
    return {"phonemes": len(tensors["embedding.weight"]), "speakers": 1 if speakers is None else len(speakers)}


def write_folder(
    tensors: dict[str, Tensor], arguments: dict[str, Any], run: Path, target: Path, replace: bool
) -> list[Path]:
    """Whole or not at all."""
    facts = {
        "model": "fastspeech2", "arguments": arguments, "mel": mel.CONVENTION, "rate": mel.RATE, "hop": mel.HOP,
        "fft": mel.FFT, "bins": mel.BINS, "lowest_hz": mel.LOWEST, "highest_hz": mel.HIGHEST,
    }  # fmt: skip
    copied = {name: (run / name).read_bytes() for name in (FRONT_END, SPEAKERS)}
    with placing.aside(target) as folder:
        inside = folder / "voice"
        inside.mkdir()
        placing.save_tensors(inside / WEIGHTS, {n: t.contiguous() for n, t in tensors.items()}, {"format": "pt"})
        for name, content in copied.items():
            durable.write(inside / name, [content])
        durable.write(inside / "model.py", [Path(fastspeech2.__file__).read_bytes()])
        durable.write(inside / CONFIG, [json.dumps(facts, indent=2).encode()])
        placing.place({inside: target}, replace)
    return [target]


def _read_config(path: Path) -> dict[str, Any]:
    try:
        arguments: dict[str, Any] = json.loads(path.read_bytes())["arguments"]
        return dict(arguments)
    except (ValueError, KeyError, TypeError) as error:
        raise ValueError(f"{path}: expected the config of an exported voice, got a damaged file ({error!r})") from None


def _read_weights(path: Path) -> dict[str, Tensor]:
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    try:
        return load_file(path)
    except (SafetensorError, FileNotFoundError) as error:
        raise ValueError(f"{path}: expected the weights of a voice, got none that are whole ({error})") from None
