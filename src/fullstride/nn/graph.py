"""Fusion inside of a module's own code: its method is traced by torch.fx, rewritten, and run instead of the method.

    activation(linear(x))       ->  ops.linear with the activation
    activation(gate) * up       ->  ops.glu
    activation(x)               ->  ops.bias_act, for the activations that torch composes or runs in several passes

Only methods that straight_line.py vouches for are traced. The rewritten method runs while what was fused is still what
it was: the same submodules, of the same kind, without hooks. Otherwise, and under torch.compile, the original runs.
"""

import inspect
import operator
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, fx, nn

from ..ops._activations import activate
from ..ops.bias_act import bias_act
from ..ops.glu import GATES, glu
from ..ops.linear import linear
from .kinds import activation_of, has_global_hooks, is_bare, is_linear
from .straight_line import Inexact, reads

PLAIN = (Tensor, nn.Parameter)
_NAMES = {"relu": "ReLU", "gelu": "GELU", "gelu_tanh": "GELU (tanh)", "silu": "SiLU"}
_GATE_NAMES = {"gelu": "GEGLU", "gelu_tanh": "GEGLU (tanh)", "silu": "SwiGLU"}
_PRODUCTS: dict[Any, bool] = {operator.mul: True, torch.mul: True, "mul": True}


def linear_activation(layer: nn.Module, x: Tensor, activation: str) -> Tensor:
    assert isinstance(layer, nn.Linear)
    return linear(x, layer.weight, layer.bias, activation)


def gated(gate: Any, up: Any, activation: str) -> Any:
    """activation(gate) * up, which may also broadcast or mix dtypes."""
    if type(gate) in PLAIN and type(up) in PLAIN and gate.shape == up.shape and gate.dtype == up.dtype:
        return glu(gate, up, activation)
    return activate(gate, activation) * up


def activated(x: Any, activation: str) -> Any:
    if type(x) in PLAIN and x.dim() and x.is_floating_point():
        return bias_act(x, None, activation)
    return activate(x, activation)


def linear_name(activation: str) -> str:
    return f"Linear + {_NAMES[activation]}"


class LeafTracer(fx.Tracer):
    """Records calls of submodules as they are, and refuses tensors from nowhere: they would stay as they are now."""

    proxy_buffer_attributes = True

    def __init__(self, name: str) -> None:
        super().__init__(autowrap_modules=())  # type: ignore[arg-type]
        self.traced_func_name = name

    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        return True

    def create_arg(self, a: Any) -> Any:
        if isinstance(a, (Tensor, nn.Module)):
            raise Inexact(f"it uses a {type(a).__name__} that is neither an argument nor a parameter nor a buffer")
        return super().create_arg(a)


def trace(module: nn.Module, name: str) -> tuple[fx.Graph, dict[str, Any]]:
    """The operations of module.name, and the plain attributes on which they depend. Raises Inexact."""
    found = reads(module, name)
    try:
        graph = LeafTracer(name).trace(module)
    except Inexact:
        raise
    except Exception as error:  # whatever the user's code does with a stand-in
        raise Inexact(f"torch.fx cannot trace it: {type(error).__name__}") from error
    called = Counter(str(node.target) for node in graph.nodes if node.op == "call_module")
    functions = Counter(
        node.target
        for node in graph.nodes
        if node.op == "call_function" and node.target is not getattr and not _is_operator(node.target)
    )
    if called != found.children or functions != found.functions:
        raise Inexact("it calls something that torch.fx does not record")
    return graph, found.plain


def _is_operator(function: Any) -> bool:
    return getattr(function, "__module__", None) == "_operator"


class Rewriter:
    """Fuses in a traced graph, and notes on which submodules that relies."""

    def __init__(self, module: nn.Module, graph: fx.Graph) -> None:
        self.module, self.graph = module, graph
        self.layers: dict[str, nn.Module] = {}  # bypassed linear layers by name
        self.activations: dict[str, tuple[nn.Module, str]] = {}  # bypassed activations by name
        self.what: Counter[str] = Counter()

    def run(self) -> None:
        for fuse in (self._gate, self._linear, self._alone):
            for node in list(self.graph.nodes):
                fuse(node)
        self.graph.lint()

    def _gate(self, product: fx.Node) -> None:
        """activation(gate) * up. The activation moves to the product: nothing in between may write to gate."""
        if product.target not in _PRODUCTS or len(product.args) != 2 or product.kwargs:
            return
        for first, up in (product.args, product.args[::-1]):
            activation = self._activation(first)
            if activation not in GATES or not isinstance(up, fx.Node) or up is first:
                continue
            assert isinstance(first, fx.Node)
            gate = first.args[0]
            if len(first.users) > 1 or not all(map(self._is_pure, _between(first, product))):
                continue
            self._replace(product, gated, (gate, up, activation))
            self._drop(first)
            self.what[_GATE_NAMES[activation]] += 1
            return

    def _linear(self, node: fx.Node) -> None:
        """activation(linear(x)). The activation moves up to the linear layer, whose result nobody else sees."""
        activation = self._activation(node)
        layer = node.args[0] if activation else None
        if not isinstance(layer, fx.Node) or len(layer.users) > 1 or not self._is_linear(layer):
            return
        assert activation is not None
        name = str(layer.target)
        with self.graph.inserting_before(layer):
            fused = self.graph.call_function(
                linear_activation, (self.graph.get_attr(name), layer.args[0], activation)
            )
        node.replace_all_uses_with(fused)
        self._drop(node)
        self.graph.erase_node(layer)
        self.layers[name] = self.module._modules[name]  # type: ignore[assignment]
        self.what[linear_name(activation)] += 1

    def _alone(self, node: fx.Node) -> None:
        activation = self._activation(node)
        if activation in GATES and not self._is_in_place(node):
            self._replace(node, activated, (node.args[0], activation), keep=True)
            self._drop(node)
            self.what[_NAMES[activation]] += 1

    def _replace(self, node: fx.Node, function: Callable[..., Any], args: tuple[Any, ...], keep: bool = False) -> None:
        with self.graph.inserting_before(node):
            node.replace_all_uses_with(self.graph.call_function(function, args))
        if not keep:
            self.graph.erase_node(node)

    def _drop(self, activation: fx.Node) -> None:
        """Takes out a call of an activation, and remembers the module that is bypassed."""
        if activation.op == "call_module":
            name = str(activation.target)
            module = self.module._modules[name]
            assert module is not None
            self.activations[name] = (module, activation_of(module) or "")
        self.graph.erase_node(activation)

    def _activation(self, node: object) -> str | None:
        """The activation that this node applies to its first argument."""
        if not isinstance(node, fx.Node) or not node.args or not isinstance(node.args[0], fx.Node):
            return None
        if node.op == "call_module":
            single = len(node.args) == 1 and not node.kwargs
            return activation_of(self.module._modules[str(node.target)]) if single else None
        options = dict(zip(("inplace",), node.args[1:], strict=False)) | node.kwargs
        if len(node.args) > 2 or not options.keys() <= {"inplace", "approximate"}:
            return None
        if node.target in (F.relu, torch.relu, torch.relu_, "relu", "relu_"):
            return "relu"
        if node.target is F.silu:
            return "silu"
        if node.target is F.gelu:
            return {"none": "gelu", "tanh": "gelu_tanh"}.get(str(options.get("approximate", "none")))
        return None

    def _is_in_place(self, node: fx.Node) -> bool:
        if node.op == "call_module":
            return bool(getattr(self.module._modules[str(node.target)], "inplace", False))
        return len(node.args) > 1 or bool(node.kwargs.get("inplace"))

    def _is_linear(self, node: fx.Node) -> bool:
        if node.op != "call_module" or len(node.args) != 1 or node.kwargs:
            return False
        return is_linear(self.module._modules[str(node.target)])

    def _is_pure(self, node: fx.Node) -> bool:
        """Whether it writes to none of its arguments. Of an unknown submodule nobody knows."""
        return self._is_linear(node) or node.op == "get_attr" or node.target in (gated, *_PRODUCTS)


def _between(first: fx.Node, last: fx.Node) -> list[fx.Node]:
    nodes, node = [], first.next
    while node is not last:
        nodes.append(node)
        node = node.next
    return nodes


@dataclass
class Plan:
    """A rewritten method, and what has to hold for it."""

    run: Callable[..., Any]
    original: Any
    num_inputs: int
    layers: dict[str, nn.Module]
    activations: dict[str, tuple[nn.Module, str]]
    plain: dict[str, Any]
    what: str

    def holds(self, module: nn.Module, name: str) -> bool:
        if has_global_hooks() or getattr(type(module), name) is not self.original:
            return False
        for child, layer in self.layers.items():
            if module._modules.get(child) is not layer or not is_linear(layer) or not is_bare(layer):
                return False
        for child, (act, activation) in self.activations.items():
            if module._modules.get(child) is not act or activation_of(act) != activation or not is_bare(act):
                return False
        for attribute, value in self.plain.items():
            now = module.__dict__.get(attribute)
            if now is not value and (type(now) is not type(value) or now != value):
                return False
        return True


def make_plan(module: nn.Module, name: str = "forward") -> Plan:
    """Traces and rewrites module.name. Raises Inexact when that is not exact, or when there is nothing to fuse."""
    graph, plain = trace(module, name)
    rewriter = Rewriter(module, graph)
    rewriter.run()
    if not rewriter.what:
        raise Inexact("no activation after a linear layer, and no gate")
    for node in graph.nodes:
        node.type = None  # annotations may be strings, which are no code
    code = graph.python_code("self")
    names = dict(code.globals)
    exec(code.src, names)
    num_inputs = sum(node.op == "placeholder" for node in graph.nodes)
    return Plan(
        names["forward"], getattr(type(module), name), num_inputs, rewriter.layers, rewriter.activations, plain,
        ", ".join(what if count == 1 else f"{count} x {what}" for what, count in rewriter.what.items()),
    )  # fmt: skip


class GraphForward:
    """Stands in the module's __dict__ before its method. Copies and pickles as its module, and then traces anew."""

    def __init__(self, module: nn.Module, name: str, plan: Plan) -> None:
        self.module, self.name = module, name
        self.plan: Plan | None = plan

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if torch.compiler.is_compiling() or kwargs or not all(type(x) in PLAIN for x in args):
            return self.original(*args, **kwargs)
        if self.plan is None:
            try:
                self.plan = make_plan(self.module, self.name)
            except Inexact:  # it was not where it was saved: the class is another one here
                del self.module.__dict__[self.name]
                return self.original(*args)
        if len(args) != self.plan.num_inputs or not self.plan.holds(self.module, self.name):
            return self.original(*args)
        return self.plan.run(self.module, *args)

    @property
    def original(self) -> Callable[..., Any]:
        return getattr(type(self.module), self.name).__get__(self.module)

    @property
    def __signature__(self) -> inspect.Signature:
        """Some trainers look at the names of a model's arguments."""
        return inspect.signature(self.original)

    def __getstate__(self) -> dict[str, Any]:
        return {"module": self.module, "name": self.name, "plan": None}
