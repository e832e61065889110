"""Gradients summed over the processes when backward is over: for models of which nobody knows what a step uses.

DistributedDataParallel wants to be called itself, in each micro-batch that is summed, and loses what only an earlier
one used. A loss of somebody's own may call parts of a model, and another part in each micro-batch. So here every
micro-batch stays in its process, and the sums of a step are sent at its end, in fp32 or in bf16 with error feedback as
gradients.py has it. A parameter that no process has used has no gradient.
"""

import contextlib
import time
from collections.abc import Iterable, Iterator

import torch
import torch.distributed as dist
from torch import Tensor, nn

from ..ops._leaf_gradients import watched_by
from .messages import bytes_of_sum, together
from .shared_sums import SharedSums


class LateSums:
    """The face of Averaged: `model` is the model itself. sent: bytes. exposed: seconds of the sums.

    stepped: the parameters of the optimizer.
    """

    def __init__(
        self, module: nn.Module, stepped: Iterable[Tensor], group: dist.ProcessGroup, wire: str,
        shared: SharedSums | None = None,
    ) -> None:  # fmt: skip
        self.model, self.group, self.wire, self._shared = module, group, wire, shared
        self._stepped = list(stepped)  # gradients of others nobody wants, nor sets to zero
        self.sent, self.exposed = 0, 0.0
        self.flushes = False
        self._residuals: dict[Tensor, Tensor] = {}

    @property
    def has_residual(self) -> bool:
        return bool(self._residuals)

    def flush(self) -> None:
        self.flushes = self.wire == "bf16"

    def forget(self) -> None:
        self._residuals.clear()

    @contextlib.contextmanager
    def micro_batch(self, is_last: bool) -> Iterator[None]:
        with watched_by("nobody"):
            yield
        if is_last:
            began = time.perf_counter()
            self._sum_all()
            self.exposed += time.perf_counter() - began

    @torch.no_grad()
    def _sum_all(self) -> None:
        parameters = [p for p in self._stepped if p.requires_grad]
        used = torch.tensor([p.grad is not None for p in parameters], dtype=torch.int32)
        dist.all_reduce(used, group=self.group)
        self.sent += bytes_of_sum(used, self.group.size())
        rounds = self.wire == "bf16" and not self.flushes
        for some in together([p for p, count in zip(parameters, used.tolist(), strict=True) if count]):
            parts = [self._part(p, rounds) for p in some]
            flat = torch.cat([part.flatten() for part in parts])
            self._sum(flat)
            for p, part in zip(some, flat.split([p.numel() for p in some]), strict=True):
                p.grad = part.view(p.shape).to(torch.promote_types(part.dtype, p.dtype))
        if self.flushes:
            self.forget()
            self.flushes = False

    def _part(self, p: Tensor, rounds: bool) -> Tensor:
        """What this process sends of it."""
        whole = torch.zeros(p.shape) if p.grad is None else p.grad.float()
        residual = self._residuals.get(p)
        if residual is not None:
            whole = whole + residual
        if not rounds:
            return whole
        rounded = whole.bfloat16()
        self._residuals[p] = whole - rounded
        return rounded

    def _sum(self, tensor: Tensor) -> None:
        self.sent += bytes_of_sum(tensor, self.group.size())
        if self._shared is None:
            dist.all_reduce(tensor, group=self.group)
        else:
            self._shared.sum(tensor)
