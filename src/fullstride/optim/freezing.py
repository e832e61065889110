"""Stops the training of layers that have settled, from the front of the model.

    freezer = DynamicFreezer(model)
    for batch in data:
        loss = loss_of(model, batch)
        loss.backward()
        freezer.step(loss)              # once a step: after the last backward, while the gradients are still there
        optimizer.step()
        optimizer.zero_grad()

Three criteria tell when a layer has learnt what it can (_criteria.py has them, and why `slowed` is the default):

    slowed    in `patience` steps its weights moved less than `threshold` of the farthest they ever did in as many
    below     the smoothed norm of its gradient was below `threshold` of its largest for `patience` steps
    settled   the smoothed norm of its gradient stayed within `threshold` of where it was for `patience` steps

Backward goes from the end of the model to its front, so it can only end early where everything before has settled too:
layers freeze from the front, one after the other. Their parameters no longer require a gradient, so autograd records
nothing there, keeps no activations and ends at the first layer that still learns. Their `grad` is None, so optimizers
pass them over, without weight decay or momentum; their state in the optimizer stays as it is and serves again when they
thaw. Parameter groups are never touched.

What else to know:

- Parameters that require no gradient when the freezer first sees a forward pass, or when their layer freezes, are the
  user's: a layer may be partly frozen (adapters), only the rest of it is watched, and only that is ever thawed.
- A tied parameter belongs to the layer that uses it last; layers that are called in turns freeze together. _stages.py
  has the rules.
- Frozen layers otherwise run as the user left them: dropout drops, BatchNorm counts its running statistics.
- step() before optimizer.step() means that a layer takes no further step; after it, that it takes this last one.
  Either way is exact on resume if it is kept. Call it before clipping: a clipped norm says less.
- A thawed layer learns for `patience` steps at least, and settles anew; its farthest and largest are kept.
- When resuming, load the freezer's state last, with model and optimizer made while everything still learns.
- Gradients that are not finite (an overflow in fp16) count for nothing. For `below` and `settled` a new loss scale
  looks like a change.
- With an input that requires a gradient itself, backward goes to the front all the same.
"""

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, get_args

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_map_only
from torch.utils.hooks import RemovableHandle

from ..ops.grads import grad_norm
from ._criteria import CRITERIA, THRESHOLDS, Criterion, Options, Sampler, Signs, smoothed
from ._products import Product, costs_by_size, costs_of
from ._stages import Stage, Trace, given_stages, places_of, stages_of


@dataclass
class _Watched:
    """A stage and what is known of it."""

    stage: Stage
    parameters: list[nn.Parameter]
    signs: Signs
    sample: Sampler


@dataclass(frozen=True)
class FreezeReport:
    """What was left out so far, as shares of the same steps without freezing.

    saved           of parameter updates: the sum over steps of frozen parameters, divided by steps times parameters.
                    The optimizer saves that share of its work
    saved_compute   of the products of forward and backward (_products.py). Forward is never left out, so with all
                    layers frozen it would be two thirds
    """

    steps: int
    num_layers: int
    frozen_layers: list[str]
    frozen_parameters: int
    total_parameters: int
    saved: float
    saved_compute: float
    thaws: int
    stages: list[str]
    """Names of all that may freeze one after the other, frozen or not: their layers with parameters, joined by +."""
    num_frozen: int
    """So many of the stages, from the front, are frozen now."""

    def __str__(self) -> str:
        frozen = ", ".join(self.frozen_layers) or "none"
        return (
            f"frozen now: {frozen} ({self.frozen_parameters:,} of {self.total_parameters:,} parameters);"
            f" over {self.steps} steps {self.saved_compute:.1%} of the compute and {self.saved:.1%} of parameter"
            f" updates saved, thawed {self.thaws} times"
        )


class DynamicFreezer:
    """Freezes the settled front of `model`.

    threshold     None: what was found to be good for the criterion
    smoothing     of gradient norms and of the loss: the share of the past in the running mean
    layers        in forward order; without them the blocks of the model, in the order of its first forward pass. A
                  model under torch.compile needs them, because hooks do not see into it.
    min_active    so many layers at the end never freeze: the last but one saves little and costs much
    thaw_every    thaw all each time so many steps are done
    thaw_on_rise  thaw all when the smoothed loss is above its lowest value since the first layer froze by this share
                  (0.1: 10 %); step() then needs the loss
    """

    def __init__(
        self,
        model: nn.Module,
        threshold: float | None = None,
        patience: int = 30,
        *,
        criterion: Criterion = "slowed",
        layers: Sequence[nn.Module] | None = None,
        min_active: int = 2,
        thaw_every: int | None = None,
        thaw_on_rise: float | None = None,
        smoothing: float = 0.95,
    ) -> None:
        names = get_args(Criterion)
        _check("criterion", criterion, criterion in names, f"one of {', '.join(names)}")
        _check("threshold", threshold, threshold is None or threshold > 0, "None or a share above 0")
        _check("patience", patience, patience >= 1, "at least 1 step")
        _check("min_active", min_active, min_active >= 1, "at least 1: a model with all layers frozen learns nothing")
        _check("thaw_every", thaw_every, thaw_every is None or thaw_every >= 1, "None or at least 1 step")
        _check("thaw_on_rise", thaw_on_rise, thaw_on_rise is None or thaw_on_rise > 0, "None or a share above 0")
        _check("smoothing", smoothing, 0 <= smoothing < 1, "a share from 0 to below 1")
        self.model: nn.Module = getattr(model, "_orig_mod", model)  # what torch.compile wraps
        self.criterion, self.min_active = criterion, min_active
        self.options = Options(THRESHOLDS[criterion] if threshold is None else threshold, patience, smoothing)
        self.thaw_every, self.thaw_on_rise = thaw_every, thaw_on_rise
        self.steps = 0
        self.thaws = 0
        self._saved = 0  # frozen parameters, summed over steps
        self._saved_compute = 0.0  # FLOPs
        self._loss: float | None = None
        self._lowest_loss: float | None = None
        self._watched: list[_Watched] = []
        self._costs: list[float] = []  # FLOPs of a step with so many stages frozen
        self._frozen: list[list[nn.Parameter]] = []  # of each frozen stage what was not frozen before
        self._detaching: list[RemovableHandle] = []
        self._trace: Trace | None = None
        if layers is None:
            self._trace = Trace(self.model)
        else:
            self._watch(given_stages(self.model, list(layers)))

    # ---- one step ----------------------------------------------------------------------------------------------------

    def step(self, loss: Tensor | float | None = None) -> bool:
        """Looks at the gradients, freezes or thaws. True if something changed."""
        if self._trace is not None:
            self._end_trace(self._trace)
        self.steps += 1
        self._saved += self._num_frozen_parameters()
        self._saved_compute += self._costs[0] - self._costs[len(self._frozen)]
        rose = self._follow_loss(loss)
        due = self.thaw_every is not None and self.steps % self.thaw_every == 0
        if self._frozen and (rose or due):
            return self.thaw()
        self._look()
        before = len(self._frozen)
        while len(self._frozen) < len(self._watched) - self.min_active and self._is_calm(len(self._frozen)):
            self._freeze_next()
        return len(self._frozen) > before

    def thaw(self) -> bool:
        """Everything the freezer froze learns again, and must settle anew. True if there was something."""
        had_frozen = bool(self._frozen)
        for parameters in self._frozen:
            for parameter in parameters:
                parameter.requires_grad_(True)
        for handle in self._detaching:
            handle.remove()
        self._frozen, self._detaching = [], []
        self.model.__dict__.pop("_frozen_stages", None)
        if had_frozen:
            self.thaws += 1
            for watched in self._watched:
                watched.signs.start_anew()
        return had_frozen

    @property
    def num_frozen(self) -> int:
        """Stages frozen now, counted from the front."""
        return len(self._frozen)

    def report(self) -> FreezeReport:
        total = sum(p.numel() for watched in self._watched for p in watched.parameters)
        return FreezeReport(
            steps=self.steps,
            num_layers=len(self._watched),
            frozen_layers=[name for watched in self._watched[: len(self._frozen)] for name in watched.stage.layers],
            frozen_parameters=self._num_frozen_parameters(),
            total_parameters=total,
            saved=self._saved / max(1, self.steps * total),
            saved_compute=self._saved_compute / max(1.0, self.steps * self._costs[0]) if self._costs else 0.0,
            thaws=self.thaws,
            stages=[_name(watched.stage) for watched in self._watched],
            num_frozen=len(self._frozen),
        )

    # ---- state -------------------------------------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        """Numbers, names and None, fit for JSON. Options are not in it, as they are the caller's to give."""
        return {
            "steps": self.steps,
            "thaws": self.thaws,
            "saved": self._saved,
            "saved_compute": self._saved_compute,
            "costs": self._costs,
            "criterion": self.criterion,
            "loss": self._loss,
            "lowest_loss": self._lowest_loss,
            "frozen": len(self._frozen),
            "stages": [{**asdict(w.stage), "signs": asdict(w.signs)} for w in self._watched],  # type: ignore[call-overload]
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Freezes what was frozen, at once: the next forward pass is that of the run that was saved."""
        self.thaw()
        stages = [Stage(s["layers"], s["parameters"], s["detach"]) for s in state["stages"]]
        self._check_names(stages)
        if stages and self._trace is not None:  # saved before the first step there are none, and the trace goes on
            self._trace.remove()
            self._trace = None
        self._watch(stages)
        if state.get("criterion") == self.criterion:  # else each layer settles anew, by the other one
            for watched, saved in zip(self._watched, state["stages"], strict=True):
                watched.signs = CRITERIA[self.criterion](**saved["signs"])
        for _ in range(state["frozen"]):
            self._freeze_next()
        self.steps, self.thaws, self._saved = state["steps"], state["thaws"], state["saved"]
        self._saved_compute = state.get("saved_compute", 0.0)  # older states have none
        self._costs = list(state.get("costs") or self._costs)
        self._loss, self._lowest_loss = state["loss"], state["lowest_loss"]

    # ---- parts -------------------------------------------------------------------------------------------------------

    def _end_trace(self, trace: Trace) -> None:
        if not trace.complete:
            raise RuntimeError(
                "expected a forward pass of the model before step(), saw none that recorded gradients; call the model"
                " that the freezer was given, or pass layers=[...] in forward order (with torch.compile always)"
            )
        trace.remove()
        self._trace = None
        self._watch(stages_of(self.model, trace.calls, trace.uses), trace.products)

    def _watch(self, stages: Sequence[Stage], products: Sequence[Product] = ()) -> None:
        parameters, places = dict(self.model.named_parameters()), places_of(self.model, stages)
        self._costs = costs_of(products, places) if products else costs_by_size(places)
        self._watched = []
        for stage in stages:
            own = [parameters[name] for name in stage.parameters]
            self._watched.append(_Watched(stage, own, CRITERIA[self.criterion](), Sampler(self.model, own)))

    def _num_frozen_parameters(self) -> int:
        return sum(parameter.numel() for parameters in self._frozen for parameter in parameters)

    def _follow_loss(self, loss: Tensor | float | None) -> bool:
        """Whether the smoothed loss has risen too far above its lowest value with frozen layers."""
        if self.thaw_on_rise is None:
            return False
        if loss is None:
            raise ValueError("expected step(loss) with thaw_on_rise, got no loss; pass the loss of this step")
        value = float(loss)
        if not math.isfinite(value):
            return False
        self._loss = smoothed(self._loss, value, self.options.smoothing)
        if not self._frozen:
            self._lowest_loss = None
            return False
        self._lowest_loss = self._loss if self._lowest_loss is None else min(self._loss, self._lowest_loss)
        return self._loss > self._lowest_loss + self.thaw_on_rise * abs(self._lowest_loss)

    def _look(self) -> None:
        norms: list[tuple[_Watched, float]] = []
        for watched in self._watched[len(self._frozen) :]:
            gradients = [p.grad for p in watched.parameters if p.grad is not None]
            if not gradients:  # not used in this step, which says nothing
                continue
            norm, finite = grad_norm([g.coalesce().values() if g.is_sparse else g for g in gradients])
            if not finite:
                return
            norms.append((watched, norm))
        for watched, norm in norms:
            watched.signs.see(norm, watched.sample, self.options)

    def _is_calm(self, index: int) -> bool:
        return self._watched[index].signs.are_calm(self.options)

    def _freeze_next(self) -> None:
        watched = self._watched[len(self._frozen)]
        mine = [p for p in watched.parameters if p.requires_grad]
        for parameter in mine:
            parameter.requires_grad_(False)
            parameter.grad = None
        self._frozen.append(mine)
        self.model.__dict__["_frozen_stages"] = len(self._frozen)  # prepare() asks
        for name in watched.stage.detach:
            self._detaching.append(self.model.get_submodule(name).register_forward_hook(_detach_output))

    def _check_names(self, stages: Sequence[Stage]) -> None:
        parameters = {name for name, _ in self.model.named_parameters()}
        modules = {name for name, _ in self.model.named_modules()}
        for stage in stages:
            unknown = {*stage.parameters} - parameters | {*stage.layers, *stage.detach} - modules
            if unknown:
                raise ValueError(
                    f"expected the state of a freezer of this model, got one with {', '.join(sorted(unknown))},"
                    " which the model does not have"
                )


def _name(stage: Stage) -> str:
    own = [layer for layer in stage.layers if any(name.startswith(f"{layer}.") for name in stage.parameters)]
    return " + ".join(own) or "the rest"


def _detach_output(module: nn.Module, inputs: Any, output: Any) -> Any:
    return tree_map_only(Tensor, torch.Tensor.detach, output)


def _check(name: str, value: object, good: bool, expected: str) -> None:
    if not good:
        raise ValueError(f"DynamicFreezer: expected {name} to be {expected}, got {value!r}")
