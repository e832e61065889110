"""The rewriting of a traced method.

    activation(linear(x))       ->  ops.linear with the activation; ops.conv1d as well
    activation(gate) * up       ->  ops.glu; of both halves of one tensor, too
    activation(x)               ->  ops.bias_act, for the activations that torch composes or runs in several passes
    norm(a + b)                 ->  ops.rms_norm or ops.layer_norm with a residual; the sum may be used again

An operation is moved only where no other can have written to its argument in between.
"""

import operator
from collections import Counter
from collections.abc import Callable, Collection
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, fx, nn

from ...nn.conv1d import convolve
from ...ops._activations import activate
from ...ops.bias_act import bias_act
from ...ops.glu import GATES, glu
from ...ops.linear import linear
from .kinds import PLAIN, activation_of, is_linear, norm_of, takes_activation
from .residual_norm import residual_norm

Bypassed = dict[str, tuple[nn.Module, Callable[[nn.Module], object], object]]
"""Submodules that are not called any more by name, each with a function of kinds.py and what it said of the module."""

_NAMES = {"relu": "ReLU", "gelu": "GELU", "gelu_tanh": "GELU (tanh)", "silu": "SiLU"}
_GATE_NAMES = {"gelu": "GEGLU", "gelu_tanh": "GEGLU (tanh)", "silu": "SwiGLU"}
_PRODUCTS = (operator.mul, torch.mul, "mul")
_CHUNKS = (torch.chunk, "chunk")
_SUMS = (operator.add, torch.add, "add")


def layer_activation(layer: nn.Module, x: Tensor, activation: str) -> Tensor:
    """Of a layer that takes_activation()."""
    if isinstance(layer, nn.Conv1d):
        return convolve(layer, x, activation)
    assert isinstance(layer, nn.Linear)
    return linear(x, layer.weight, layer.bias, activation)


def gated(gate: Any, up: Any, activation: str) -> Any:
    """activation(gate) * up, which may also broadcast or mix dtypes."""
    if type(gate) in PLAIN and type(up) in PLAIN and gate.shape == up.shape and gate.dtype == up.dtype:
        return glu(gate, up, activation)
    return activate(gate, activation) * up


def gated_halves(x: Any, activation: str, gate_first: bool) -> Any:
    """activation of one half of the last dimension times the other."""
    if type(x) in PLAIN and x.dim() and x.shape[-1] % 2 == 0:
        return glu(x, None, activation, gate_first)
    first, second = x.chunk(2, dim=-1)
    return activate(first, activation) * second if gate_first else activate(second, activation) * first


def activated(x: Any, activation: str) -> Any:
    if type(x) in PLAIN and x.dim() and x.is_floating_point():
        return bias_act(x, None, activation)
    return activate(x, activation)


_PURE = (gated, gated_halves, residual_norm, operator.getitem, *_PRODUCTS, *_SUMS, *_CHUNKS)
"""Functions and methods that write to no tensor."""


def fused_name(layer: nn.Module | None, activation: str) -> str:
    return f"{'Conv1d' if isinstance(layer, nn.Conv1d) else 'Linear'} + {_NAMES[activation]}"


PARTS = frozenset({"gates", "activations", "residuals"})  # of mechanisms.PARTS, which are fused here


def left_out(without: Collection[str]) -> frozenset[str]:
    """With what follows from it: a sum is added up in our norm, so there must be one."""
    return frozenset({*without, "residuals"} if "norms" in without else without)


def takers(without: Collection[str]) -> Callable[[object], bool]:
    """Tells which layers go on with the activation behind them."""
    return is_linear if "convolutions" in without else takes_activation


class Rewriter:
    """Fuses in a traced graph, and notes on which submodules that relies."""

    def __init__(self, module: nn.Module, graph: fx.Graph, without: Collection[str] = ()) -> None:
        self.module, self.graph, self.without = module, graph, left_out(without)
        self.takes_activation = takers(without)
        self.bypassed: Bypassed = {}
        self.what: Counter[str] = Counter()
        self.parts: set[str] = set()

    def run(self) -> None:
        fusions = (
            ("gates", self._gate), ("activations", self._layer), ("activations", self._alone),
            ("residuals", self._residual),
        )  # fmt: skip
        for part, fuse in fusions:
            if part in self.without:
                continue
            before = self.what.total()
            for node in list(self.graph.nodes):
                fuse(node)
            self.parts |= {part} if self.what.total() > before else set()
        self.graph.lint()

    def _gate(self, product: fx.Node) -> None:
        """activation(gate) * up. The activation moves to the product: nothing in between may write to gate."""
        if _called(product) not in _PRODUCTS or len(product.args) != 2 or product.kwargs:
            return
        for first, up in (product.args, product.args[::-1]):
            activation = self._activation(first)
            if activation not in GATES or not isinstance(up, fx.Node) or up is first:
                continue
            assert isinstance(first, fx.Node)
            gate = first.args[0]
            assert isinstance(gate, fx.Node)
            if self._is_in_place(first) or len(first.users) > 1 or not self._pure_between(first, product):
                continue
            halves = _halves(gate, up)
            if halves and self._pure_between(halves[0], product):
                chunk, gate_first = halves
                self._insert(product, gated_halves, (chunk.args[0], activation, gate_first))
                unused = [gate, up, chunk]
            else:
                self._insert(product, gated, (gate, up, activation))
                unused = []
            self.graph.erase_node(product)
            self._drop(first)
            for node in unused:
                self.graph.erase_node(node)
            self.what[_GATE_NAMES[activation]] += 1
            return

    def _layer(self, node: fx.Node) -> None:
        """activation(linear(x)). The activation moves up to the linear layer, whose result nobody else sees."""
        activation = self._activation(node)
        layer = node.args[0] if activation else None
        if not isinstance(layer, fx.Node) or len(layer.users) > 1 or not self.takes_activation(self._child(layer)):
            return
        assert activation is not None
        name = str(layer.target)
        with self.graph.inserting_before(layer):
            args = (self.graph.get_attr(name), layer.args[0], activation)
            fused = self.graph.call_function(layer_activation, args)
        node.replace_all_uses_with(fused)
        self._drop(node)
        self.what[fused_name(self._child(layer), activation)] += 1
        self._drop(layer, takes_activation)

    def _alone(self, node: fx.Node) -> None:
        activation = self._activation(node)
        if activation in GATES and not self._is_in_place(node):
            self._insert(node, activated, (node.args[0], activation))
            self._drop(node)
            self.what[_NAMES[activation]] += 1

    def _residual(self, norm: fx.Node) -> None:
        """norm(a + b). The norm moves up to the sum: nothing in between may write to that."""
        kind, total = norm_of(self._child(norm)), norm.args[0] if norm.args else None
        if kind is None or not isinstance(total, fx.Node) or _called(total) not in _SUMS:
            return
        if len(total.args) != 2 or total.kwargs or not all(isinstance(x, fx.Node) for x in total.args):
            return
        if not self._pure_between(total, norm):
            return
        name = str(norm.target)
        with self.graph.inserting_before(total):
            args = (self.graph.get_attr(name), *total.args)
            both = self.graph.call_function(residual_norm, args)
            norm.replace_all_uses_with(self.graph.call_function(operator.getitem, (both, 0)))
            total.replace_all_uses_with(self.graph.call_function(operator.getitem, (both, 1)))
        self._drop(norm, norm_of)
        self.graph.erase_node(total)
        self.what[f"residual + {kind}"] += 1

    def _insert(self, node: fx.Node, function: Callable[..., Any], args: tuple[Any, ...]) -> None:
        """Calls the function in the place of the node, which nobody uses any more."""
        with self.graph.inserting_before(node):
            node.replace_all_uses_with(self.graph.call_function(function, args))

    def _drop(self, node: fx.Node, kind_of: Callable[[nn.Module], object] = activation_of) -> None:
        """Takes out a call, and remembers the module that is bypassed."""
        child = self.module._modules[str(node.target)] if node.op == "call_module" else None
        if child is not None:
            self.bypassed[str(node.target)] = (child, kind_of, kind_of(child))
        self.graph.erase_node(node)

    def _activation(self, node: object) -> str | None:
        """The activation that this node applies to its first argument."""
        if not isinstance(node, fx.Node) or not node.args or not isinstance(node.args[0], fx.Node):
            return None
        if node.op == "call_module":
            return activation_of(self._child(node))
        options = dict(zip(("inplace",), node.args[1:], strict=False)) | node.kwargs
        if len(node.args) > 2 or not options.keys() <= {"inplace", "approximate"}:
            return None
        called = _called(node)
        if called in (F.relu, torch.relu, torch.relu_, "relu", "relu_"):
            return "relu"
        if called is F.silu:
            return "silu"
        if called is F.gelu:
            return {"none": "gelu", "tanh": "gelu_tanh"}.get(str(options.get("approximate", "none")))
        return None

    def _is_in_place(self, node: fx.Node) -> bool:
        if node.op == "call_module":
            return bool(getattr(self.module._modules[str(node.target)], "inplace", False))
        name = node.target if isinstance(node.target, str) else getattr(node.target, "__name__", "")
        return name.endswith("_") or len(node.args) > 1 or bool(node.kwargs.get("inplace"))

    def _child(self, node: fx.Node) -> nn.Module | None:
        """The submodule that the node calls with one argument and nothing else."""
        is_plain = node.op == "call_module" and len(node.args) == 1 and not node.kwargs
        return self.module._modules[str(node.target)] if is_plain else None

    def _pure_between(self, first: fx.Node, last: fx.Node) -> bool:
        """Whether no operation after the first and before the last writes to tensors. Of other modules nobody knows."""
        node = first.next
        while node is not last:
            if not (
                takes_activation(self._child(node))
                or node.op == "get_attr"
                or (_called(node) in _PURE and "out" not in node.kwargs)
                or (self._activation(node) and not self._is_in_place(node))
            ):
                return False
            node = node.next
        return True


def _called(node: fx.Node) -> Any:
    """The function, or the name of the method of a tensor. None for a submodule, whatever its name."""
    return node.target if node.op in ("call_function", "call_method") else None


def _halves(gate: fx.Node, up: fx.Node) -> tuple[fx.Node, bool] | None:
    """(node, whether gate comes first) when a node cuts the last dimension into gate and up, and into nothing else."""
    if gate.target is not operator.getitem or up.target is not operator.getitem or gate.args[0] is not up.args[0]:
        return None
    chunk, indices = gate.args[0], (gate.args[1], up.args[1])
    if not isinstance(chunk, fx.Node) or _called(chunk) not in _CHUNKS or indices not in ((0, 1), (1, 0)):
        return None
    options = dict(zip(("chunks", "dim"), chunk.args[1:], strict=False)) | chunk.kwargs
    if options != {"chunks": 2, "dim": -1} or not len(gate.users) == len(up.users) == 1 or len(chunk.users) != 2:
        return None
    return chunk, indices == (0, 1)
