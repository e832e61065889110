from collections.abc import Iterator
from functools import partial

import torch

from ...ops.quantize import Per, dequantize, dequantize_reference, quantize, quantize_reference
from ..row import Row


def rows() -> Iterator[Row]:
    axes: list[Per] = ["row", "column"]
    for dtype, name in [(torch.float32, "fp32"), (torch.bfloat16, "bf16")]:
        x = torch.randn(8192, 4096).to(dtype)
        for per in axes:
            q, scale = quantize(x, per)
            yield Row(
                op="quantize",
                case=f"{name} 8192 x 4096 to int8, a scale per {per}",
                ours=partial(quantize, x, per),
                peers={"torch": partial(quantize_reference, x, per)},
                bytes=x.numel() * (dtype.itemsize * (1 if per == "row" else 2) + 1),  # columns are read twice
                streaming=True,
            )
            yield Row(
                op="quantize",
                case=f"int8 to {name} 8192 x 4096, a scale per {per}",
                ours=partial(dequantize, q, scale, per, dtype),
                peers={"torch": partial(dequantize_reference, q, scale, per, dtype)},
                bytes=x.numel() * (dtype.itemsize + 1),
                streaming=True,
            )
