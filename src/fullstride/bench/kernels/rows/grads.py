from collections.abc import Iterator
from functools import partial

import torch

from ....ops.grads import accumulate_, accumulate_reference_, grad_norm, scale_
from ..row import Row

SHAPES = [(4096, 4096), (4096, 1024), (1024,), (1000, 999)] * 2  # 44 million elements


def rows() -> Iterator[Row]:
    targets = [torch.randn(shape) for shape in SHAPES]
    for dtype, name in [(torch.float32, "fp32"), (torch.bfloat16, "bf16")]:
        tensors = [torch.randn(shape).to(dtype) for shape in SHAPES]
        numel, size = sum(t.numel() for t in tensors), dtype.itemsize
        yield Row(
            case=f"norm and finite check {name}, list of 8",
            ours=partial(grad_norm, tensors),
            peers={"torch": partial(torch.nn.utils.get_total_norm, tensors, error_if_nonfinite=True)},
            bytes=numel * size,
            mix="read",
            streaming=True,
        )
        yield Row(
            case=f"accumulate {name} into fp32, list of 8",
            ours=partial(accumulate_, targets, tensors, 0.5),
            peers={"torch": partial(accumulate_reference_, targets, tensors, 0.5)},
            bytes=numel * (8 + size),
            mix="update",
            streaming=True,
        )
        yield Row(
            case=f"scale {name}, list of 8",
            ours=partial(scale_, tensors, 1.0),
            peers={"torch": partial(torch._foreach_mul_, tensors, 1.0)},
            bytes=2 * numel * size,
            mix="update",
            streaming=True,
        )
