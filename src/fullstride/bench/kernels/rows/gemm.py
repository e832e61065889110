from collections.abc import Callable, Iterator
from functools import partial

import torch
from torch import Tensor

from ....machine.streams import best_time
from ....ops.gemm import gemm
from ....ops.products import backends, product_by
from ..row import Row, counted, name_of

# (rows, in, out) of linear layers: of an MLP with a small batch, of a transformer of 768, and of its head.
SHAPES = [(128, 4096, 4096), (1024, 768, 768), (1024, 768, 2048), (1024, 2048, 768), (1024, 768, 32000)]
SQUARES = [128, 256, 512, 1024, 2048, 4096]
MOST_SECONDS = 5.0  # that a call of torch may take


def rows() -> Iterator[Row]:
    for shape in SHAPES:
        yield from _products(*shape, torch.float32)
    # Forward alone: torch's other bf16 products can take seconds on a CPU without the instructions.
    yield next(_products(1024, 768, 768, torch.bfloat16))
    yield from squares(torch.float32)
    yield from squares(torch.bfloat16)


def _products(num_rows: int, cols: int, out: int, dtype: torch.dtype) -> Iterator[Row]:
    x, weight, g = (torch.randn(shape).to(dtype) for shape in ((num_rows, cols), (out, cols), (num_rows, out)))
    for name, a, b in (("x W^T", x, weight.t()), ("g W", g, weight), ("g^T x", g.t(), x)):
        yield _row(f"{name} {name_of(dtype)} {num_rows} x {cols} x {out}", a, b)


def squares(dtype: torch.dtype, sizes: list[int] = SQUARES, most_seconds: float = MOST_SECONDS) -> Iterator[Row]:
    """torch's product is left out where the size before says that a call would take longer than `most_seconds`."""
    left_out: dict[str, str] = {}
    before = None
    for size in sizes:
        if before and not left_out and 8 * best_time(before, seconds=0) > most_seconds:
            left_out = {"torch": f"more than {most_seconds:g} s a call"}
        a, b = torch.randn(2, size, size).to(dtype)
        before = partial(torch.mm, a, b)
        yield _row(f"square {name_of(dtype)} {size} x {size} x {size}", a, b, left_out)


def _row(case: str, a: Tensor, b: Tensor, left_out: dict[str, str] | None = None) -> Row:
    result = a.new_empty(a.shape[0], b.shape[1])
    left_out = left_out or {}
    return Row(
        case=case,
        ours=partial(gemm, a, b, result),
        peers={name: call for name, call in _peers(a, b, result).items() if name not in left_out},
        flops=counted(torch.mm, a, b),
        precision=name_of(a.dtype),
        left_out=left_out,
    )


def _peers(a: Tensor, b: Tensor, result: Tensor) -> dict[str, Callable[[], object]]:
    peers: dict[str, Callable[[], object]] = {"torch": partial(torch.mm, a, b, out=result)}
    if "onednn" in backends(a.dtype):
        peers["onednn"] = partial(product_by, "onednn", a, b)
    return peers
