"""Whether gradients travel faster in bf16 or fp32 between these processes: measured once, when a run begins."""

import time

import torch
import torch.distributed as dist

from .shared_sums import SharedSums

_NUMBERS = 4 << 20  # 16 MiB in fp32: about a bucket
_ROUNDS = 3
_PAYS = 1.15  # times as fast: less would not pay for what is rounded


def choose(
    wish: str, precision: str, group: dist.ProcessGroup, before: str | None = None, shared: SharedSums | None = None
) -> tuple[str, str]:
    """("fp32" or "bf16", why). All processes of the group must call it, and come to the same.

    before: what the run has used so far, which may come out otherwise today. shared: what sums, if not the group.
    """
    if wish == "bf16" and precision == "fp16":
        raise ValueError(
            "distributed.gradients: expected fp32 or auto in fp16 training, whose loss scale changes what rounding has"
            " left for the next step; got bf16"
        )
    if wish != "auto":
        return wish, "as asked for"
    if before is not None:
        return before, "as before"
    if precision != "bf16":
        return "fp32", f"a run in {precision} keeps all bits of its gradients; distributed.gradients=bf16 halves them"
    try:
        fp32, bf16 = (_seconds(dtype, group, shared) for dtype in (torch.float32, torch.bfloat16))
    except RuntimeError as error:  # of a backend that has no sum of bf16; all processes have the same
        return "fp32", f"bf16 is refused: {str(error).splitlines()[0]}"
    rates = f"{_NUMBERS / fp32 / 1e6:.0f} M numbers/s in fp32, {_NUMBERS / bf16 / 1e6:.0f} in bf16"
    return ("bf16" if fp32 > _PAYS * bf16 else "fp32"), rates


def _seconds(dtype: torch.dtype, group: dist.ProcessGroup, shared: SharedSums | None) -> float:
    """Of a sum over all, the best of some; the slowest process counts."""
    tensor = torch.zeros(_NUMBERS, dtype=dtype)
    best = float("inf")
    for _ in range(1 + _ROUNDS):  # the first one makes connections, and touches memory
        began = time.perf_counter()
        dist.all_reduce(tensor, group=group) if shared is None else shared.sum(tensor)
        best = min(best, time.perf_counter() - began)
    slowest = torch.tensor([best], dtype=torch.float64)
    dist.all_reduce(slowest, op=dist.ReduceOp.MAX, group=group)
    return float(slowest)
