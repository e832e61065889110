"""The measured rates of square matrix products, in GFLOP/s, as torch multiplies them: what `fullstride info` shows."""

from collections.abc import Callable
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor

from ..machine.streams import best_time
from . import choosing
from .trials.verdicts import FINE, operation_name, product_name

_FIRST_SIZE, _LAST_SIZE = 256, 2048


def rates(seconds: float = 0.15) -> dict[str, float]:
    """GFLOP/s of square matrix products by precision. What this torch cannot multiply is left out, and what was not
    found to work in a child process is not tried in this one."""
    verdicts, found = choosing.choose("fp32").verdicts, {}
    for name, product in _PRODUCTS.items():
        if name != "fp32" and verdicts.get(_NAMES[name]) != FINE:
            continue
        try:
            found[name] = _product_rate(*product, seconds)
        except (RuntimeError, AttributeError, NotImplementedError):
            continue
    return found


def _product_rate(dtype: torch.dtype, multiply: Callable[[Tensor, Tensor], object], seconds: float) -> float:
    """Doubles the size while the next one would take less than half of the time.

    Its time is foreseen as that of this one plus eight times what the last doubling added: on a loaded machine waking
    the threads alone takes milliseconds, which do not grow with the size.
    """

    def time(size: int, seconds: float = 0) -> float:
        return best_time(partial(multiply, *_random(size, dtype)), seconds)

    size = _FIRST_SIZE
    before, now = time(size // 2), time(size)
    while size < _LAST_SIZE and now + 8 * max(0.0, now - before) < seconds / 2:
        size *= 2
        before, now = now, time(size)
    return 2 * size**3 / min(now, time(size, seconds)) / 1e9


def _random(size: int, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    if dtype == torch.int8:
        a, b = torch.randint(-128, 128, (2, size, size), dtype=dtype, device="cpu").unbind()
    else:
        a, b = torch.rand(2, size, size, dtype=torch.float32, device="cpu").to(dtype).unbind()
    return a, b


_PRODUCTS: dict[str, tuple[torch.dtype, Callable[[Tensor, Tensor], object]]] = {
    "fp32": (torch.float32, torch.mm),
    "fp32_onednn": (torch.float32, lambda a, b: torch.ops.mkldnn._linear_pointwise(a, b, None, "none", [], "")),
    "bf16": (torch.bfloat16, F.linear),
    "int8": (torch.int8, lambda a, b: torch._int_mm(a, b)),  # not every torch has it
}
_NAMES = {  # of the trials
    "fp32_onednn": product_name("fp32", "onednn"), "bf16": product_name("bf16", "torch"),
    "int8": operation_name("int8", "product"),
}  # fmt: skip
