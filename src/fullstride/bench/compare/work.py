"""What a side of `fullstride compare` trains: a recipe, as its folder says (folder.py writes it).

The process of stock PyTorch loads this file by its path: it must not import anything of Fullstride. What ours has and
torch has not is imported where only ours comes by.
"""

import itertools
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from safetensors.torch import load_file
from torch import Tensor, nn

_IGNORED = -100  # a target that torch's cross-entropy leaves out


class Work:
    """The recipe in plain PyTorch: its model file, the weights it starts from, its optimizer, and its data in order."""

    def __init__(
        self, folder: Path, facts: dict[str, Any], model_file: ModuleType, plain: ModuleType, freezing: ModuleType
    ) -> None:
        self.folder, self.facts, self.model_file = folder, facts, model_file
        self.plain, self.freezing = plain, freezing  # plain_optimizers.py, plain_freezing.py
        self.clip: float | None = facts["clip"]
        self.threads: int | None = facts["threads"]
        self.unit: str = facts["unit"]
        self.num_units: int = facts["num_units"]  # of a step
        self.compiled = False  # by torch.compile

    def build(self) -> nn.Module:
        torch.manual_seed(self.facts["seed"])  # dropout goes on from here
        model: nn.Module = self.model_file.build(**self.facts["arguments"])
        model.load_state_dict(load_file(self.folder / "weights.safetensors"))
        return model

    def gflop(self, model: nn.Module) -> float | None:
        gflop: float | None = self.facts["gflop"]
        return gflop

    def optimizer(self, model: nn.Module, fused: bool | None, compiled: bool = False) -> Any:
        """Of stock PyTorch: what torch.optim lacks is written out in plain_optimizers.py."""
        wish, self.compiled = self.facts["optimizer"], compiled
        if hasattr(torch.optim, wish["class"]):
            optimizer = getattr(torch.optim, wish["class"])(model.parameters(), fused=fused, **wish["arguments"])
        else:
            optimizer = getattr(self.plain, wish["class"])(model.parameters(), compiled=compiled, **wish["arguments"])
        return self.plain.Lookahead(optimizer, **wish["lookahead"]) if wish["lookahead"] else optimizer

    def our_optimizer(self, model: nn.Module) -> Any:
        """For prepare(): torch's where torch has one, else one of fullstride.optim."""
        import fullstride.optim as optim

        wish, states = self.facts["optimizer"], self.facts["config"]["optimizer"]["state_precision"]
        if hasattr(torch.optim, wish["class"]):
            optimizer = getattr(torch.optim, wish["class"])(model.parameters(), **wish["arguments"])
        else:
            optimizer = getattr(optim, wish["class"])(model.parameters(), state_precision=states, **wish["arguments"])
        return optim.Lookahead(optimizer, **wish["lookahead"]) if wish["lookahead"] else optimizer

    def our_options(self) -> dict[str, Any]:
        """Of prepare(), besides precision, clip and threads: those of the trainer."""
        from fullstride.train import assembly

        wish = self._our_config()
        return {
            "state_precision": wish.optimizer.state_precision,
            "activations": wish.activations,
            "overlap_weight_grads": wish.overlap_weight_grads,
            "loss_scaler": assembly.build_scaler(wish, wish.precision),
        }

    def our_freezer(self, model: nn.Module) -> Any:
        """That of the trainer, or None."""
        from fullstride.train import assembly

        return assembly.build_freezer(self._our_config(), model)

    def plain_freezer(self, model: nn.Module) -> Any:
        """Of stock PyTorch, if the recipe freezes: the same rules, written out in plain_freezing.py."""
        wish = self.facts["freeze"]
        if wish is None:
            return None
        return self.freezing.Freezer(model, compiled=self.compiled, **wish)

    def _our_config(self) -> Any:
        from fullstride.recipes import config, strict

        return strict.overlay(config.Config(recipe="", steps=1, micro_batch=1), self.facts["config"])

    def step(self, number: int) -> tuple[list[tuple[Tensor, ...]], float]:
        """The micro-batches of a step and its learning rate."""
        tensors = self._tensors(f"step-{number}")
        lr = tensors.pop("lr").item()
        batches: dict[int, list[Tensor]] = {}
        for micro_batch, place in sorted(tuple(map(int, name.split("."))) for name in tensors):
            batches.setdefault(micro_batch, []).append(tensors[f"{micro_batch}.{place}"])
        return [tuple(batch) for batch in batches.values()], lr

    def valid(self) -> Iterator[tuple[tuple[Tensor, ...], int]]:
        """The held-out data, batch by batch, and of how many targets its loss is the mean."""
        for number in itertools.count():
            if not (self.folder / f"valid-{number}.safetensors").exists():
                return
            tensors = self._tensors(f"valid-{number}")
            batch = tuple(tensors[f"0.{place}"] for place in range(len(tensors)))
            yield batch, int((batch[-1] != _IGNORED).sum())

    def _tensors(self, name: str) -> dict[str, Tensor]:
        # Copies: what is loaded lies in the mapped file, and its pages would be met while the clock runs.
        return {key: tensor.clone() for key, tensor in load_file(self.folder / f"{name}.safetensors").items()}

    def loss(self, model: nn.Module, batch: tuple[Tensor, ...]) -> Tensor:
        loss: Tensor = self.model_file.loss(model, batch)
        return loss
