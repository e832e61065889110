from collections.abc import Callable, Iterator
from functools import partial

import torch
from torch import Tensor

from ....ops.gemm import gemm
from ....ops.products import backends, product_by
from ..row import Row

# (rows, in, out) of linear layers: of an MLP with a small batch, of a transformer of 768, and of its head.
SHAPES = [(128, 4096, 4096), (1024, 768, 768), (1024, 768, 2048), (1024, 2048, 768), (1024, 768, 32000)]


def rows() -> Iterator[Row]:
    for shape in SHAPES:
        yield from _products(*shape, torch.float32)
    # Forward alone: torch's other bf16 products can take seconds on a CPU without the instructions.
    yield next(_products(1024, 768, 768, torch.bfloat16))


def _products(num_rows: int, cols: int, out: int, dtype: torch.dtype) -> Iterator[Row]:
    x, weight, g = (torch.randn(shape).to(dtype) for shape in ((num_rows, cols), (out, cols), (num_rows, out)))
    for name, a, b in (("x W^T", x, weight.t()), ("g W", g, weight), ("g^T x", g.t(), x)):
        result = x.new_empty(a.shape[0], b.shape[1])
        yield Row(
            case=f"{name} {'fp32' if dtype is torch.float32 else 'bf16'} {num_rows} x {cols} x {out}",
            ours=partial(gemm, a, b, result),
            peers=_peers(a, b, result),
        )


def _peers(a: Tensor, b: Tensor, result: Tensor) -> dict[str, Callable[[], object]]:
    peers: dict[str, Callable[[], object]] = {"torch": partial(torch.mm, a, b, out=result)}
    if "onednn" in backends(a.dtype):
        peers["onednn"] = partial(product_by, "onednn", a, b)
    return peers
