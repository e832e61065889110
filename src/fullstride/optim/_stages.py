"""The stages of a model in the order of its forward pass: what a DynamicFreezer may freeze from the front.

Backward stops early only where nothing before needs a gradient. So a stage is the smallest piece with everything else
entirely before it or entirely after it:

- Layers are the blocks of the model; one that is called again after another one makes one stage with it.
- A parameter belongs to the stage that uses it last. Where a layer of an earlier stage uses it too (the embedding of a
  tied language model), that layer's output is to be detached once its stage is frozen: the parameter then still learns
  from its last use. An earlier use between layers cannot be detached; all stages from there on are one.

Order and uses are seen in one forward pass: hooks tell which layer runs, a TorchFunctionMode which parameters go into
its functions. Parameters of a layer count as used whenever it is called, for functions written in C++ are not seen.
The same pass tells what the products of each stage cost (_products.py).
"""

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from ._products import Places, Product, has_products, products_of

_CONTAINERS = (nn.Sequential, nn.ModuleList, nn.ModuleDict)


@dataclass
class Stage:
    """Names of the model's layers and parameters. `detach` are those layers that use a parameter of a later stage."""

    layers: list[str] = field(default_factory=list)
    parameters: list[str] = field(default_factory=list)
    detach: list[str] = field(default_factory=list)


def find_layers(model: nn.Module) -> Iterator[nn.Module]:
    """The direct children of the model. A container stands for what it holds, and so does a child with containers
    somewhere inside: the blocks of a Hugging Face model lie two or three levels down."""
    for child in model.children():
        if isinstance(child, _CONTAINERS):
            yield from child.children()
        elif any(isinstance(inner, _CONTAINERS) for inner in child.modules()):
            yield from find_layers(child)
        else:
            yield child


class Trace:
    """Sees one forward pass of the model under way, the first one in which gradients are recorded.

    `calls[t]` is the layer that ran as number t; `uses` holds (t, parameter, inside): inside call t, or before it.
    `products` are those with a weight, wherever in the model.
    """

    def __init__(self, model: nn.Module) -> None:
        self.calls: list[nn.Module] = []
        self.uses: set[tuple[int, nn.Parameter, bool]] = set()
        self.products: list[Product] = []
        self.complete = False
        self._depth = 0  # a layer may call another one
        self._mode = _SeeParameters(self)
        self._entered = False
        self._handles = [
            model.register_forward_pre_hook(self._begin),
            model.register_forward_hook(self._finish),
            model.register_forward_hook(self._leave, always_call=True),
        ]
        for layer in dict.fromkeys(find_layers(model)):
            self._handles.append(layer.register_forward_pre_hook(self._enter_layer))
            self._handles.append(layer.register_forward_hook(self._leave_layer, always_call=True))
        for module in filter(has_products, model.modules()):
            self._handles.append(module.register_forward_hook(self._see_products))

    def remove(self) -> None:
        for handle in self._handles:
            handle.remove()

    def _begin(self, model: nn.Module, _: Any) -> None:
        if self.complete or self._entered or not torch.is_grad_enabled() or torch.compiler.is_compiling():
            return
        self.calls, self.uses, self.products, self._depth = [], set(), [], 0
        self._entered = True
        self._mode.__enter__()

    def _finish(self, model: nn.Module, *_: Any) -> None:  # not called when forward raises
        self.complete = self._entered or self.complete

    def _leave(self, model: nn.Module, *_: Any) -> None:
        if self._entered:
            self._entered = False
            self._mode.__exit__(None, None, None)

    def _enter_layer(self, layer: nn.Module, _: Any) -> None:
        if self._entered:
            if self._depth == 0:
                self.calls.append(layer)
            self._depth += 1

    def _leave_layer(self, layer: nn.Module, *_: Any) -> None:
        if self._entered:
            self._depth -= 1

    def _see_products(self, module: nn.Module, inputs: tuple[Any, ...], output: Any) -> None:
        if self._entered:
            self.products += products_of(module, inputs, output)

    def see(self, parameter: nn.Parameter) -> None:
        inside = self._depth > 0
        self.uses.add((len(self.calls) - inside, parameter, inside))


class _SeeParameters(TorchFunctionMode):
    def __init__(self, trace: Trace) -> None:
        super().__init__()
        self.trace = trace

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        if _carries_gradient(result):  # not weight.shape, weight.dtype, weight.data
            for argument in (*args, *(kwargs or {}).values()):
                for item in argument if isinstance(argument, (tuple, list)) else (argument,):
                    if isinstance(item, nn.Parameter):
                        self.trace.see(item)
        return result


def _carries_gradient(result: Any) -> bool:
    if isinstance(result, (tuple, list)):
        return any(_carries_gradient(item) for item in result)
    # Inside a reentrant checkpoint nothing requires a gradient yet.
    return isinstance(result, Tensor) and (result.requires_grad or not torch.is_grad_enabled())


_Times = dict[nn.Parameter, set[int]]


def _times(
    parameters: Collection[nn.Parameter], calls: Sequence[nn.Module], uses: set[tuple[int, nn.Parameter, bool]]
) -> tuple[_Times, _Times]:
    """When each of these parameters is used: inside of layers, and between them."""
    inside: _Times = {parameter: set() for parameter in parameters}
    between: _Times = {parameter: set() for parameter in parameters}
    owned = {(t, parameter, True) for t, layer in enumerate(calls) for parameter in layer.parameters()}
    for t, parameter, is_inside in uses | owned:
        if parameter in inside:
            (inside if is_inside else between)[parameter].add(t)
    return inside, between


def stages_of(model: nn.Module, calls: Sequence[nn.Module], uses: set[tuple[int, nn.Parameter, bool]]) -> list[Stage]:
    """The stages that have parameters to train; layers without any go with the stage after them."""
    names = {parameter: name for name, parameter in model.named_parameters() if parameter.requires_grad}
    layer_names = {module: name for name, module in model.named_modules()}
    end = len(calls)  # the time after the last call
    inside, between = _times(names, calls, uses)
    last = {p: max(inside[p] | between[p], default=end) for p in names}

    together = [(calls.index(layer), t) for t, layer in enumerate(calls)]
    together += [(t, last[p]) for p in names for t in between[p]]
    stage_at = _join(together, end + 1)
    stages = [Stage() for _ in range(stage_at[-1] + 1)]
    for t, layer in enumerate(calls):
        if calls.index(layer) == t:
            stages[stage_at[t]].layers.append(layer_names[layer])
    for parameter, name in names.items():
        owner = stage_at[last[parameter]]
        stages[owner].parameters.append(name)
        for t in sorted(inside[parameter]):
            stage, layer_name = stages[stage_at[t]], layer_names[calls[t]]
            if stage_at[t] < owner and layer_name not in stage.detach:
                stage.detach.append(layer_name)
    return _with_parameters(stages)


def given_stages(model: nn.Module, layers: Sequence[nn.Module]) -> list[Stage]:
    """The same for layers in the order that the user names, without a forward pass. Whatever is not in them is taken
    to come after them."""
    known = {module: name for name, module in model.named_modules()}
    within: dict[nn.Module, int] = {}
    for i, layer in enumerate(layers):
        if layer not in known:
            raise ValueError(f"expected modules of the model as layers, got a foreign {type(layer).__name__} at {i}")
        for module in layer.modules():
            if module in within:
                raise ValueError(
                    f"expected layers that share no module, got {known[module]!r} in layers {within[module]} and {i};"
                    " name what holds both as one layer, or neither"
                )
            within[module] = i
    users: dict[nn.Parameter, set[int]] = {}
    for module in known:
        for parameter in module.parameters(recurse=False):
            users.setdefault(parameter, set()).add(within.get(module, len(layers)))
    stages = [Stage([known[layer]]) for layer in layers] + [Stage()]
    for name, parameter in model.named_parameters():
        if parameter.requires_grad:
            *earlier, last = sorted(users[parameter])
            stages[last].parameters.append(name)
            for i in earlier:
                stages[i].detach = stages[i].layers
    return _with_parameters(stages)


def places_of(model: nn.Module, stages: Sequence[Stage]) -> Places:
    parameters = dict(model.named_parameters())
    owner = {parameters[name]: i for i, stage in enumerate(stages) for name in stage.parameters}
    first_use = dict(owner)
    for i, stage in reversed(list(enumerate(stages))):
        for name in stage.detach:
            first_use |= {p: i for p in model.get_submodule(name).parameters() if p in owner}
    return Places(owner, first_use, len(stages))


def _join(together: Sequence[tuple[int, int]], length: int) -> list[int]:
    """The stage of each time, where all times from first to last of a pair are in one."""
    reach_of = list(range(length))
    for first, last in together:
        reach_of[first] = max(reach_of[first], last)
    stage_at: list[int] = []
    stage, reach = -1, -1
    for t in range(length):
        stage += t > reach
        reach = max(reach, reach_of[t])
        stage_at.append(stage)
    return stage_at


def _with_parameters(stages: Sequence[Stage]) -> list[Stage]:
    result: list[Stage] = []
    waiting = Stage()
    for stage in stages:
        waiting = Stage(waiting.layers + stage.layers, stage.parameters, waiting.detach + stage.detach)
        if waiting.parameters:
            result.append(waiting)
            waiting = Stage()
    return result
