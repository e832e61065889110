"""The measured rates of square matrix products, in GFLOP/s, as torch multiplies them: what `fullstride info` shows."""

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

from ..machine.probe import best_time
from . import choosing
from .trials.verdicts import FINE, operation_name, product_name

_FIRST_SIZE, _LAST_SIZE = 256, 2048


def rates(seconds: float = 0.15) -> dict[str, float]:
    """GFLOP/s of square matrix products by precision. What this torch cannot multiply is left out, and what was not
    found to work in a child process is not tried in this one."""
    verdicts, found = choosing.choose("fp32").verdicts, {}
    for name, make in _PRODUCTS.items():
        if name != "fp32" and verdicts.get(_NAMES[name]) != FINE:
            continue
        try:
            found[name] = _product_rate(make, seconds)
        except (RuntimeError, AttributeError, NotImplementedError):
            continue
    return found


def _product_rate(make: Callable[[int], Callable[[], object]], seconds: float) -> float:
    """Doubles the size while the next one would take less than half of the time.

    Its time is foreseen as that of this one plus eight times what the last doubling added: on a loaded machine waking
    the threads alone takes milliseconds, which do not grow with the size.
    """
    size = _FIRST_SIZE
    before, now = (best_time(make(n), 0) for n in (size // 2, size))
    while size < _LAST_SIZE and now + 8 * max(0.0, now - before) < seconds / 2:
        size *= 2
        before, now = now, best_time(make(size), 0)
    return 2 * size**3 / min(now, best_time(make(size), seconds)) / 1e9


def _random(size: int, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    if dtype == torch.int8:
        a, b = torch.randint(-128, 128, (2, size, size), dtype=dtype, device="cpu").unbind()
    else:
        a, b = torch.rand(2, size, size, dtype=torch.float32, device="cpu").to(dtype).unbind()
    return a, b


def _fp32(size: int) -> Callable[[], object]:
    a, b = _random(size, torch.float32)
    return lambda: torch.mm(a, b)


def _fp32_onednn(size: int) -> Callable[[], object]:
    a, b = _random(size, torch.float32)
    return lambda: torch.ops.mkldnn._linear_pointwise(a, b, None, "none", [], "")


def _bf16(size: int) -> Callable[[], object]:
    a, b = _random(size, torch.bfloat16)
    return lambda: F.linear(a, b)


def _int8(size: int) -> Callable[[], object]:
    a, b = _random(size, torch.int8)
    return lambda: torch._int_mm(a, b)


_PRODUCTS = {"fp32": _fp32, "fp32_onednn": _fp32_onednn, "bf16": _bf16, "int8": _int8}
_NAMES = {  # of the trials
    "fp32_onednn": product_name("fp32", "onednn"), "bf16": product_name("bf16", "torch"),
    "int8": operation_name("int8", "product"),
}  # fmt: skip
