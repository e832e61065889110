"""transformers.Trainer, made fast for as long as its train() runs.

    trainer = prepare_trainer(Trainer(model, arguments, train_dataset=data))
    trainer.train()

prepare() comes when the Trainer has its optimizer, whoever made it, and before accelerate wraps anything and before the
state of an optimizer is loaded. After train() the model is an ordinary one again, also if train() was interrupted.
"""

from collections.abc import Iterable
from typing import Any

import torch
from torch import nn

from ..ops.grads import grad_norm
from ..preparation import check_options, explain, is_prepared, prepare, restore

try:
    from accelerate.optimizer import AcceleratedOptimizer
    from transformers import Trainer
except ImportError as error:
    raise ImportError(
        f"fullstride.integrations.transformers: expected transformers and accelerate, got: {error};"
        " pip install transformers accelerate"
    ) from None


def prepare_trainer(trainer: Any, **options: Any) -> Any:
    """The same Trainer object, whose train() is fast. The options are those of fullstride.prepare().

    Gradients are clipped at `max_grad_norm` of its arguments, inside of the optimizer's step.
    """
    if not isinstance(trainer, Trainer):
        raise TypeError(f"prepare_trainer: expected a transformers.Trainer, got {type(trainer).__name__}")
    if isinstance(trainer, FastTraining):
        raise ValueError("prepare_trainer: expected a Trainer that is not prepared yet, got one that is; use that one")
    if "clip" in options:
        raise ValueError("prepare_trainer: expected no clip, got one; set max_grad_norm in the TrainingArguments")
    check_options(**options)
    mixed = trainer.accelerator.mixed_precision
    if mixed != "no":
        raise ValueError(
            f"prepare_trainer: expected TrainingArguments without mixed precision, got {mixed}; leave it out there"
            " and pass precision= here"
        )
    if trainer.is_deepspeed_enabled or trainer.is_fsdp_enabled:
        raise ValueError("prepare_trainer: expected a Trainer without DeepSpeed and FSDP, which cut the weights up")
    kind = type(trainer)
    trainer.__class__ = type(kind.__name__, (FastTraining, kind), {"__module__": kind.__module__})
    trainer._prepare_options, trainer._prepared, trainer._is_training = options, None, False
    return trainer


class FastTraining(Trainer):
    """What the class of a prepared Trainer does first: the two methods around which a training is fast."""

    _prepare_options: dict[str, Any]
    _prepared: nn.Module | None
    _is_training: bool

    def create_optimizer(self, *args: Any, **kwargs: Any) -> Any:
        is_own = self.optimizer is None
        super().create_optimizer(*args, **kwargs)
        optimizer = self.optimizer
        while isinstance(optimizer, AcceleratedOptimizer):  # of an earlier train()
            optimizer = optimizer.optimizer
        if is_own:  # one group is for what has no weight decay: a model without biases and norms has none of it
            optimizer.param_groups[:] = [group for group in optimizer.param_groups if group["params"]]
        if self._is_training and self._prepared is not self.model:  # or auto_find_batch_size begins once more
            clip = self.args.max_grad_norm if self.args.max_grad_norm > 0 else None
            _, optimizer = prepare(self.model, optimizer, clip=clip, **self._prepare_options)
            self._prepared = self.model
            self._check_processes()
            self.accelerator.clip_grad_norm_ = ClipInStep(optimizer)
        return self.optimizer

    def _check_processes(self) -> None:
        # DDP's buckets are bf16 as the halves are, and sums over micro-batches are fp32.
        several = self.args.world_size > 1 and self.args.gradient_accumulation_steps > 1
        if several and explain(self.model).precision == "bf16":
            raise ValueError(
                "prepare_trainer: expected no gradient accumulation in several processes in bf16, got"
                f" {self.args.gradient_accumulation_steps} steps in {self.args.world_size} processes;"
                ' pass precision="fp32", or larger batches'
            )

    def train(self, *args: Any, **kwargs: Any) -> Any:
        self._is_training = True
        try:
            return super().train(*args, **kwargs)
        finally:
            model, self._prepared, self._is_training = self._prepared, None, False
            self.accelerator.__dict__.pop("clip_grad_norm_", None)
            if model is not None and is_prepared(model):
                restore(model)


class ClipInStep:
    """accelerator.clip_grad_norm_, which leaves the gradients as they are: our step scales what it reads anyway.

    So no gradient is rounded once more to bf16, and the norm is that of all bits.
    """

    def __init__(self, optimizer: Any) -> None:
        self.optimizer = optimizer

    def __call__(self, parameters: Iterable[nn.Parameter], max_norm: float, norm_type: float = 2) -> torch.Tensor:
        self.optimizer.unscale_()
        self.optimizer.clip = max_norm if max_norm < float("inf") else None  # infinity: only the norm is wanted
        norm, _ = grad_norm([p.grad for p in parameters if p.grad is not None])
        return torch.tensor(norm)
