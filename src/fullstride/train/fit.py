"""fit(): any model and any loader through the trainer that the recipes have.

    fullstride.fit(model, train_loader, torch.nn.CrossEntropyLoss(), epochs=10, valid_loader=valid_loader)
"""

import contextlib
import itertools
import logging
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_map

from ..data import any_loader
from ..data.any_loader import AnyLoader
from ..data.loader import Batches
from ..distributed.world import World, joined
from ..optim import Lookahead, torch_optimizers
from ..preparation import restore
from ..recipes.config import Config, Evaluation, Optimizer, Schedule
from ..recipes.strict import as_mapping, overlay
from ..recipes.task import Task
from ..run_folder.flat import flat
from ..run_folder.metrics import NOT_METRICS
from .checkpoints.store import Store
from .hooks import Hook
from .together import losses_named
from .trainer import Result, Trainer

logger = logging.getLogger(__name__)

Loss = Callable[[Any, Any], Tensor]


@dataclass(frozen=True, kw_only=True)
class FitConfig(Config):
    """A run whose model and data only the caller has."""

    def way_to_resume(self, run: Path) -> str:
        return f"fullstride.fit(..., run={str(run)!r}, resume=True)"


def fit(
    model: nn.Module,
    train_loader: Iterable[Any],
    loss: Loss | None = None,
    *,
    epochs: float | None = None,
    steps: int | None = None,
    valid_loader: Iterable[Any] | None = None,
    optimizer: torch.optim.Optimizer | Mapping[str, Any] | None = None,
    batch_loss: Callable[[nn.Module, Any], Tensor] | None = None,
    metrics: Mapping[str, Callable[[Any, Any], Any]] | None = None,
    higher_is_better: Collection[str] = ("accuracy",),
    run: str | Path | None = None,
    resume: bool = False,
    load_best: bool = False,
    hooks: Sequence[Hook] = (),
    report: bool = True,
    quiet: bool = False,
    **fields: Any,
) -> Result:
    """Trains the model in place; it ends as an ordinary fp32 model with the last weights.

    train_loader: a torch DataLoader or any iterable of batches (inputs ..., target), or of dictionaries for a model
        that computes its loss itself.
    loss: loss(model(inputs ...), target). Without it the model is called with the batch, and gives a loss or an
        object with one, as those of transformers do.
    batch_loss: instead, batch_loss(model, batch), for everything else.
    optimizer: torch.optim's AdamW, Adam or SGD, one of fullstride.optim, or fields such as {"name": "lamb"}.
    metrics: name -> function(output, target) that gives the mean over a batch, computed with valid_loader.
    higher_is_better: the names of those whose best value is the highest.
    run, resume: the folder for everything, and whether to go on with what is there; else to begin.
    load_best: ends with the weights of the best evaluation instead.
    fields: every field of a recipe's config: accumulate=8, precision="fp32", clip=1.0, seed=3,
        schedule={"name": "cosine", "warmup": 0.05}, evaluation={"every": "2 epochs", "patience": 3} ...

    Before the first step a copy of the model and the loss are called with the first batch, as a rule without values, to
    count FLOPs (fullstride.flops).
    """
    _check_metrics({} if metrics is None else metrics, loss, valid_loader)
    _check_higher(higher_is_better, metrics or {})
    given = fields.get("seed", 0)
    seed = given if isinstance(given, int) else 0  # what is none is refused with the config
    task = _LoaderTask(model, train_loader, valid_loader, loss, batch_loss, metrics or {}, higher_is_better, seed)
    config = _config(task, epochs, steps, optimizer, fields)
    for name, wish in {"load_best": load_best, "evaluation.patience": config.evaluation.patience}.items():
        if wish and valid_loader is None:
            raise ValueError(f"{name}: expected valid_loader= with it, which tells the best weights, got none")
    if isinstance(optimizer, torch.optim.Optimizer):
        if config.distributed.shard_optimizer:
            raise ValueError(
                "distributed.shard_optimizer: expected fields of an optimizer with it, which fit() makes, got"
                f' {type(optimizer).__name__}; pass optimizer={{"name": "adamw", "lr": ...}}'
            )
        torch_optimizers.check(optimizer)
        task.optimizer = optimizer
    with joined(config.distributed.backend, config.distributed.timeout) as world, losses_named(world):
        if not world.is_alone:
            any_loader.check_shared(task.source, "train_loader")
            any_loader.check_shared(valid_loader, "valid_loader")
        result = _train(_trainer(world, config, task, run, resume, hooks), model, quiet)
        if load_best:
            _load_best(world, model, result.run)
    if report and world.is_first:
        with _said_if(not quiet):
            _report(result.run)
    return result


def _trainer(
    world: World, config: Config, task: "_LoaderTask", run: str | Path | None, resume: bool, hooks: Sequence[Hook]
) -> Trainer:
    there = world.from_first(run is not None and (Path(run) / "config.yaml").exists())
    if resume and run is None:
        raise ValueError("resume: expected a run folder to go on with, got none; give run=")
    if there and not resume:
        raise ValueError(f"{run} holds a run already: go on with it by resume=True, or give another folder")
    if not there:
        return Trainer(config, run, hooks, task)
    assert run is not None
    trainer = Trainer.resume(run, hooks, base=config, task=task)
    for line in _differences(trainer.config, config) if world.is_first else []:
        logger.warning("%s", line)
    return trainer


def _load_best(world: World, model: nn.Module, run: Path) -> None:
    """The first process has the run."""
    best = Store(run / "checkpoints").best() if world.is_first else None
    if not world.from_first(best is not None):
        return
    if best is not None:
        model.load_state_dict(best.tensors["model"])
    world.tensors_from_first(x for x in model.state_dict().values() if isinstance(x, Tensor))


def _train(trainer: Trainer, model: nn.Module, quiet: bool) -> Result:
    """The model is an ordinary one afterwards, whatever happened."""
    trainer.quiet = quiet
    was_training = model.training
    try:
        return trainer.fit()
    finally:
        if "_preparation" in model.__dict__:
            with _said_if(not quiet):
                restore(model)
        model.train(was_training)


def _config(
    task: "_LoaderTask",
    epochs: float | None,
    steps: int | None,
    optimizer: torch.optim.Optimizer | Mapping[str, Any] | None,
    fields: Mapping[str, Any],
) -> Config:
    """What the trainer is told; an ordinary loop has neither a schedule nor a limit of the norm."""
    if (epochs is None) == (steps is None):
        raise ValueError(f"fit: expected epochs= or steps=, got {'neither' if epochs is None else 'both'}")
    known = any_loader.length(task.source) is not None
    often: int | str = "1 epoch" if known else 500
    base: Config = FitConfig(
        recipe="fit", micro_batch=task.batch_size, steps=1, clip=None,
        schedule=Schedule(name="constant"), evaluation=Evaluation(every=often),
    )  # fmt: skip
    base = base.replace(checkpoints={"every": often}, epochs=epochs, steps=steps)
    if "micro_batch" in fields or "recipe" in fields:
        raise ValueError("fit: the size of a batch is the loader's; give accumulate= for more of them in a step")
    if isinstance(optimizer, torch.optim.Optimizer):
        base = base.replace(optimizer=_as_fields(optimizer))
    elif optimizer is not None:
        base = base.replace(optimizer=optimizer)
    return overlay(base, fields)


def _as_fields(optimizer: torch.optim.Optimizer) -> Optimizer:
    """Of the first group, as the config shows it; each group trains with its own."""
    group = optimizer.param_groups[0]
    inner = optimizer.optimizer if isinstance(optimizer, Lookahead) else optimizer
    values: dict[str, Any] = {key: group[key] for key in ("betas", "eps", "momentum", "weight_decay") if key in group}
    values |= {"name": type(inner).__name__.lower(), "lr": float(group["lr"])}
    if isinstance(optimizer, Lookahead):
        counts = optimizer.counts
        values |= {"lookahead": True, "lookahead_alpha": counts["alpha"], "lookahead_k": counts["k"]}
    return Optimizer(**values, state_precision=getattr(inner, "state_precision", "fp32"))


def _differences(of_run: Config, given: Config) -> list[str]:
    """Fields whose value in the run's own config is another one than in the call."""
    before, now = (dict(flat(as_mapping(config))) for config in (of_run, given))
    changed = [name for name in now if before[name] != now[name] and not (name == "precision" and now[name] == "auto")]
    return [f"{name}: the run goes on with {before[name]}, not with {now[name]} of this call" for name in changed]


@contextlib.contextmanager
def _said_if(loud: bool) -> Iterator[None]:
    """What is said after the trainer's end, as its own lines are."""
    from .progress.terminal import set_up_logging

    undo = set_up_logging(None, quiet=not loud)
    try:
        yield
    finally:
        undo()


def _report(run: Path) -> None:
    from .. import report

    try:
        logger.info("report: %s", report.write(run))
    except ModuleNotFoundError as error:
        logger.info("no report: %s is not installed; get it with: pip install 'fullstride[report]'", error.name)
    except (OSError, ValueError) as error:  # the run is done and must not be lost for it
        logger.warning("no report: %s; try again with: fullstride report %s", error, run)


class _LoaderTask(Task):
    """A model and loaders that are there already."""

    can_cut = False
    uses_all_parameters = False  # nobody knows
    optimizer: torch.optim.Optimizer | None = None

    def __init__(
        self,
        model: nn.Module,
        source: Iterable[Any],
        valid: Iterable[Any] | None,
        loss: Loss | None,
        batch_loss: Callable[[nn.Module, Any], Tensor] | None,
        metrics: Mapping[str, Callable[[Any, Any], Any]],
        higher_is_better: Collection[str],
        seed: int,
    ) -> None:
        _check(model, source, valid, loss, batch_loss)
        self._model, self._loss, self._batch_loss, self._metrics = model, loss, batch_loss, dict(metrics)
        self.example, self.source = any_loader.peek(source, seed)
        self._valid = valid
        self.batch_size = getattr(source, "batch_size", None) or any_loader.size(self.example)
        self.metrics = ("loss", *self._metrics)
        self.higher_is_better = frozenset(higher_is_better)

    @property
    def num_train(self) -> int | None:
        return any_loader.num_samples(self.source, self.batch_size)

    @property
    def num_valid(self) -> int | None:
        return 0 if self._valid is None else any_loader.num_samples(self._valid, self.batch_size)

    def num_samples(self, batch: Any, config: Config) -> int:
        return any_loader.size(batch)

    def micro_batches_of_epoch(self, config: Config) -> Fraction | None:
        count = any_loader.length(self.source)
        return None if count is None else Fraction(count)

    def train_batches(self, config: Config, position: int, saved: dict[str, Any] | None) -> Batches:
        loader = AnyLoader(self.source, config.seed, position * self.share.world, saved)
        logger.info("%s", loader.choice)
        return loader if self.share.world == 1 else any_loader.InTurn(loader, self.share)

    def valid_batches(self, batch: int) -> Iterable[Any]:
        assert self._valid is not None
        any_loader.seed_generators(self._valid, torch.initial_seed())  # which evaluation.py has just set
        return itertools.islice(self._valid, self.share.rank, None, self.share.world)

    def build_model(self) -> nn.Module:
        return self._model

    def build_optimizer(self, model: nn.Module) -> torch.optim.Optimizer | None:
        return self.optimizer

    def example_batch(self) -> tuple[Any, int]:
        return self.example, any_loader.size(self.example)

    def loss(self, model: nn.Module, batch: Any) -> Tensor:
        return self._loss_and_output(model, batch)[0]

    def score(self, model: nn.Module, batch: Any) -> dict[str, float]:
        loss, output, target = self._loss_and_output(model, batch)
        count = any_loader.size(batch)
        values = {name: float(metric(output, target)) for name, metric in self._metrics.items()}
        return {"count": count, "loss": loss.item() * count} | {name: value * count for name, value in values.items()}

    def _loss_and_output(self, model: nn.Module, batch: Any) -> tuple[Tensor, Any, Any]:
        if self._batch_loss is not None:
            return _scalar(self._batch_loss(model, batch), "batch_loss"), None, None
        if self._loss is None:
            batch = _tensors(batch)
            output = model(**batch) if isinstance(batch, Mapping) else model(*_parts(batch))
            found = output if isinstance(output, Tensor) else getattr(output, "loss", None)
            return _scalar(found, "the model, without a loss function,"), output, None
        *inputs, target = _parts(_tensors(batch))
        if not inputs:
            raise ValueError("train_loader: expected batches (inputs ..., target), got one part; give batch_loss=")
        output = model(*inputs)
        return _scalar(self._loss(output, target), "loss"), output, target


def _parts(batch: Any) -> Sequence[Any]:
    if isinstance(batch, Mapping):
        raise ValueError("train_loader: expected batches (inputs ..., target), got a dictionary; give batch_loss=")
    return batch if isinstance(batch, tuple | list) else (batch,)


def _tensors(batch: Any) -> Any:
    """With tensors for numpy's arrays, over the same memory."""
    return tree_map(lambda leaf: torch.as_tensor(leaf) if isinstance(leaf, np.ndarray) else leaf, batch)


def _scalar(value: Any, who: str) -> Tensor:
    if not isinstance(value, Tensor) or value.numel() != 1:
        got = f"a tensor of shape {tuple(value.shape)}" if isinstance(value, Tensor) else type(value).__name__
        raise ValueError(f"fit: expected one number from {who} as a tensor, got {got}")
    return value


def _check_metrics(metrics: Any, loss: Any, valid: Any) -> None:
    if not isinstance(metrics, Mapping):
        raise TypeError(f"metrics: expected a dictionary of names and functions, got {type(metrics).__name__}")
    for name, function in metrics.items():
        if not callable(function):
            raise TypeError(f"{name}: expected a function, got {type(function).__name__}")
        if name in NOT_METRICS or not isinstance(name, str):
            raise ValueError(f"metrics: expected names besides {', '.join(NOT_METRICS)}, got {name!r}; give it another")
    if metrics and loss is None:
        raise ValueError("metrics: expected loss= with them, which says what output and target are, got none")
    if metrics and valid is None:
        raise ValueError("metrics: expected valid_loader= with them, on which they are computed, got none")


def _check_higher(names: Any, metrics: Mapping[str, Any]) -> None:
    if isinstance(names, str) or not isinstance(names, Collection):
        hint = f"; give [{names!r}]" if isinstance(names, str) else ""
        raise TypeError(f"higher_is_better: expected a list of names of metrics, got {names!r}{hint}")
    for name in names:
        if name not in (*metrics, "loss", "accuracy"):  # the default names accuracy, whether it is there or not
            known = ", ".join(("loss", *metrics))
            raise ValueError(f"higher_is_better: expected names of metrics ({known}), got {name!r}")


def _check(model: Any, source: Any, valid: Any, loss: Any, batch_loss: Any) -> None:
    if not isinstance(model, nn.Module):
        raise TypeError(f"model: expected an nn.Module, got {type(model).__name__}")
    if not any(parameter.requires_grad for parameter in model.parameters()):
        raise ValueError("model: expected parameters to train, got none that requires a gradient")
    for name, loader in {"train_loader": source, "valid_loader": valid}.items():
        _check_loader(name, loader)
    if valid is not None and any_loader.begins_once(valid):
        raise TypeError("valid_loader: expected one that can be gone over again, got an iterator; give a list, say")
    if valid is not None and any_loader.length(valid) == 0:
        raise ValueError("valid_loader: expected at least one batch, got none; leave it out to train without")
    if loss is not None and batch_loss is not None:
        raise ValueError("fit: expected loss or batch_loss, got both")
    for name, function in {"loss": loss, "batch_loss": batch_loss}.items():
        _check_function(name, function)
    if "_preparation" in model.__dict__:
        raise ValueError("model: expected one that is not prepared, got a prepared one; restore() it first")


def _check_loader(name: str, loader: Any) -> None:
    if loader is not None and not hasattr(loader, "__iter__"):
        hint = "; give what it returns" if callable(loader) else ""
        hint = "; give DataLoader(it, batch_size)" if hasattr(loader, "__getitem__") else hint
        found = type(loader).__name__
        raise TypeError(f"{name}: expected a DataLoader or an iterable of batches, got {found}{hint}")


def _check_function(name: str, function: Any) -> None:
    if isinstance(function, type):
        found = function.__name__
        raise TypeError(f"{name}: expected a function, got the class {found}; give {found}(), which is one")
    if function is not None and not callable(function):
        raise TypeError(f"{name}: expected a function, got {type(function).__name__}")
