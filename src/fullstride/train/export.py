"""The weights of a checkpoint as one .safetensors file, or as other programs have the recipe's model."""

import errno
import os
from pathlib import Path

from torch import Tensor

from ..exchange import placing
from ..recipes import config_files
from ..run_folder.folder import RunFolder
from . import evaluation


def export_as_others(run: Path, target: Path, which: str = "best", replace: bool = False) -> tuple[int, list[Path]]:
    """In a format that the recipe knows and the target's name tells. Returns the step and the files written."""
    config = config_files.from_yaml(RunFolder.read(run).config_yaml, f"{run}/config.yaml")
    snapshot = evaluation.find(run, which)
    return snapshot.step, config.write_model(snapshot.tensors["model"], run, target, replace)


def export(run: Path, target: Path, which: str = "best", replace: bool = False) -> tuple[int, int, int]:
    """Writes the file, whole or not at all. Returns the step, the number of tensors and the size in bytes.

    The tensors are those of the model's state_dict(), the weights exact in fp32 whatever they were trained in. The
    config of the run goes into the file's metadata.
    """
    snapshot = evaluation.find(run, which)
    tensors = _each_alone(snapshot.tensors["model"])
    metadata = {"format": "pt", "step": str(snapshot.step), "config": RunFolder.read(run).config_yaml}
    with placing.aside(target) as folder:
        placing.save_tensors(folder / "model", tensors, metadata)
        if replace and target.is_dir():  # which placing would replace
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
        placing.place({folder / "model": target}, replace)
    return snapshot.step, len(tensors), target.stat().st_size


def _each_alone(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """Tied weights as a copy a name: safetensors refuses tensors that share memory."""
    seen: set[int] = set()
    alone = {}
    for name, tensor in tensors.items():
        alone[name] = tensor.clone() if tensor.data_ptr() in seen else tensor.contiguous()
        seen.add(tensor.data_ptr())
    return alone
