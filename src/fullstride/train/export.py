"""The weights of a checkpoint as one .safetensors file, or as other programs have the recipe's model."""

import contextlib
import os
from pathlib import Path

from torch import Tensor

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
    from safetensors import SafetensorError
    from safetensors.torch import save_file

    snapshot = evaluation.find(run, which)
    tensors = _each_alone(snapshot.tensors["model"])
    metadata = {"format": "pt", "step": str(snapshot.step), "config": RunFolder.read(run).config_yaml}
    partial = target.with_name(f".{target.name}.{os.getpid()}.partial")
    try:
        save_file(tensors, partial, metadata)
        partial.chmod(0o666 & ~_umask())  # safetensors makes it readable for its owner alone
        with partial.open("rb") as file:
            os.fsync(file.fileno())
        _put(partial, target, replace)
    except (OSError, SafetensorError) as error:
        raise OSError(f"cannot write {target}: {getattr(error, 'strerror', None) or error}") from None
    finally:
        with contextlib.suppress(OSError):
            partial.unlink(missing_ok=True)
    return snapshot.step, len(tensors), target.stat().st_size


def _each_alone(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """Tied weights as a copy a name: safetensors refuses tensors that share memory."""
    seen: set[int] = set()
    alone = {}
    for name, tensor in tensors.items():
        alone[name] = tensor.clone() if tensor.data_ptr() in seen else tensor.contiguous()
        seen.add(tensor.data_ptr())
    return alone


def _umask() -> int:
    mask = os.umask(0o077)
    os.umask(mask)
    return mask


def _put(partial: Path, target: Path, replace: bool) -> None:
    """Gives the file its name. A link, unlike a renaming, cannot take the place of a file that came meanwhile."""
    if replace:
        partial.replace(target)
        return
    try:
        os.link(partial, target)
    except OSError:  # it is there already, or the file system has no links
        if target.exists():
            raise ValueError(f"{target} is there already: give another name, or --force to replace it") from None
        partial.replace(target)
