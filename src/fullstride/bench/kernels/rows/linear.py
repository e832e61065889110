from collections.abc import Callable, Iterator

import torch
from torch import Tensor

from ....ops.linear import linear, linear_reference
from ....ops.products import backend, backends, set_backend
from ..row import PORTABLE, Row, counted, forward_backward


def rows() -> Iterator[Row]:
    for shape in ((128, 4096, 4096), (1024, 768, 2048)):
        for name in backends(torch.float32):
            yield _row(*shape, "relu", name)
    yield _row(1024, 768, 2048, "gelu", "native")


def _row(num_rows: int, cols: int, out: int, activation: str, name: str) -> Row:
    x, weight, bias = torch.randn(num_rows, cols), torch.randn(out, cols) / cols**0.5, torch.randn(out)
    inputs, gradient = [t.requires_grad_() for t in (x, weight, bias)], torch.randn(num_rows, out)
    reference = _layer(linear_reference, activation)
    return Row(
        case=f"{activation} by {name}, forward+backward fp32 {num_rows} x {cols} x {out}",
        ours=_with_backend(name, forward_backward(_layer(linear, activation), *inputs, gradient=gradient)),
        peers={"torch": forward_backward(reference, *inputs, gradient=gradient)},
        flops=counted(reference, *inputs),
        left_out={} if name == "native" else {PORTABLE: f"the products are those of {name}"},
    )


def _layer(function: Callable[..., Tensor], activation: str) -> Callable[..., Tensor]:
    return lambda x, weight, bias: function(x, weight, bias, activation)


def _with_backend(name: str, call: Callable[[], object]) -> Callable[[], None]:
    def run() -> None:
        before = backend(torch.float32)
        set_backend(torch.float32, name)
        try:
            call()
        finally:
            set_backend(torch.float32, before)

    return run
