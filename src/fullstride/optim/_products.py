"""What the products of a training step cost with the first stages frozen.

A product with a weight costs as much as itself once more for each gradient that backward computes of it:

    forward     y = x W^T             always
    weight      dW = dy^T x           while the stage of W learns
    input       dx = dy W             while something before it learns

So a step with the first k stages frozen costs the sum of flops x (1 + [stage of W >= k] + [last stage behind x >= k]).
What lies behind x is read off autograd's graph of one forward pass. Hence a layer right behind frozen ones saves its dx
as well, unless a norm before it still learns. Look-ups are no products; those of attention have no weight and are left
out, as they are saved in about the share of the products around them.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

_LOOK_UPS = (nn.Embedding, nn.EmbeddingBag)
_CONVOLUTIONS = (nn.Conv1d, nn.Conv2d, nn.Conv3d)
_TRANSPOSED = (nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d)


@dataclass
class Product:
    """Of one call: `node` computed its input, and is None where nothing before it learns."""

    weight: nn.Parameter
    flops: float
    node: Any
    is_known: bool = True  # else in a reentrant checkpoint, where nobody knows yet, or an input that learns itself


class Places(NamedTuple):
    """The stage that owns a parameter, and the first that uses it: once that is frozen the use is detached, so behind
    an input it counts as of that stage."""

    owner: dict[nn.Parameter, int]
    first_use: dict[nn.Parameter, int]
    num_stages: int


def has_products(module: nn.Module) -> bool:
    return not isinstance(module, _LOOK_UPS) and bool(_matrices(module))


def products_of(module: nn.Module, inputs: tuple[Any, ...], output: Any) -> list[Product]:
    """What a forward hook of a module sees. A module of an unknown kind takes each matrix to each of its rows."""
    x = next((item for item in inputs if isinstance(item, Tensor)), None)
    if x is None or x.dim() == 0 or x.numel() == 0:
        return []
    if isinstance(module, _CONVOLUTIONS):
        times = output.numel() // module.out_channels
    elif isinstance(module, _TRANSPOSED):
        times = x.numel() // module.in_channels
    elif isinstance(module, nn.Linear):
        times = x.numel() // module.in_features
    else:
        times = x.numel() // x.shape[-1]
    is_known = torch.is_grad_enabled() and (x.grad_fn is not None or not x.requires_grad)
    return [Product(w, 2.0 * times * w.numel(), x.grad_fn, is_known) for w in _matrices(module)]


def costs_of(products: Sequence[Product], places: Places) -> list[float]:
    """FLOPs of a step with 0, 1, ... all stages frozen."""
    behind = _Behind(places.first_use)
    placed = []
    for product in products:
        stage = places.owner.get(product.weight, -1)
        placed.append((product.flops, stage, behind.last_stage(product.node) if product.is_known else stage))
    counts = range(places.num_stages + 1)
    return [sum(flops * (1 + (stage >= k) + (last >= k)) for flops, stage, last in placed) for k in counts]


def costs_by_size(places: Places) -> list[float]:
    """The same where no forward pass was seen: as if each weight were multiplied once, and every dx needed."""
    sizes = [(float(parameter.numel()), stage) for parameter, stage in places.owner.items()]
    return [sum(2 * size * (1 + 2 * (stage >= k)) for size, stage in sizes) for k in range(places.num_stages + 1)]


def _matrices(module: nn.Module) -> list[nn.Parameter]:
    return [p for p in module.parameters(recurse=False) if p.dim() > 1]


class _Behind:
    """The last stage with a parameter behind a node of autograd's graph, -1 if there is none."""

    def __init__(self, stage_of: dict[nn.Parameter, int]) -> None:
        self._stage_of = stage_of
        self._known: dict[Any, int] = {None: -1}

    def last_stage(self, node: Any) -> int:
        waiting = [node]
        while waiting:  # without recursion: a graph may be thousands of nodes deep
            top = waiting[-1]
            before = [] if top is None else [inner for inner, _ in top.next_functions]
            missing = [inner for inner in before if inner not in self._known]
            if missing:
                waiting += missing
                continue
            waiting.pop()
            if top not in self._known:
                own = self._stage_of.get(getattr(top, "variable", None), -1)  # type: ignore[arg-type]
                self._known[top] = max([own, *(self._known[inner] for inner in before)])
        return self._known[node]
