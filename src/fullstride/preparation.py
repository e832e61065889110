"""prepare(): a model and its optimizer into their fast form; restore() is the way back, explain() the account.

    import fullstride
    model, optimizer = fullstride.prepare(model, optimizer)   # the rest of the script stays as it is

In this order: the process (runtime.py: memory, threads, measured choice of precision and libraries), the optimizer
(optim/torch_optimizers.py), the modules (rewriting/order.py), the weights (rewriting/split_weights.py), the forward
of the model (rewriting/prepared_forward.py).
"""

import inspect
import logging
import os
import sys
import weakref
from collections import Counter
from collections.abc import Callable, Collection
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import nn

from . import _native, rewriting, runtime
from .backends import choosing
from .backends.trials import verdicts
from .machine import memory, threads
from .ops import linear, products
from .ops._kept_gradients import forget
from .ops._overlap import end_worker
from .optim import from_torch, torch_optimizers
from .optim.scaling import LossScaler
from .rewriting import lazy_logits, mechanisms, prepared_forward, split_weights, whole_weights
from .runtime import Runtime

logger = logging.getLogger("fullstride")
PRECISIONS = ("auto", "fp32", "bf16", "fp16")
STATE_PRECISIONS = ("fp32", "bf16", "8bit")
ACTIVATIONS = ("same", "bf16")
_VALUES = {"precision": PRECISIONS, "state_precision": STATE_PRECISIONS, "activations": ACTIVATIONS}
_OVERLAP_PAYS = 1.1  # below it is within the noise of a shared machine
_DTYPES = {"fp32": None, "bf16": torch.bfloat16, "fp16": torch.float16}


@dataclass(eq=False)
class Preparation:
    """What prepare() did to a model; explain() shows it. What it set for the whole process stands in `runtime`."""

    precision: str
    reason: str
    outcomes: list[rewriting.Outcome]
    num_split: int
    num_parameters: int
    overlap: str
    optimizer: str
    setting: prepared_forward.Setting
    process: list[str]  # who multiplies, memory and threads, in lines, as they were then
    without: frozenset[str] = frozenset()  # mechanisms and parts that were switched off
    activations: str = "same"  # as they were wished for
    optimizer_ref: Any = field(default=None, repr=False)
    runtime: Runtime | None = field(default=None, repr=False)
    trace: rewriting.Trace | None = field(default=None, repr=False)  # of a step, if the last explain() asked for one

    def __post_init__(self) -> None:
        if self.runtime is not None:
            self.runtime.users.add(self)

    def __getstate__(self) -> dict[str, Any]:
        # A copy of the model is not trained by this optimizer, and may be loaded in another process.
        return self.__dict__ | {"optimizer_ref": None, "runtime": None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        if runtime.current().users:  # this process is set up for prepared models, of which this is one more
            self.runtime = runtime.current()
        self.__post_init__()

    def __str__(self) -> str:
        lines = [f"precision  {self.precision}: {self.reason}", *self.process]
        if self.runtime is not None:
            lines += [f"changed    {name}, before: {was}" for name, was in self.runtime.changes.items()]
        if self.num_split:
            lines.append(f"weights    {self.num_split} of {self.num_parameters} parameters split, exact in fp32")
        if self.optimizer:
            lines.append(f"optimizer  {self.optimizer}")
        lines.append(f"overlap    {self.overlap}")
        if self.activations != "same":
            lines.append(f"kept       {_kept(self.setting, self.precision)}")
        lines += [f"off        {name}: {rewriting.SWITCHES[name]}" for name in sorted(self.without)]
        for text, of in (("replaced", "done"), ("left", "left")):
            counts = Counter((o.kind, getattr(o, of), o.mechanism) for o in self.outcomes if getattr(o, of))
            lines += [f"{text:<10} {count:4} x {kind}: {what} ({by})" for (kind, what, by), count in counts.items()]
        caught = self.setting.caught
        lines += [f"functions  {count:4} x {name} so far (function_mode)" for name, count in sorted(caught.items())]
        if self.trace is not None:
            lines += ["", str(self.trace)]
        return "\n".join(lines)


def prepare(
    model: nn.Module,
    optimizer: torch.optim.Optimizer | None = None,
    *,
    precision: str = "auto",
    state_precision: str | None = None,
    activations: str = "same",
    clip: float | None = None,
    skip_nonfinite: bool | None = None,
    overlap_weight_grads: bool = False,
    loss_scaler: LossScaler | None = None,
    threads: int | None = None,
    without: Collection[str] = (),
) -> tuple[Any, Any]:
    """The same model object, made fast in place, and an optimizer that steps it in one call.

    precision: "auto" takes bf16 where its products were measured to win on this machine, else fp32; "fp16" brings
        dynamic loss scaling. In bf16 the weights stay exact in fp32.
    state_precision: of the optimizer's moments: "fp32", "bf16" or "8bit"; None keeps what the optimizer has.
    activations: what forward keeps for backward: "same", as it was computed, or "bf16", which halves it in fp32.
    clip: the global gradient norm is limited to this inside the step; leave clip_grad_norm_ out then.
    skip_nonfinite: a step with NaN or infinity in a gradient is skipped and counted: with None where clip or a loss
        scale reads the gradients anyway, with True always, at the price of that read; torch never does.
    overlap_weight_grads: computes weight gradients beside input gradients where that was measured to pay.
    loss_scaler: in fp16, instead of one that starts at 1024, doubles after 2000 good steps and halves on overflow;
        what "auto" takes instead of fp16 needs none.
    threads: instead of the number of usable cores.
    without: names of mechanisms and parts to leave out (rewriting.SWITCHES), to find out which one does what.
    """
    check_options(
        precision=precision, state_precision=state_precision, activations=activations, clip=clip, threads=threads,
        without=without, loss_scaler=loss_scaler,
    )  # fmt: skip
    left_out, given = rewriting.wished(without), optimizer
    optimizer = None if "optimizer" in left_out else given
    inner = _check(model, optimizer, precision, state_precision, clip)
    with runtime.lock():
        process, fast_optimizer = runtime.start(), None
        try:
            choice, machine = _set_up(process, threads, precision, left_out)
            overlap = _overlap(process, overlap_weight_grads and "overlap" not in left_out)
            was = type(optimizer).__name__
            if optimizer is not None:
                fast_optimizer = from_torch(
                    optimizer, state_precision=state_precision, clip=clip, skip_nonfinite=skip_nonfinite
                )
            outcomes = rewriting.rewrite(inner, left_out)
            setting = prepared_forward.Setting(
                _DTYPES[choice.precision], answers="function_mode" not in left_out, without=left_out,
                rounds=activations == "bf16" and choice.precision == "fp32",
            )  # fmt: skip
            lows = {}
            if choice.precision == "bf16" and optimizer is not None:
                lows = split_weights.split_weights(inner, plain="linear" in left_out)
            if lows:
                process.change("AveragedModel", whole_weights.follow_averages, "its own")
                whole_weights.wrap_savers(inner)
            if fast_optimizer is not None:
                _connect(fast_optimizer, lows, setting, loss_scaler)
            prepared_forward.wrap_forwards(inner, setting)
            inner.__dict__["_preparation"] = record = Preparation(
                choice.precision, choice.reason, outcomes, len(lows), len(list(inner.parameters())), overlap,
                _describe(was, fast_optimizer), setting, _lines(choice, machine), left_out, activations,
                None if fast_optimizer is None else weakref.ref(fast_optimizer), process,
            )  # fmt: skip
        except BaseException:
            _put_back(inner, fast_optimizer)
            raise
        finally:
            runtime.release(None)  # puts all back if nobody came to use it
    done = sum(bool(outcome.done) for outcome in outcomes)
    said = [f"{record.precision} ({record.reason})", *machine, f"{done} modules replaced"]
    if activations != "same":
        said.append(f"keeps {_kept(setting, choice.precision)}")
    _say("; ".join(said))
    return model, given if fast_optimizer is None else fast_optimizer


def restore(model: nn.Module) -> nn.Module:
    """Gives back the ordinary fp32 model, exact and in place. Its optimizer goes on with it, in fp32.

    With the last prepared model the process, too, becomes what it was, but for the heap.
    """
    inner = _unwrap(model)
    record = inner.__dict__.pop("_preparation", None)
    if record is None:
        raise ValueError("restore: expected a model that prepare() returned, got one that was not prepared")
    with runtime.lock():
        _put_back(inner, record.optimizer_ref() if record.optimizer_ref is not None else None)
        process = runtime.release(record)
    if process.users:
        _say(f"restored; the process stays as it is for {len(process.users)} other prepared model(s)")
    else:
        heap = "the heap stays kept" if memory.heap_kept() else "the heap is as it comes"
        _say("; ".join(["restored, and torch as before", *(f"{n}: {was}" for n, was in process.changes.items()), heap]))
    return model


def check_options(**options: Any) -> None:
    """Raises what prepare() says to such options, whatever the model: for those who keep them until there is one."""
    known = {p.name: p.default for p in inspect.signature(prepare).parameters.values() if p.kind is p.KEYWORD_ONLY}
    for name in options:
        if name not in known:
            raise TypeError(f"prepare: expected options among {', '.join(known)}; got {name!r}")
    given = known | options
    for name, values in _VALUES.items():
        if given[name] not in (known[name], *values):
            raise ValueError(f"prepare: expected {name} to be one of {', '.join(values)}, got {given[name]!r}")
    if given["clip"] is not None and not given["clip"] > 0:
        raise ValueError(f"prepare: expected clip to be a norm above 0 or None, got {given['clip']}")
    scaler = given["loss_scaler"]
    if scaler is not None and not isinstance(scaler, LossScaler):
        raise TypeError(
            f"prepare: expected loss_scaler to be a fullstride.optim.LossScaler, got {type(scaler).__name__};"
            " LossScaler(512) starts at that scale"
        )
    precision = given["precision"]
    if scaler is not None and precision not in ("auto", "fp16"):
        raise ValueError(f"prepare: expected loss_scaler with fp16 only, got it with {precision}; leave it out")
    threads.check_threads(given["threads"])
    mechanisms.check_wish(rewriting.wished(given["without"]), given)


def is_prepared(model: nn.Module) -> bool:
    """Whether restore() has something to give back."""
    return "_preparation" in _unwrap(model).__dict__


def _put_back(inner: nn.Module, optimizer: Any) -> None:
    """The model as it was, whatever was done to it, and its optimizer in fp32."""
    prepared_forward.unwrap_forwards(inner)
    rewriting.put_back(inner)
    forget(inner.parameters())
    split_weights.merge_weights(inner)
    whole_weights.unwrap_savers(inner)
    if optimizer is not None:
        optimizer.unscale_()
        optimizer.drop_split()
        optimizer.scaler = None


def explain(model: nn.Module, trace: Callable[[], object] | None = None) -> Preparation:
    """What prepare() did with this model: print it. Each module that was replaced, by what, or why it was not.

    trace: a function that runs one real training step. It is called three times, and the account ends with a table of
    every operation of the last one, who computed it and its time: the answer to "why is this model not faster?".
    """
    record = _unwrap(model).__dict__.get("_preparation")
    if record is None:
        raise ValueError("explain: expected a model that prepare() returned, got one that was not prepared")
    assert isinstance(record, Preparation)
    record.num_split = split_weights.num_split(_unwrap(model))  # float() may have been called since
    record.trace = None if trace is None else rewriting.trace(_unwrap(model), trace)
    return record


# ---- the steps of prepare ------------------------------------------------------------------------------------------


def _check(
    model: nn.Module,
    optimizer: torch.optim.Optimizer | None,
    precision: str,
    state_precision: str | None,
    clip: float | None,
) -> nn.Module:
    """What can be wrong with model and optimizer, before anything is changed. Returns the model to work on."""
    if not isinstance(model, nn.Module):
        raise TypeError(f"prepare: expected a torch.nn.Module, got {type(model).__name__}")
    if optimizer is not None and not isinstance(optimizer, torch.optim.Optimizer):
        raise TypeError(f"prepare: expected a torch.optim.Optimizer, got {type(optimizer).__name__}")
    inner = _unwrap(model)
    for name, module in inner.named_modules():
        if "_preparation" in module.__dict__:
            what = f"its part {name!r}" if name else "the model"
            raise ValueError(f"prepare: {what} is prepared already; use it as it is, or restore() it first")
        if "_frozen_stages" in module.__dict__:
            raise ValueError(
                f"prepare: {name or 'the model'} is frozen in part by a DynamicFreezer; thaw it, or prepare it before"
            )
    for name, parameter in inner.named_parameters():
        if not parameter.is_floating_point():
            raise ValueError(
                f"prepare: expected real floating-point parameters, got {parameter.dtype} in {name!r};"
                " keep such numbers in a buffer"
            )
        if not parameter.is_cpu:
            raise ValueError(f"prepare: expected a model on the CPU, got {name!r} on {parameter.device}; move it there")
    _check_optimizer(inner, optimizer, precision)
    if optimizer is not None:
        torch_optimizers.check(optimizer, state_precision, clip)
    return inner


def _check_optimizer(model: nn.Module, optimizer: torch.optim.Optimizer | None, precision: str) -> None:
    if optimizer is None:
        if precision in ("bf16", "fp16"):
            raise ValueError(f"prepare: {precision} needs the optimizer, which keeps what 16 bits lose; pass it, too")
        return
    own = set(model.parameters())
    for i, group in enumerate(optimizer.param_groups):
        if not group["params"]:
            raise ValueError(f"prepare: expected parameters in every group of the optimizer, got none in group {i}")
    given = [p for group in optimizer.param_groups for p in group["params"]]
    strangers = sum(p not in own for p in given)
    if strangers:
        raise ValueError(
            f"prepare: expected the optimizer of this model, got one with {strangers} of {len(given)} parameters that"
            " are not the model's; make it from model.parameters()"
        )


def _unwrap(model: nn.Module) -> nn.Module:
    """What torch.compile wrapped."""
    inner = getattr(model, "_orig_mod", model)
    assert isinstance(inner, nn.Module)
    return inner


def _set_up(
    process: Runtime, wished: int | None, precision: str, left_out: Collection[str]
) -> tuple[choosing.Choice, list[str]]:
    """Memory, threads, libraries and patches of torch, for the whole process; and what was done about the first two."""
    put_back = threads.as_they_are()
    machine = memory.tune()
    machine += ["threads as they are"] if "threads" in left_out else [str(threads.set_threads(wished))]
    process.change("kernels", _native.as_it_is, _native.isa())
    process.change("torch.utils.checkpoint", prepared_forward.follow_checkpoints, "its own")
    process.change("worker of overlap", lambda: end_worker, "none")
    if "lazy_logits" not in left_out:
        process.change("hook before optimizer steps", lazy_logits.install, "none")
    try:
        choice = choosing.choose(precision, renew=True)
        choice.apply()
        if "products" in left_out:
            products.leave_to_torch(_DTYPES[choice.precision] or torch.float32)  # or refused, with nothing changed
            choice = replace(choice, backends={name: dict.fromkeys(x, "torch") for name, x in choice.backends.items()})
    except BaseException:
        put_back()  # for those who are prepared already
        raise
    process.own_products = "products" not in left_out
    process.ties_gradients = "tied_gradients" not in left_out
    return choice, machine


def _lines(choice: choosing.Choice, machine: list[str]) -> list[str]:
    notes = [*choice.lines(), *(f"rates {note}" for note in choice.notes)]
    lines = [f"products   {line}" for line in notes] + [f"machine    {line}" for line in machine]
    return lines + [f"excluded   {line}" for line in verdicts.lines(choice.verdicts)]


def _overlap(process: Runtime, wished: bool) -> str:
    process.overlaps = False
    if not wished:
        return "off"
    ratio = linear.measure_overlap()
    process.overlaps = ratio > _OVERLAP_PAYS
    return f"{'on' if process.overlaps else 'off'}: a chain of small layers was measured {ratio:.2f}x as fast with it"


def _connect(
    optimizer: Any,
    lows: dict[nn.Parameter, torch.Tensor],
    setting: prepared_forward.Setting,
    scaler: LossScaler | None,
) -> None:
    """The optimizer gets the lower halves of split weights, and in fp16 the loss scale."""
    stepped = {p for group in optimizer.param_groups for p in group["params"]}
    optimizer.use_split({p: lo for p, lo in lows.items() if p in stepped})
    optimizer.keep_for_later({p: lo for p, lo in lows.items() if p not in stepped})
    if setting.dtype is torch.float16:
        setting.scaler = optimizer.scaler = scaler or LossScaler()


def _kept(setting: prepared_forward.Setting, precision: str) -> str:
    if setting.rounds:
        return "activations for backward in bf16"
    return f"activations for backward as they are: in {precision} they have 16 bits already"


def _describe(was: str, optimizer: Any) -> str:
    if optimizer is None:
        return ""
    states = getattr(optimizer, "state_precision", "fp32")
    clip = getattr(optimizer, "clip", None)
    return f"{was}, one call a step, states in {states}" + (f", clipped at {clip:g}" if clip else "")


def _say(line: str) -> None:
    """One line on stderr, unless logging is configured (then it goes there) or FULLSTRIDE_QUIET is set."""
    if logger.hasHandlers():
        logger.info(line)
    elif os.environ.get("FULLSTRIDE_QUIET", "0") == "0":
        print(f"fullstride: {line}", file=sys.stderr)
