"""What a run will take, before it is started: model, memory, time. Nothing is trained and no run folder is made.

The model is built without memory (torch's meta device) and one micro-batch is sent through it there, which tells what
autograd will keep of it. The rest is arithmetic:

    memory   process + parameters + optimizer + gradients + activations + what a checkpoint is written from
    time     steps * (products of a step / measured rate of products + bytes of the optimizer's pass / bandwidth)

An estimate, and said to be one: the rate is that of large products on an idle machine, bf16 halves activations only
where all modules compute in it, and the heap's own waste is not in it. Against the peak of six real steps of `mlp`, two
evaluations and two checkpoints among them, on 2 cores of an AMD EPYC:

    MB          fp32   fp32 x 2   bf16   bf16 x 2   fp32, not in the background   lamb, Lookahead   3 x 1024, batch 4096
    estimate    1739   1737       1931   2031       1139                          1737              591
    real        1827   1813       1924   2063       1228                          1837              691
"""

import math
import os
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor, nn

from ..backends import choosing, square_products
from ..machine import memory, streams, threads
from ..recipes.config import Config
from ..recipes.length import Length
from ..rewriting.kept_activations import EXACT
from .assembly import build_schedule

if TYPE_CHECKING:
    from ..recipes.task import Task

_STATE_BYTES = {"fp32": 4.0, "bf16": 2.0, "8bit": 1 + 4 / 256}  # an element; 8 bits have a scale for each 256
_NUM_MOMENTS = {"adamw": 2, "adam": 2, "lamb": 2, "sgd": 1}


@dataclass(frozen=True)
class Estimate:
    steps: int
    parts: dict[str, int]  # parameters by part of the model
    num_train: int
    num_valid: int
    unit: str
    units_per_sample: int
    precision: str
    reason: str
    memory: dict[str, int]  # bytes by what they are for
    available: int
    gflop_step: float  # nan, as the seconds, if nobody can count them
    gflops: float  # of products, as measured
    step_seconds: float
    seconds: float  # of all steps and evaluations
    load: float  # processes that want a core now, a core
    about: str | None = None  # the data, where there is more to say

    @property
    def num_parameters(self) -> int:
        return sum(self.parts.values())

    @property
    def peak(self) -> int:
        return sum(self.memory.values())


class _Looked(NamedTuple):
    """What is known before anything is timed."""

    choice: choosing.Choice
    task: "Task"
    length: Length
    model: nn.Module  # on torch's meta device
    parts: dict[str, int]
    memory: dict[str, int]


def memory_of(config: Config) -> dict[str, int]:
    """Bytes that training will hold at most, by what they are for: that part of estimate() which times nothing, and
    takes next to no memory itself."""
    return _look(config).memory


def estimate(config: Config) -> Estimate:
    choice, task, length, model, parts, sizes = _look(config)
    counted = task.flops(model)
    flops = math.nan if counted is None else counted
    rate = (choice.gflops(choice.precision) or square_products.rates()["fp32"]) * 1e9
    samples = config.micro_batch * config.accumulate
    passed = sizes["gradients"] + 2 * (sizes["parameters"] + sizes["optimizer"])
    step_seconds = flops * samples / rate + passed / (streams.bandwidth("update", 0.1) * 1e9)
    evaluations = length.times(config.evaluation.every) + 1
    evaluating = evaluations * len(task.valid_data) * flops / 3 / rate  # forward is about a third
    return Estimate(
        length.steps, parts, len(task.train_data), len(task.valid_data), task.unit, task.units_per_sample,
        choice.precision, choice.reason, sizes,
        memory.memory_bytes(), flops * samples / 1e9, rate / 1e9, step_seconds,
        length.steps * step_seconds + evaluating, os.getloadavg()[0] / torch.get_num_threads(), task.describe(),
    )  # fmt: skip


def _look(config: Config) -> _Looked:
    threads.set_threads(config.threads)
    choice = choosing.choose(config.precision)  # of this machine: measured once, then cached
    task = config.task()
    from . import trainer  # noqa: F401  # what it imports takes memory, too: 78 MB

    length = task.length(config)
    build_schedule(config, length)  # or why it cannot be
    batch = task.largest_batch(config.micro_batch)
    process = memory.resident_bytes() or 0  # with Python, torch, the data and what making a batch of it takes
    model = _build(task)
    parts = _parts(model)
    sizes = _sizes(config, sum(parts.values()), choice.precision)
    sizes = {"process": process, **sizes, "activations": _activations(task, model, batch, choice.precision, config)}
    sizes["checkpoint"] = _checkpoint(config, sizes, choice.precision)
    return _Looked(choice, task, length, model, parts, sizes)


def as_text(config: Config, e: Estimate) -> str:
    """Lines for people."""
    samples = e.steps * config.accumulate * config.micro_batch
    each = e.units_per_sample
    factors = (config.accumulate, config.micro_batch, each)
    batch = " x ".join(str(n) for i, n in enumerate(factors) if n > 1 or i == 1)
    wide = max(28, *map(len, e.parts))
    lines = [("model", f"{e.num_parameters:,} parameters")]
    lines += [("", f"  {name:<{wide}} {count:>13,}") for name, count in e.parts.items()]
    lines += [
        ("data", f"{e.num_train * each:,} {e.unit} to train on, {e.num_valid * each:,} held out"),
        *([] if e.about is None else [("", f"  {e.about}")]),
        ("training", f"{e.steps:,} steps of {batch} {e.unit}, {samples / e.num_train:.3g} epochs"),
        ("precision", f"{e.precision}: {e.reason}"),
        ("memory", f"about {memory.as_size(e.peak)} at most, of {memory.as_size(e.available)} that there is"),
    ]
    lines += [("", f"  {name:<{wide}} {memory.as_size(size):>13}") for name, size in e.memory.items() if size]
    if e.peak > e.available:
        lines.append(("", "  too much: lower --micro-batch, or try --activations bf16"))
        lines.append(("", "  or --optimizer.state-precision bf16 or 8bit"))
    if math.isnan(e.gflop_step):
        lines.append(("time", "not known: the FLOPs of a step could not be counted"))
    else:
        lines += [
            ("time", f"about {_duration(e.seconds)}, {_duration(e.step_seconds)} a step"),
            ("", f"  {e.gflop_step:.3g} GFLOP of products a step, {e.gflops:.0f} GFLOP/s measured on this machine"),
        ]
    if e.load > 1:
        lines.append(("", f"  others use this machine now (load {e.load:.1f} a core): that will make it longer"))
    text = "\n".join(f"{label:<10} {line}".rstrip() for label, line in lines)
    return f"{text}\n\nAn estimate: nothing was trained and no run folder was made."


def _build(task: "Task") -> nn.Module:
    try:
        with torch.device("meta"):
            return task.build_model()
    except (NotImplementedError, RuntimeError):  # it looks at values, which a meta tensor has none of
        return task.build_model()


def _parts(model: nn.Module) -> dict[str, int]:
    """Parameters of the model's children, each counted once. A model that is one child is that child."""
    children = list(model.named_children())
    prefix = ""
    while len(children) == 1 and list(children[0][1].children()):
        prefix += children[0][0] + "."
        children = list(children[0][1].named_children())
    seen: set[Tensor] = set()
    parts = {}
    for name, child in children:
        weight = getattr(child, "weight", None)
        shape = " " + " x ".join(map(str, weight.shape)) if isinstance(weight, Tensor) else ""
        count = _count(child.parameters(), seen)
        if count:
            parts[f"{prefix}{name} {type(child).__name__}{shape}"] = count
    rest = _count(model.parameters(), seen)
    return parts | ({"others": rest} if rest else {})


def _count(parameters: Iterable[Tensor], seen: set[Tensor]) -> int:
    new = [p for p in parameters if p not in seen]
    seen.update(new)
    return sum(p.numel() for p in new)


def _sizes(config: Config, count: int, precision: str) -> dict[str, int]:
    """Bytes that stay from step to step. In bf16 a weight is two halves, and one micro-batch's gradient is bf16."""
    wish = config.optimizer
    state = _STATE_BYTES[wish.state_precision] * _NUM_MOMENTS[wish.name] * (wish.name != "sgd" or wish.momentum > 0)
    gradient = 2 if precision == "bf16" and config.accumulate == 1 else 4
    return {
        "parameters": 4 * count,
        "optimizer": round((state + 4 * wish.lookahead) * count),
        "gradients": gradient * count,
    }


def _checkpoint(config: Config, sizes: dict[str, int], precision: str) -> int:
    """The copy it is written from in the background: fp32 weights and the optimizer's state.

    In bf16 the lower halves of the weights are among the state, and fp32 weights are made of the two halves first.
    Gradients are gone by then, but the heap did not reuse their place when it was measured.
    """
    weights = sizes["parameters"]
    copy = weights + sizes["optimizer"] + (weights // 2 if precision == "bf16" else 0)
    return (weights if precision == "bf16" else 0) + (copy if config.checkpoints.background else 0)


def _activations(task: "Task", model: nn.Module, batch: tuple[Tensor, ...], precision: str, config: Config) -> int:
    """Bytes that autograd keeps of one micro-batch, and the gradients of the largest two of them on the way back."""
    device = next(model.parameters()).device
    own = {_storage(tensor) for tensor in (*model.parameters(), *model.buffers())}
    kept: dict[int, Tensor] = {}  # by storage; held, so that no other takes its place

    def keep(tensor: Tensor) -> Tensor:
        if _storage(tensor) not in own:
            kept.setdefault(_storage(tensor), tensor)
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        task.loss(model, tuple(tensor.to(device) for tensor in batch))
    sizes = sorted(_bytes(tensor, precision) for tensor in kept.values())
    gradients = sum(sizes[-2:])
    if config.activations == "same":
        return sum(sizes) + gradients
    exact = [tensor.is_leaf or type(tensor.grad_fn).__name__ in EXACT for tensor in kept.values()]
    return sum(_bytes(x, precision if e else "bf16") for x, e in zip(kept.values(), exact, strict=True)) + gradients


def _storage(tensor: Tensor) -> int:
    return int(tensor.untyped_storage()._cdata)


def _bytes(tensor: Tensor, precision: str) -> int:
    size = tensor.untyped_storage().nbytes()
    return size // 2 if precision in ("bf16", "fp16") and tensor.dtype is torch.float32 else size


def _duration(seconds: float) -> str:
    for unit, length in [("h", 3600.0), ("min", 60.0), ("s", 1.0)]:
        if seconds >= 1.5 * length:
            return f"{seconds / length:.3g} {unit}"
    return f"{seconds * 1e3:.3g} ms"
