"""fullstride.advise(): the advice of `fullstride advise` for any model, from Python.

    print(fullstride.advise(model, batch, loss, optimizer=optimizer))

The model, its optimizer and this process are afterwards as they were: what is run is a copy.
"""

import copy
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_flatten, tree_unflatten

from ...data import any_loader
from ...optim.lookahead import Lookahead
from ...recipes.config import OPTIMIZERS, Config, Optimizer, expect
from ...recipes.task import Task
from . import advice, check, watching
from .advice import Advice

Loss = Callable[[Any, Any], Tensor]


def advise(
    model: nn.Module,
    batch: Any,
    loss: Loss | None = None,
    *,
    batch_loss: Callable[[nn.Module, Any], Tensor] | None = None,
    optimizer: torch.optim.Optimizer | None = None,
    precision: str = "auto",
    accumulate: int = 1,
    clip: float | None = None,
    activations: str = "same",
    threads: int | None = None,
    seconds: float = 10.0,
    changes: bool = True,
    devices: bool = True,
    carbon: float | None = None,
) -> Advice:
    """What a training step of this model takes on this CPU, what bounds it, and what to change. print() it.

    batch: one micro-batch, (inputs ..., target), or what the model is called with.
    loss: loss(model(inputs ...), target). Without it the model is called with the batch, and gives a loss or an object
        with one, as those of transformers do.
    batch_loss: instead, batch_loss(model, batch), for everything else. These three are as in fullstride.fit().
    optimizer: torch's AdamW, Adam or SGD, or one of fullstride.optim, of this model; None: AdamW.
    precision, clip, activations, threads: those of fullstride.prepare().
    seconds: of real steps of a copy, to check the prediction by; 0: none.
    changes: predict other settings, too. devices: measure a CUDA or MPS device against the CPU, if there is one.
    carbon: grams a kWh; only where the energy can be measured.
    """
    _check(model, loss, batch_loss, seconds)
    check.expect_carbon(carbon)
    wish = Optimizer() if optimizer is None else _as_fields(optimizer)
    task = _AnyTask(model, batch, loss, batch_loss)
    config = _config(
        task, precision=precision, accumulate=accumulate, clip=clip, activations=activations, threads=threads,
        optimizer=wish,
    )  # fmt: skip

    def run() -> dict[str, Any]:
        return check.of_model(model, optimizer, task.loss, task.batch, config, seconds)

    return advice.advise(config, run if seconds else None, changes=changes, devices=devices, carbon=carbon)


def _config(task: "_AnyTask", **fields: Any) -> Config:
    @dataclass(frozen=True, kw_only=True)
    class AnyConfig(Config):
        """Of a model that only the caller has."""

        def task(self) -> Task:
            return task.resized(self.micro_batch)

    config: Config = AnyConfig(recipe=type(task.given).__name__, steps=1, micro_batch=task.size)
    return config.replace(**fields)


class _AnyTask(Task):
    """One batch, over and over; of other sizes if some are asked for. A batch is the tuple of its tensors here."""

    def __init__(self, model: nn.Module, batch: Any, loss: Loss | None, batch_loss: Any) -> None:
        self.given, self._loss, self._batch_loss = model, loss, batch_loss
        leaves, self._form = tree_flatten(batch)
        self._leaves = [torch.as_tensor(leaf) if isinstance(leaf, np.ndarray) else leaf for leaf in leaves]
        self.batch = tuple(leaf for leaf in self._leaves if isinstance(leaf, Tensor))
        expect(bool(self.batch), "batch", "tensors", "none")
        self.size = any_loader.size(self.batch)
        self.train_data = self.valid_data = _Once(self)
        self._needs_values = self._looks_at_values()
        if self._needs_values:
            watching.count(model, self.loss, self.batch)  # or why it cannot be

    def resized(self, size: int) -> "_AnyTask":
        """With batches of so many samples: those of the batch in turn."""
        if size == self.size:
            return self
        other = copy.copy(self)
        rows = torch.from_numpy(np.arange(size) % self.size)
        grown = (x[rows] if x.dim() and len(x) == self.size else x for x in self.batch)
        other.size, other.batch = size, tuple(grown)
        other.train_data = other.valid_data = _Once(other)
        return other

    def build_model(self) -> nn.Module:
        """A copy; without memory under torch.device("meta"), unless its code looks at values."""
        is_meta = torch.get_default_device().type == "meta" and not self._needs_values
        return self._copy(self._without_memory() if is_meta else {})

    def _copy(self, memo: dict[int, Any]) -> nn.Module:
        """With dropout and the like as in training."""
        return copy.deepcopy(self.given, memo).train()

    def _without_memory(self) -> dict[int, Any]:
        memo: dict[int, Any] = {}
        for tensor in (*self.given.parameters(), *self.given.buffers()):
            twin = torch.empty_like(tensor, device="meta")
            memo[id(tensor)] = nn.Parameter(twin, tensor.requires_grad) if isinstance(tensor, nn.Parameter) else twin
        return memo

    def _looks_at_values(self) -> bool:
        try:
            self.loss(self._copy(self._without_memory()), tuple(tensor.to("meta") for tensor in self.batch))
        except Exception:  # of any kind: it is the code of others; whatever is wrong shows with values, too
            return True
        return False

    def largest_batch(self, size: int) -> tuple[Tensor, ...]:
        return self.batch

    def example_batch(self) -> tuple[Any, int]:
        return self.batch, self.size

    def loss(self, model: nn.Module, batch: tuple[Tensor, ...]) -> Tensor:
        tensors = iter(batch)
        leaves = [next(tensors) if isinstance(leaf, Tensor) else leaf for leaf in self._leaves]
        whole = tree_unflatten(leaves, self._form)
        if self._batch_loss is not None:
            return _scalar(self._batch_loss(model, whole))
        parts = whole if isinstance(whole, tuple | list) else (whole,)
        if self._loss is not None:
            return _scalar(self._loss(model(*parts[:-1]), parts[-1]))
        output = model(**whole) if isinstance(whole, Mapping) else model(*parts)
        return _scalar(output if isinstance(output, Tensor) else getattr(output, "loss", None))


class _Once:
    """The data set that is one batch."""

    def __init__(self, task: _AnyTask) -> None:
        self._task = task

    def __len__(self) -> int:
        return self._task.size

    def batch(self, indices: Any, epochs: Any) -> Any:
        return self._task.batch


def _scalar(value: Any) -> Tensor:
    if not isinstance(value, Tensor) or value.numel() != 1:
        got = f"a tensor of shape {tuple(value.shape)}" if isinstance(value, Tensor) else type(value).__name__
        raise ValueError(f"advise: expected one number as loss, got {got}; give loss= or batch_loss=")
    return value


def _as_fields(optimizer: torch.optim.Optimizer) -> Optimizer:
    """What decides how much a step of it moves."""
    inner = optimizer.optimizer if isinstance(optimizer, Lookahead) else optimizer
    name = type(inner).__name__.lower()
    expect(name in OPTIMIZERS, "optimizer", f"one of {', '.join(OPTIMIZERS)}", type(inner).__name__)
    momentum = {"momentum": inner.param_groups[0]["momentum"]} if name == "sgd" else {}
    states = getattr(inner, "state_precision", "fp32")
    fields: Any = {"name": name, "state_precision": states, "lookahead": isinstance(optimizer, Lookahead), **momentum}
    return Optimizer(**fields)


def _check(model: Any, loss: Any, batch_loss: Any, seconds: float) -> None:
    if not isinstance(model, nn.Module):
        raise TypeError(f"model: expected an nn.Module, got {type(model).__name__}")
    if not any(parameter.requires_grad for parameter in model.parameters()):
        raise ValueError("model: expected parameters to train, got none that requires a gradient")
    if loss is not None and batch_loss is not None:
        raise ValueError("advise: expected loss or batch_loss, got both")
    if "_preparation" in model.__dict__:
        raise ValueError("advise: expected a plain model, got a prepared one; ask before prepare() or after restore()")
    expect(0 <= seconds < float("inf"), "seconds", "0 or more", seconds)
