"""What a call costs: operations of its products, and the bytes that have to go through memory, each once.

A row of the table: what is read and written forward, and what backward, in tensors the size of x unless said.

    norm              x -> y                              dy, x -> dx
    norm of a sum     a, b -> sum, y                      dy, sum, the sum's other gradient -> dx
    activation alone  x -> y                              dy, x -> dx
    glu               gate, up -> y                       dy, gate, up -> dgate, dup
    dropout, rope     x -> y                              dy -> dx: masks and angles are made anew
    softmax           x -> y                              dy, y -> dx
    cross_entropy     logits -> their gradient            nothing: forward has done it
    embedding         rows -> y, once more if y is fp32   dy -> the whole table
    linear, conv      x, weight -> y, and what the        dy, weight -> dx, and dy, x -> dweight; with a bias or an
                      activation keeps                    activation one pass more over dy
    attention         query, key, value -> y              the same, y, dy -> their gradients; no scores
    head and loss     x, weight -> dx, dweight            nothing: forward has done it, chunk by chunk
    others of torch   all arguments -> all results        as autograd calls them: rows of their own
"""

from collections.abc import Callable
from typing import NamedTuple

from .calls import Call, nbytes

FORWARD, BACKWARD = "forward", "backward"


class Cost(NamedTuple):
    phase: str
    flops: int
    read: int  # bytes
    written: int

    @property
    def nbytes(self) -> int:
        return self.read + self.written

    @property
    def mix(self) -> str:
        """That of machine/streams.py which is nearest."""
        return "read" if 8 * self.written < self.read else "write"


class _Tensors(NamedTuple):
    """How many tensors as large as x are read and written."""

    forward: tuple[int, int]
    backward: tuple[int, int]


_PASSES = {
    "layer_norm": _Tensors((1, 1), (2, 1)),
    "rms_norm": _Tensors((1, 1), (2, 1)),
    "norm of a sum": _Tensors((2, 2), (3, 1)),
    "activation": _Tensors((1, 1), (2, 1)),
    "glu": _Tensors((2, 1), (3, 2)),
    "dropout": _Tensors((1, 1), (1, 1)),
    "rope": _Tensors((1, 1), (1, 1)),
    "softmax": _Tensors((1, 1), (2, 1)),
    "cross_entropy": _Tensors((1, 1), (0, 0)),
}


def of(call: Call) -> list[Cost]:
    """Forward, and backward if it came by. Nothing of a cost that is none."""
    name = "norm of a sum" if call.options.get("residual") else call.name
    if call.is_of_torch:
        costs = _others(call)
    else:
        costs = _passes(call, _PASSES[name]) if name in _PASSES else _FORMULAS.get(name, _others)(call)
    return [cost for cost in costs if cost.nbytes or cost.flops]


def _passes(call: Call, tensors: _Tensors) -> list[Cost]:
    size = next(iter(call.inputs.values())).nbytes
    (read, written), (read_back, written_back) = tensors
    forward = Cost(FORWARD, 0, read * size, written * size)
    backward = Cost(BACKWARD, 0, read_back * size, written_back * size)
    return [forward, backward] if call.wants else [forward]


def _others(call: Call) -> list[Cost]:
    phase = BACKWARD if call.is_backward else FORWARD
    return [Cost(phase, call.flops, nbytes(call.inputs.values()), nbytes(call.outputs.values()))]


def _layer(call: Call) -> list[Cost]:
    """y = activation(x W + b), a linear layer or a convolution."""
    x, weight, y = call.inputs["x"], call.inputs["weight"], call.outputs["y"]
    wants, activation = call.wants or frozenset(), call.options.get("activation", "none")
    kept = y.nbytes if wants and activation not in ("none", "relu") else 0
    forward = Cost(FORWARD, call.flops, nbytes(call.inputs.values()), y.nbytes + kept)
    dx, dweight = x.nbytes * ("x" in wants), weight.nbytes * ("weight" in wants)
    through = (2 if activation != "none" else 1) * y.nbytes * (activation != "none" or "bias" in wants)
    read = y.nbytes * (bool(dx) + bool(dweight)) + (weight.nbytes if dx else 0) + (x.nbytes if dweight else 0) + through
    written = dx + dweight + (y.nbytes if activation != "none" else 0)
    return [forward, Cost(BACKWARD, call.flops * (bool(dx) + bool(dweight)), read, written)] if wants else [forward]


def _attention(call: Call) -> list[Cost]:
    read, y = nbytes(call.inputs.values()), call.outputs["y"].nbytes
    forward = Cost(FORWARD, call.flops, read, y)
    gradients = nbytes(call.inputs[role] for role in call.wants or ())
    return [forward, Cost(BACKWARD, 2 * call.flops, read + 2 * y, gradients)] if call.wants else [forward]


def _head(call: Call) -> list[Cost]:
    """All gradients in forward, in fp32."""
    x, weight, wants = call.inputs["x"], call.inputs["weight"], call.wants or frozenset()
    gradients = sum(4 * call.inputs[role].numel for role in wants)
    num_products = 1 + ("x" in wants) + ("weight" in wants)
    logits = x.shape[0] * weight.shape[0] * x.dtype.itemsize
    read = x.nbytes * (1 + ("weight" in wants)) + weight.nbytes * (1 + ("x" in wants)) + logits * num_products
    return [Cost(FORWARD, num_products * call.flops, read, 2 * logits + gradients)]


def _embedding(call: Call) -> list[Cost]:
    indices, weight, y = call.inputs["indices"], call.inputs["weight"], call.outputs["y"]
    rows = y.numel * weight.dtype.itemsize
    widened = y.nbytes + rows if y.dtype is not weight.dtype else 0
    forward = Cost(FORWARD, 0, indices.nbytes + rows + (rows if widened else 0), rows + (y.nbytes if widened else 0))
    backward = Cost(BACKWARD, 0, indices.nbytes + rows + widened, weight.nbytes)
    return [forward, backward] if call.wants else [forward]


_FORMULAS: dict[str, Callable[[Call], list[Cost]]] = {
    "linear": _layer,
    "convolution": _layer,
    "attention": _attention,
    "linear_cross_entropy": _head,
    "embedding": _embedding,
}
