"""What a training run is told. A recipe returns one of these; the run folder keeps it as YAML.

A recipe's own class adds `model` and `data` to Config, and says in `task()` what they mean. Values are checked in the
classes themselves, so that it holds wherever a config comes from: a recipe, YAML, the command line or Python.
This file imports neither torch nor the parser of the command line.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeVar

from .length import is_every, is_share_or_steps
from .strict import overlay

if TYPE_CHECKING:
    from torch import Tensor

    from .task import Task

C = TypeVar("C", bound="Config")

_MOMENTS = {"betas": (0.9, 0.999), "momentum": 0.9}
OPTIMIZERS: dict[str, dict[str, Any]] = {
    "adamw": {"lr": 1e-4, "eps": 1e-8, "weight_decay": 0.01, **_MOMENTS},
    "adam": {"lr": 1e-4, "eps": 1e-8, "weight_decay": 0.0, **_MOMENTS},
    "lamb": {"lr": 0.01, "eps": 1e-6, "weight_decay": 0.01, **_MOMENTS},
    "sgd": {"lr": 0.05, "eps": 1e-8, "weight_decay": 0.0, **_MOMENTS},
}
"""What each has where nothing else was chosen for it."""
_OWN: Any = None  # as a default: the optimizer's


@dataclass(frozen=True)
class Optimizer:
    """AdamW, Adam, LAMB or SGD, and Lookahead around it. Another name brings its own rate, betas, eps and decay."""

    name: Literal["adamw", "adam", "lamb", "sgd"] = "adamw"
    lr: float = _OWN
    """Learning rate; the schedule multiplies it."""
    betas: tuple[float, float] = _OWN
    """Of adamw, adam and lamb."""
    eps: float = _OWN
    """Of adamw, adam and lamb."""
    momentum: float = _OWN
    """Of sgd."""
    weight_decay: float = _OWN
    """Decoupled in adamw and lamb, L2 in adam and sgd."""
    state_precision: Literal["fp32", "bf16", "8bit"] = "fp32"
    """Of the moments."""
    lookahead: bool = False
    """Slow weights that follow the fast ones."""
    lookahead_alpha: float = 0.5
    """How far the slow weights go each time."""
    lookahead_k: int = 5
    """Steps between two times."""

    def __post_init__(self) -> None:
        for name, value in OPTIMIZERS.get(self.name, OPTIMIZERS["adamw"]).items():
            if getattr(self, name) is None:
                object.__setattr__(self, name, value)
        expect(0 < self.lr < math.inf, "optimizer.lr", "a number above 0", self.lr)
        for i, beta in enumerate(self.betas):
            expect(0 <= beta < 1, f"optimizer.betas[{i}]", "from 0 to below 1", beta)
        expect(0 < self.eps < math.inf, "optimizer.eps", "a number above 0", self.eps)
        expect(0 <= self.momentum < 1, "optimizer.momentum", "from 0 to below 1", self.momentum)
        expect(0 <= self.weight_decay < math.inf, "optimizer.weight_decay", "a number, 0 or more", self.weight_decay)
        expect(0 < self.lookahead_alpha <= 1, "optimizer.lookahead_alpha", "above 0, at most 1", self.lookahead_alpha)
        expect(self.lookahead_k >= 1, "optimizer.lookahead_k", "1 or more", self.lookahead_k)

    def chosen(self) -> dict[str, Any]:
        """The name, and what was chosen for it."""
        return {"name": self.name} | {field: getattr(self, field) for field in OPTIMIZERS[self.name]}

    def implied(self, changes: Mapping[str, Any]) -> dict[str, Any]:
        """What was chosen for one optimizer says nothing of another."""
        name = changes.get("name", self.name)
        return {} if name == self.name else dict(OPTIMIZERS.get(name, {}))


@dataclass(frozen=True)
class Schedule:
    """How the learning rate changes with the step."""

    name: Literal["constant", "cosine", "step", "stable"] = "cosine"
    """step: stepwise exponential decay; stable: constant, then a fall at the end."""
    warmup: int | float = 0
    """Steps in which it rises linearly; below 1 a share of all steps."""
    floor: float = 1e-6
    """The learning rate that cosine and stable end at."""
    over: int | float | None = None
    """Of cosine: the step, or share of all steps, at which it has come to the floor, where it stays; None: the last."""
    every: int | float = 50_000
    """Of step: how many steps from one cut to the next; below 1 a share of all."""
    factor: float = 0.5
    """Of step: what a cut leaves."""
    decay: int | float = 0.2
    """Of stable: the steps at the end in which it falls; below 1 a share of all."""

    def __post_init__(self) -> None:
        for name in ("warmup", "over", "every", "decay"):
            value = getattr(self, name)
            is_clear = not isinstance(value, float) or value != 1  # all of the run, or one step?
            expect(is_clear, f"schedule.{name}", "a share below 1, or a whole number of steps", "1.0; 1 is one step")
            if isinstance(value, float) and value >= 1 and value.is_integer():
                object.__setattr__(self, name, int(value))  # 4000.0 and 4e3
            wanted = value is None or is_share_or_steps(value)
            expect(wanted, f"schedule.{name}", "a share below 1, or a whole number of steps", value)
            expect(bool(value) or name in ("warmup", "over"), f"schedule.{name}", "more than 0", value)
        expect(self.over != 0, "schedule.over", "more than 0, or None", self.over)
        expect(0 <= self.floor < math.inf, "schedule.floor", "a number, 0 or more", self.floor)
        expect(0 < self.factor <= 1, "schedule.factor", "above 0, at most 1", self.factor)


@dataclass(frozen=True)
class Freeze:
    """Stops training layers that have learnt what they can, from the front of the model: backward ends behind them."""

    enabled: bool = False
    criterion: Literal["slowed", "below", "settled"] = "slowed"
    """slowed: weights move little by now; below: gradients are small by now; settled: gradients no longer change."""
    threshold: float | None = None
    """A share: of the farthest move (slowed), of the largest norm (below), of change (settled); None: what is good."""
    patience: int = 30
    """Steps that movement is measured over, or that a gradient must be small or settled for."""
    smoothing: float = 0.95
    """Of gradient norms and of the loss: the share of the past in the running mean."""
    min_active: int = 2
    """So many layers at the end never freeze."""
    thaw_every: int | None = None
    """Thaw all each time so many steps are done; None: never."""
    thaw_on_rise: float | None = None
    """Thaw all when the smoothed loss rises by this share above its lowest since a layer froze; None: never."""

    def __post_init__(self) -> None:
        share = self.threshold
        expect(share is None or 0 < share < math.inf, "freeze.threshold", "a number above 0, or None", share)
        expect(self.patience >= 1, "freeze.patience", "1 or more steps", self.patience)
        expect(0 <= self.smoothing < 1, "freeze.smoothing", "from 0 to below 1", self.smoothing)
        expect(self.min_active >= 1, "freeze.min_active", "1 or more layers", self.min_active)
        every, rise = self.thaw_every, self.thaw_on_rise
        expect(every is None or every >= 1, "freeze.thaw_every", "1 or more steps, or None", every)
        expect(rise is None or 0 < rise < math.inf, "freeze.thaw_on_rise", "a share above 0, or None", rise)


@dataclass(frozen=True)
class LossScale:
    """Of fp16: gradients are multiplied by it, so that small ones do not become zero."""

    start: float = 1024.0
    growth: float = 2.0
    """Its factor after `interval` good steps in a row."""
    interval: int = 2000
    backoff: float = 0.5
    """Its factor after a gradient that is not finite."""

    def __post_init__(self) -> None:
        expect(1 <= self.start <= 2.0**32, "loss_scale.start", "from 1 to 2**32", self.start)
        expect(1 <= self.growth < math.inf, "loss_scale.growth", "1 or more", self.growth)
        expect(self.interval >= 1, "loss_scale.interval", "1 or more steps", self.interval)
        expect(0 < self.backoff < 1, "loss_scale.backoff", "above 0, below 1", self.backoff)


@dataclass(frozen=True)
class Evaluation:
    """Validation on held-out data; the best weights are kept."""

    every: int | str = 500
    """Steps between two, or "5 epochs"; 0: only at the end."""
    batch: int = 256
    """Samples in one forward pass."""
    metric: str = "loss"
    """What "best" is judged by."""
    patience: int = 0
    """Early stopping after so many evaluations without a new best; 0: never."""

    def __post_init__(self) -> None:
        expect(is_every(self.every, 0), "evaluation.every", '0 or more steps, or text like "5 epochs"', self.every)
        expect(self.batch >= 1, "evaluation.batch", "1 or more samples", self.batch)
        expect(self.patience >= 0, "evaluation.patience", "0 or more", self.patience)


@dataclass(frozen=True)
class Checkpoints:
    """What a killed run goes on from."""

    every: int | str = 500
    """Steps between two, or "5 epochs"; 0: only at the end and when told to stop."""
    keep: int = 2
    """So many of the newest stay, and the best."""
    background: bool = True
    """Write while training goes on; needs the memory of one more copy."""

    def __post_init__(self) -> None:
        expect(is_every(self.every, 0), "checkpoints.every", '0 or more steps, or text like "5 epochs"', self.every)
        expect(self.keep >= 1, "checkpoints.keep", "1 or more", self.keep)


@dataclass(frozen=True)
class Logging:
    every: int | str = 10
    """Steps between two rows of metrics, or "5 epochs"."""
    grad_norms: bool = True
    """The gradient's norm in each layer, in every row."""
    tensorboard: bool = False
    """Event files for TensorBoard as well."""

    def __post_init__(self) -> None:
        expect(is_every(self.every, 1), "logging.every", '1 or more steps, or text like "5 epochs"', self.every)


@dataclass(frozen=True)
class Distributed:
    """Of a run in several processes. How many there are is the launcher's to say: any number trains the same."""

    backend: Literal["gloo", "mpi", "ccl"] = "gloo"
    """Of torch.distributed; mpi and ccl where they are installed."""
    gradients: Literal["auto", "fp32", "bf16"] = "auto"
    """What is sent: auto is bf16 in bf16 training where that was measured to be faster between the processes."""
    shard_optimizer: bool = False
    """Each process keeps the optimizer's states of some parameters alone (ZeRO-1)."""
    local_steps: int = 0
    """Steps that islands take by themselves before their weights are averaged; 0: gradients are, in every step."""
    islands: int | None = None
    """How many there are; None: one a machine, or, on one machine, one a process."""
    outer_rate: float = 1.0
    """Of the step with the mean of all islands."""
    outer_momentum: float = 0.5
    """Nesterov's, of the same step."""
    timeout: float = 1800.0
    """Seconds that a process waits for another one that does not answer."""

    def __post_init__(self) -> None:
        expect(self.local_steps >= 0, "distributed.local_steps", "0 or more", self.local_steps)
        expect(self.islands is None or self.islands >= 2, "distributed.islands", "2 or more, or None", self.islands)
        is_used = self.islands is None or self.local_steps > 0
        expect(is_used, "distributed.islands", "distributed.local_steps with it", self.islands)
        expect(0 < self.outer_rate < math.inf, "distributed.outer_rate", "above 0", self.outer_rate)
        expect(0 <= self.outer_momentum < 1, "distributed.outer_momentum", "from 0 to below 1", self.outer_momentum)
        expect(0 < self.timeout < math.inf, "distributed.timeout", "seconds above 0", self.timeout)
        both = self.shard_optimizer and self.local_steps > 0
        expect(not both, "distributed.shard_optimizer", "no local_steps with it: islands have their own states", both)


@dataclass(frozen=True, kw_only=True)
class Config:
    """What every recipe has. Fields without a default are the recipe's to choose."""

    recipe: str
    """The recipe this came from; it says which fields there are."""
    seed: int = 0
    """Of the initial weights, the order of the data, augmentation and dropout."""
    steps: int | None = None
    """Optimizer steps; None: as many as the epochs have."""
    epochs: int | float | None = None
    """How often the run goes through the data, instead of steps."""
    micro_batch: int
    """Samples in one forward and backward pass."""
    accumulate: int = 1
    """Micro-batches in a step."""
    clip: float | None = 1.0
    """The largest global norm of the gradient; None: no limit."""
    precision: Literal["auto", "fp32", "bf16", "fp16"] = "auto"
    """auto: bf16 where it was measured to be faster on this machine, else fp32."""
    activations: Literal["same", "bf16"] = "same"
    """What forward keeps for backward: as it was computed, or in bf16, which halves it in fp32."""
    threads: int | None = None
    """None: the cores this process may use."""
    overlap_weight_grads: bool = False
    """Weight gradients beside input gradients, where that was measured to pay."""
    max_nonfinite: int = 10
    """Steps in a row that may be skipped for a gradient that is not finite."""
    optimizer: Optimizer = field(default_factory=Optimizer)
    schedule: Schedule = field(default_factory=Schedule)
    loss_scale: LossScale = field(default_factory=LossScale)
    freeze: Freeze = field(default_factory=Freeze)
    evaluation: Evaluation = field(default_factory=Evaluation)
    checkpoints: Checkpoints = field(default_factory=Checkpoints)
    logging: Logging = field(default_factory=Logging)
    distributed: Distributed = field(default_factory=Distributed)

    def __post_init__(self) -> None:
        expect(0 <= self.seed < 2**63, "seed", "0 or more, below 2**63", self.seed)
        expect(self.steps is None or self.steps >= 1, "steps", "1 or more", self.steps)
        expect(self.epochs is None or 0 < self.epochs < math.inf, "epochs", "more than 0", self.epochs)
        both = "both" if self.steps is not None else "neither"
        expect((self.steps is None) != (self.epochs is None), "steps", "a number of steps, or of epochs", both)
        expect(self.micro_batch >= 1, "micro_batch", "1 or more samples", self.micro_batch)
        expect(self.accumulate >= 1, "accumulate", "1 or more", self.accumulate)
        expect(self.clip is None or 0 < self.clip < math.inf, "clip", "a norm above 0, or None", self.clip)
        expect(self.threads is None or self.threads >= 1, "threads", "1 or more, or None", self.threads)
        expect(self.max_nonfinite >= 1, "max_nonfinite", "1 or more", self.max_nonfinite)
        rounds = self.precision == "fp16" and self.distributed.gradients == "bf16"
        expect(not rounds, "distributed.gradients", "fp32 or auto in fp16 training, whose loss scale changes what"
               " rounding has left for the next step", "bf16")  # fmt: skip
        shard, local = self.distributed.shard_optimizer, self.distributed.local_steps > 0
        expect(not (shard and self.freeze.enabled), "freeze.enabled", "no shard_optimizer with it: a process does not"
               " have all bits of all weights, by which layers freeze", self.freeze.enabled)  # fmt: skip
        expect(not (local and self.optimizer.lookahead), "optimizer.lookahead", "no local_steps with it: slow weights"
               " of each island would undo what all have in common", self.optimizer.lookahead)  # fmt: skip
        expect(not (local and self.freeze.enabled), "freeze.enabled", "no local_steps with it: each island would freeze"
               " layers of its own", self.freeze.enabled)  # fmt: skip
        floor, lr = self.schedule.floor, self.optimizer.lr
        if self.schedule.name in ("cosine", "stable"):
            expect(floor <= lr, "schedule.floor", f"at most optimizer.lr ({lr:g})", f"{floor:g}; lower it, too")

    def implied(self, changes: Mapping[str, Any]) -> dict[str, Any]:
        """A number of epochs is one instead of steps, and the other way round."""
        other = {"steps": "epochs", "epochs": "steps"}
        given = [name for name in other if changes.get(name) is not None]
        return {other[given[0]]: None} if len(given) == 1 else {}

    def task(self) -> "Task":
        """The model, the data and the loss. Loads torch."""
        raise NotImplementedError(f"{type(self).__name__} does not say what it trains: it needs a method task()")

    def located(self: C) -> C:
        """With paths that mean the same from every folder: the run may be resumed in another one."""
        return self

    def of_run(self: C, run: Path) -> C:
        """For a run that is there: what its folder keeps is taken from there, not from where it once came from."""
        return self

    def kept_files(self, run: Path) -> list[Path]:
        """Those that of_run() takes from there: brought to processes that have no such folder."""
        return []

    def way_to_resume(self, run: Path) -> str:
        return f"fullstride resume {run}"

    def next_commands(self, run: Path) -> list[str]:
        """What can be done with a run that is over."""
        return [f"fullstride evaluate {run}", f"fullstride export {run} --to model.safetensors"]

    def write_model(self, tensors: "dict[str, Tensor]", run: Path, target: Path, replace: bool) -> list[Path]:
        """The weights of this config's run in the format of another program, which the target's name tells."""
        raise ValueError(f"--to: expected a name that ends with .safetensors, got {target}")

    def replace(self: C, **changes: object) -> C:
        """config.replace(steps=500, optimizer={"lr": 1e-3}): a section takes those of its fields that change."""
        return overlay(self, changes)


def expect(holds: bool, name: str, expected: str, got: object) -> None:
    """ValueError unless it holds (NaN never does)."""
    if not holds:
        raise ValueError(f"{name}: expected {expected}, got {got}")
