"""Fusion inside of a module's own code: its method is traced by torch.fx, rewritten, and run instead of the method.

Only methods that straight_line.py vouches for are traced. The rewritten method runs while what was fused is still what
it was: the same submodules, of the same kind, without hooks. Otherwise, and under torch.compile, the original runs.
"""

from collections import Counter
from collections.abc import Callable, Collection
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, fx, nn

from ..probes.stand_in import StandIn
from .kinds import PLAIN, has_global_hooks, is_bare
from .rewriter import Bypassed, Rewriter
from .straight_line import Inexact, reads


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
    calls, plain = reads(module, name)
    try:
        graph = LeafTracer(name).trace(module)
    except Inexact:
        raise
    except Exception as error:  # whatever the user's code does with a stand-in
        raise Inexact(f"torch.fx cannot trace it: {type(error).__name__}") from error
    if calls != Counter(node.target for node in graph.nodes if _is_call(node)):
        raise Inexact("it calls something that torch.fx does not record")
    return graph, plain


def _is_call(node: fx.Node) -> bool:
    """Of a submodule or a function. Attributes and operators are written otherwise."""
    is_function = node.op == "call_function" and node.target is not getattr
    return node.op == "call_module" or (is_function and getattr(node.target, "__module__", None) != "_operator")


@dataclass
class Plan:
    """A rewritten method, and what has to hold for it."""

    run: Callable[..., Any]
    original: Any
    num_inputs: int
    bypassed: Bypassed
    plain: dict[str, Any]
    what: str
    parts: tuple[str, ...]  # of mechanisms.PARTS that `what` is of

    def holds(self, module: nn.Module, name: str) -> bool:
        if has_global_hooks() or getattr(type(module), name) is not self.original:
            return False
        for child_name, (child, kind_of, kind) in self.bypassed.items():
            if module._modules.get(child_name) is not child or kind_of(child) != kind or not is_bare(child):
                return False
        for attribute, value in self.plain.items():
            now = module.__dict__.get(attribute)
            if now is not value and (type(now) is not type(value) or now != value):
                return False
        return True


def make_plan(module: nn.Module, name: str = "forward", without: Collection[str] = ()) -> Plan:
    """Traces and rewrites module.name. Raises Inexact when that is not exact, or when there is nothing to fuse."""
    graph, plain = trace(module, name)
    rewriter = Rewriter(module, graph, without)
    rewriter.run()
    if not rewriter.what:
        raise Inexact("no activation after a linear layer, no gate, no norm after a sum")
    for node in graph.nodes:
        node.type = None  # annotations may be strings, which are no code
    code = graph.python_code("self")
    names = dict(code.globals)
    exec(code.src, names)
    num_inputs = sum(node.op == "placeholder" for node in graph.nodes)
    what = ", ".join(what if count == 1 else f"{count} x {what}" for what, count in rewriter.what.items())
    original, parts = getattr(type(module), name), tuple(sorted(rewriter.parts))
    return Plan(names["forward"], original, num_inputs, rewriter.bypassed, plain, what, parts)


class GraphForward(StandIn):
    """Runs the plan of a method. A copy traces anew. without: parts that are not fused."""

    without: Collection[str] = ()

    def __init__(self, module: nn.Module, name: str, plan: Plan, without: Collection[str] = ()) -> None:
        self.module, self.name, self.without = module, name, without
        self.plan: Plan | None = plan
        self.is_planned = True

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if torch.compiler.is_compiling() or kwargs or not all(type(x) in PLAIN for x in args):
            return self.original(self.module, *args, **kwargs)
        if not self.is_planned:
            self.is_planned = True
            with suppress(Inexact):  # the class may have been another one where this was saved
                self.plan = make_plan(self.module, self.name, self.without)
        plan = self.plan
        if plan is None or len(args) != plan.num_inputs or not plan.holds(self.module, self.name):
            return self.original(self.module, *args)
        return plan.run(self.module, *args)

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"plan": None, "is_planned": False}
