"""What `fullstride compare` hands over to its sides, in a temporary folder: a recipe without Fullstride in it.

    recipe.json             the model's plain file and its arguments, optimizer, clipping, freezing, work of a step
    weights.safetensors     that every side starts from: those that a run of the recipe starts from
    step-12.safetensors     its micro-batches as "0.0", "0.1", "1.0", ...: number, place in the batch; and "lr"
    valid-0.safetensors     a batch of the held-out data, "0.0" and so on, if it was asked for

Steps are written shortly before they are taken and removed when every side has taken them.
"""

import itertools
import json
import os
import threading
from dataclasses import fields
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from ... import models
from ...data import loader
from ...recipes.config import Config, Freeze, Optimizer
from ...recipes.strict import as_mapping
from ...train.assembly import build_freezer, build_schedule
from ..step import process as step_process


class Folder:
    def __init__(self, path: Path, config: Config) -> None:
        self.path, self._config = path, config
        self._task = task = config.task()
        self._order = task.order(config)
        self._schedule = build_schedule(config, task.length(config))
        self._first = self._next = 0  # step that is there, step that is not yet
        self.bytes_of_step = 0
        self.micro_batch_matters = task.micro_batch_matters
        stock = task.stock()
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(config.seed)
            model = task.build_model()
            task.load_weights(model)
        # Copies, because tied weights are one tensor under several names, which safetensors refuses.
        weights = {name: tensor.detach().clone().contiguous() for name, tensor in model.state_dict().items()}
        save_file(weights, path / "weights.safetensors")
        flops = task.flops(model)
        num_samples, wish = config.micro_batch * config.accumulate, as_mapping(config)
        facts = {
            "model_file": str(Path(models.__file__).with_name(f"{stock.model_file}.py")),
            "arguments": stock.arguments,
            "seed": config.seed,
            "optimizer": stock_optimizer(config.optimizer),
            "clip": config.clip,
            "freeze": self._freezing(model),
            "threads": config.threads,
            "config": {f.name: wish[f.name] for f in fields(Config)},  # what every recipe has, for our side
            "unit": task.unit,
            "num_units": num_samples * task.units_per_sample,
            "gflop": None if flops is None else num_samples * flops / 1e9,
        }
        (path / "recipe.json").write_text(json.dumps(facts))

    def provide(self, end: int) -> None:
        """Writes the steps before `end` that are not there yet, and rests: the sides need the cores."""
        self.hold(self._first, max(self._next, end))
        step_process.rest(os.getpid(), but=threading.get_native_id())

    def forget(self, end: int) -> None:
        """Removes the steps before `end`."""
        self.hold(max(self._first, end), max(self._next, end))

    def hold(self, first: int, end: int) -> None:
        """Has these steps there, and no others."""
        there, wanted = range(self._first, self._next), range(first, end)
        for step in there:
            if step not in wanted:
                self._file(step).unlink()
        for step in wanted:
            if step not in there:
                save_file(self._step(step), self._file(step))
        self._first, self._next = first, end

    def provide_valid(self, batch: int, most: int | None = None) -> int:
        """Writes the held-out data in batches of so many samples, `most` batches of it or all. Returns how many."""
        count = 0
        for inputs in itertools.islice(loader.batches(self._task.valid_data, batch), most):
            tensors = {f"0.{j}": tensor.contiguous() for j, tensor in enumerate(inputs)}
            save_file(tensors, self.path / f"valid-{count}.safetensors")
            count += 1
        return count

    def _step(self, step: int) -> dict[str, Tensor]:
        tensors = {"lr": torch.tensor(self._config.optimizer.lr * self._schedule(step), dtype=torch.float64)}
        for i in range(self._config.accumulate):
            batch = self._task.train_data.batch(*self._order.micro_batch(step * self._config.accumulate + i))
            tensors |= {f"{i}.{j}": tensor.contiguous() for j, tensor in enumerate(batch)}
        self.bytes_of_step = sum(tensor.nbytes for tensor in tensors.values())
        return tensors

    def _freezing(self, model: nn.Module) -> dict[str, Any] | None:
        """What stock's freezer is told: the recipe's wishes, and the layers, which it would have to write down."""
        freezer = build_freezer(self._config, model)
        if freezer is None:
            return None
        with torch.random.fork_rng(devices=[]):
            self._task.loss(model, self._task.train_data.batch(*self._order.micro_batch(0)))
        freezer.step(0.0)  # the forward pass has shown the layers
        wish = {f.name: getattr(self._config.freeze, f.name) for f in fields(Freeze) if f.name != "enabled"}
        stages = [
            {key: stage[key] for key in ("layers", "parameters", "detach")} for stage in freezer.state_dict()["stages"]
        ]
        return wish | {"threshold": freezer.options.threshold, "stages": stages}

    def _file(self, step: int) -> Path:
        return self.path / f"step-{step}.safetensors"


def stock_optimizer(wish: Optimizer) -> dict[str, Any]:
    """The optimizer as torch.optim has it, or plain_optimizers.py where that has none."""
    arguments: dict[str, Any] = {"lr": wish.lr, "weight_decay": wish.weight_decay}
    name = {"adamw": "AdamW", "adam": "Adam", "lamb": "Lamb", "sgd": "SGD"}[wish.name]
    arguments |= {"momentum": wish.momentum} if wish.name == "sgd" else {"betas": wish.betas, "eps": wish.eps}
    lookahead = {"alpha": wish.lookahead_alpha, "k": wish.lookahead_k} if wish.lookahead else None
    return {"class": name, "arguments": arguments, "lookahead": lookahead}
