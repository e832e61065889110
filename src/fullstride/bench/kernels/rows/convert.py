from collections.abc import Callable, Iterator
from functools import partial

import torch
from torch import Tensor

from ....ops._formats import merge as merge_reference
from ....ops._formats import split as split_reference
from ....ops.convert import merge, split, stochastic_reference, to_bf16, to_float, to_fp16
from ..row import Row

NUMEL = 1 << 24  # 64 MiB of fp32 and 32 of the narrow formats


def rows() -> Iterator[Row]:
    x = torch.randn(NUMEL)
    for dtype, label, narrow in [(torch.bfloat16, "bf16", to_bf16), (torch.float16, "fp16", to_fp16)]:
        narrow_x = x.to(dtype)
        yield _row(f"fp32 to {label}", partial(narrow, x), partial(x.to, dtype), 6)
        yield _row(f"{label} to fp32", partial(to_float, narrow_x), partial(narrow_x.to, torch.float32), 6)
    yield _row(
        "fp32 to bf16, stochastic", partial(to_bf16, x, stochastic=True, seed=1),
        partial(stochastic_reference, x, 1, 0, 0), 6,
    )  # fmt: skip
    hi, lo = split(x)
    yield _row("split", partial(split, x), partial(split_reference, x), 8)
    yield _row("merge", partial(merge, hi, lo), partial(merge_reference, hi, lo), 8)


def _row(case: str, ours: Callable[[], object], peer: Callable[[], Tensor | tuple[Tensor, ...]], bytes: int) -> Row:
    """`bytes` an element, read and written."""
    return Row(case=f"{case}, 16 million", ours=ours, peers={"torch": peer}, bytes=bytes * NUMEL, streaming=True)
