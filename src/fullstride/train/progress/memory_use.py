"""What the memory of a training step is for, measured in the run itself: in one micro-batch of each process.

    parameters    weights and buffers; of split weights both halves
    optimizer     its states; Lookahead's slow weights, too
    gradients     after the last micro-batch of a step, with the memory that is kept for them
    activations   what malloc has handed out when forward ends, beyond what it had when forward began
    temporary     what it had handed out at most in backward beyond that: gradients of activations, products' buffers
    resident      of the process when the step ends; `peak`: the most it ever was

It is the last micro-batch of the second step: states, main gradients and buffers are there by then. No value is
changed: malloc is asked, and a hook before each node of the graph, which changes no gradient, tells when to ask it in
backward. (Hooks of saved tensors would tell, too, but torch.func.grad in a forward raises where there are any.)
Where malloc does not tell (not glibc), activations are the saved tensors as backward would take them out, so those
kept as bf16 are counted as fp32; and temporary is not known.
"""

import contextlib
from collections.abc import Iterable, Iterator
from typing import Any

from torch import Tensor, nn

from ...machine import heap, memory
from ...ops import _kept_gradients


class MemoryUse:
    """Of one process, which begins at step `first` of `steps`."""

    def __init__(self, model: nn.Module, first: int, steps: int, accumulate: int) -> None:
        self._model = model
        self._place = (min(first + 1, steps - 1), accumulate - 1)
        self._found: dict[str, int | None] = {}
        self._is_on = False

    @contextlib.contextmanager
    def forward(self, step: int, micro: int) -> Iterator[None]:
        """Around the forward of a micro-batch."""
        if (step, micro) != self._place:
            yield
            return
        self._is_on = True
        self._before = heap.in_use()
        yield
        self._most = heap.in_use()
        if self._most is not None and self._before is not None:
            self._found["activations"] = max(0, self._most - self._before)

    @contextlib.contextmanager
    def backward(self, loss: Tensor) -> Iterator[None]:
        """Around the backward that follows, of what forward gave."""
        if not self._is_on:
            yield
            return
        self._is_on = False
        before = _sizes(self._gradients())
        nodes = _nodes(loss)
        if self._most is None or self._before is None:
            own = set(_sizes([*self._model.parameters(), *self._model.buffers()]))
            saved = _sizes(_saved(nodes))
            self._found["activations"] = sum(size for key, size in saved.items() if key not in own)
            handles = []
        else:
            handles = [node.register_prehook(self._look) for node in nodes]
            hooks = (heap.in_use() or 0) - self._most  # bytes that are there to measure
            self._before, self._most = self._before + hooks, self._most + hooks
        del nodes
        try:
            yield
        finally:
            for handle in handles:
                handle.remove()
        sizes = _sizes(self._gradients())
        self._found["gradients"] = sum(sizes.values())
        new = sum(sizes.values()) - sum(before.values())
        if self._most is None or self._before is None:
            self._found["temporary"] = None
        else:  # gradients that were not there before have a line of their own
            most = self._most - self._before - max(0, new)
            self._found["temporary"] = max(0, most - (self._found["activations"] or 0))

    def take(self, optimizer: Any) -> dict[str, int | None] | None:
        """After every step of the optimizer: the bytes, once."""
        if "gradients" not in self._found:
            return None
        states = [(key, x) for state in optimizer.state.values() for key, x in state.items() if isinstance(x, Tensor)]
        own = [*self._model.parameters(), *self._model.buffers(), *(x for key, x in states if key == "weight_lo")]
        parameters = _sizes(own)
        rest = {key: size for key, size in _sizes(x for _, x in states).items() if key not in parameters}
        found = {
            "parameters": sum(parameters.values()),
            "optimizer": sum(rest.values()),
            **{name: self._found[name] for name in ("gradients", "activations", "temporary")},
            "resident": memory.resident_bytes(),
            "peak": memory.peak_bytes(),
        }
        self._found = {}
        return found

    def _gradients(self) -> list[Tensor]:
        parameters = list(self._model.parameters())
        return [p.grad for p in parameters if p.grad is not None] + _kept_gradients.buffers(parameters)

    def _look(self, _: Any) -> None:
        """Before a node of backward."""
        now = heap.in_use()
        if now is not None and self._most is not None:
            self._most = max(self._most, now)


def _nodes(loss: Tensor) -> list[Any]:
    """Of the graph behind it, but those that add a gradient to a parameter: they may live on in the next step."""
    found: dict[Any, None] = {}
    open_ends = [loss.grad_fn]
    while open_ends:
        node = open_ends.pop()
        if node is not None and node not in found and type(node).__name__ != "AccumulateGrad":
            found[node] = None
            open_ends += [other for other, _ in node.next_functions]
    return list(found)


def _saved(nodes: Iterable[Any]) -> list[Tensor]:
    found: list[Tensor] = []
    for node in nodes:
        for name in (name for name in dir(node) if name == "saved_tensors" or name.startswith("_saved_")):
            with contextlib.suppress(RuntimeError):  # changed in place since, which is backward's to say
                value = getattr(node, name)
                found += [x for x in (value if isinstance(value, tuple) else (value,)) if isinstance(x, Tensor)]
    return found


def _sizes(tensors: Iterable[Tensor]) -> dict[int, int]:
    """Bytes by storage: each piece of memory once, however many tensors show it."""
    return {tensor.untyped_storage().data_ptr(): tensor.untyped_storage().nbytes() for tensor in tensors}
