"""Gradients summed over the processes, in torch's buckets while backward goes on (DistributedDataParallel).

    fp32   buckets of fp32 parameters as they are. Buckets of split weights have the dtype of the parameter, bf16, so
           the sums over micro-batches, which are fp32, travel in a buffer of ours beside them
    bf16   half of the bytes. What rounding to bf16 loses in one step is added before the next one is rounded (error
           feedback), so nothing is lost for good. In bf16 training with one micro-batch a process, gradients are bf16
           already, and nothing is rounded at all. Biases and norms of bf16 training stay fp32: they are few

Where all that sum are on one machine, the sums go through memory that they share, one after the other when the last
bucket is full (shared_sums.py): there is nothing to hide behind a backward that has all cores.

Nothing is divided: whoever calls backward() divides the loss by the number of processes.
A micro-batch that is not the last of a step stays in this process (no_sync), with all that is fast in one process. In
the last one, gradients of fp32 weights are still added in place: DDP looks at p.grad when the node behind it was run.
"""

import contextlib
import inspect
import time
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.hooks import RemovableHandle

from ..ops._kept_gradients import lend
from ..ops._leaf_gradients import SMALL, watched_by
from ..ops._tensors import mark_written
from ..optim import keep_main_gradients
from .messages import bytes_of_sum
from .shared_sums import SharedSums

# torch's own, but said, or the first bucket has 1 MiB: a sum more, which small models have no backward left to hide.
# The step of llama-char, two processes with a core of Zen 5 each: 37.1 and 38.4 ms instead of 40.9 and 40.4.
BUCKET_MIB = 25
_OPTIONS = inspect.signature(DistributedDataParallel).parameters


class Averaged:
    """Of one model. `model` is what to call in its place in training; every parameter must have a gradient in every
    micro-batch that is a step's last (else: late_sums.py).

    sent: bytes that this process sent, or would have sent in a ring of what goes through shared memory. exposed:
    seconds from the end of the computation of backward until all sums were here. shared: where the sums are made, if
    not by the group itself.
    """

    def __init__(
        self, module: nn.Module, group: dist.ProcessGroup, wire: str, shared: SharedSums | None = None
    ) -> None:
        self.module, self.group, self.wire, self._shared = module, group, wire, shared
        self.sent, self.exposed = 0, 0.0
        self.flushes = False
        self._residuals: dict[Tensor, Tensor] = {}  # what was not sent yet, by parameter
        self._whole: dict[Tensor, Tensor] = {}  # sums of this process that a bf16 bucket cannot hold
        self._summed: list[tuple[list[Tensor], Tensor]] = []  # parameters, and their sums over all processes
        self._is_last = False
        self._under_way: list[torch.futures.Future[Tensor]] = []
        self._put_off: list[Callable[[], None]] = []  # sums in shared memory
        self._last_bucket = 0.0
        self._handles: list[RemovableHandle] = []
        self._build()

    @property
    def model(self) -> nn.Module:
        return self._parallel

    @property
    def has_residual(self) -> bool:
        return bool(self._residuals)

    @contextlib.contextmanager
    def micro_batch(self, is_last: bool) -> Iterator[None]:
        """Around forward and backward of one."""
        if self._learning() != self._learns:  # layers were frozen, or thawed
            self._build()
        if not is_last:
            with self._parallel.no_sync(), watched_by("nobody"):
                yield
            return
        self._is_last = True
        try:
            with watched_by("ours"):
                yield
            self.exposed += max(0.0, time.perf_counter() - self._last_bucket)
            self._deliver()
        except Exception:  # another process has gone, as a rule
            self._wait_for_callbacks()
            raise
        finally:
            self._is_last = False
            self._whole.clear()
            self._summed.clear()
            self._under_way.clear()
            self._put_off.clear()
        if self.flushes:
            self._residuals.clear()
            self.flushes = False

    def flush(self) -> None:
        """In the next step everything is sent in fp32: nothing waits behind it, and it can be resumed to the bit."""
        self.flushes = self.wire == "bf16"

    def forget(self) -> None:
        """A step was skipped: what was rounded off is not finite, or of another loss scale."""
        self._residuals.clear()

    # ---- torch's engine ----------------------------------------------------------------------------------------------

    def _learning(self) -> list[bool]:
        return [p.requires_grad for p in self.module.parameters()]

    def _build(self) -> None:
        for handle in self._handles:
            handle.remove()
        self._learns = self._learning()
        self._residuals = {p: x for p, x in self._residuals.items() if p.requires_grad}
        # Weights are the same in all processes already, and buffers are batch_norm.py's.
        old_name = "forward_sync_buffers" not in _OPTIONS  # before torch 2.13
        buffers: dict[str, Any] = {"broadcast_buffers" if old_name else "forward_sync_buffers": False}
        self._parallel = _Parallel(
            self.module, process_group=self.group, init_sync=False,
            gradient_as_bucket_view=True, bucket_cap_mb=BUCKET_MIB, **buffers,
        )  # fmt: skip
        self._parallel.register_comm_hook(weakref.proxy(self), _send)
        split = [p for p in self.module.parameters() if p.requires_grad and p.dtype is torch.bfloat16]
        keep_main_gradients(split)  # of those, too, that another process's optimizer steps: see sharding.py
        self._handles = [p.register_post_accumulate_grad_hook(_before_bucket(weakref.ref(self))) for p in split]

    @torch.no_grad()
    def before_bucket(self, p: Tensor) -> None:
        """Makes p.grad of a split weight bf16, whatever has come together there: torch fills its bucket with that."""
        if not self._is_last or p.grad is None:
            return
        rounds = self.wire == "bf16" and not self.flushes
        residual = self._residuals.get(p)
        if rounds and residual is None and p.grad.dtype is torch.bfloat16:
            return
        whole = p.grad.float()
        if residual is not None:
            whole.add_(residual)
        rounded = whole.bfloat16()
        if rounds:
            self._residuals[p] = whole.sub_(rounded)
        else:
            self._whole[p] = whole
        p.grad = rounded

    def send(self, bucket: dist.GradBucket) -> "torch.futures.Future[Tensor]":
        self._last_bucket = time.perf_counter()
        future = self._begin(bucket)
        if bucket.is_last():
            for finish in self._put_off:
                finish()
            self._put_off.clear()
        return future

    def _begin(self, bucket: dist.GradBucket) -> "torch.futures.Future[Tensor]":
        buffer, parameters = bucket.buffer(), bucket.parameters()
        if buffer.dtype is torch.bfloat16:
            if self.wire == "bf16" and not self.flushes:
                return self._sum(buffer, lambda total: total)
            flat = torch.cat([self._of(p).flatten() for p in parameters])
            self._summed.append((parameters, flat))
            return self._sum(flat, lambda _: buffer)
        for p, gradient in zip(parameters, bucket.gradients(), strict=True):
            if p in self._residuals:
                gradient.add_(self._residuals[p])
        if self.wire == "fp32" or self.flushes or self._is_split:
            return self._sum(buffer, lambda total: total)
        rounded = buffer.bfloat16()
        lost = (buffer - rounded).split([p.numel() for p in parameters])
        self._residuals.update((p, part.view(p.shape)) for p, part in zip(parameters, lost, strict=True))
        return self._sum(rounded, buffer.copy_)

    @property
    def _is_split(self) -> bool:
        return bool(self._handles)

    def _of(self, p: Tensor) -> Tensor:
        """Unused here, it may be used elsewhere."""
        whole = self._whole.get(p)
        return p.new_zeros(p.shape, dtype=torch.float32) if whole is None else whole

    def _sum(self, tensor: Tensor, then: Callable[[Tensor], Tensor]) -> "torch.futures.Future[Tensor]":
        self.sent += bytes_of_sum(tensor, self.group.size())
        if self._shared is not None:
            return self._sum_later(self._shared, tensor, then)
        work = dist.all_reduce(tensor, group=self.group, async_op=True)
        self._under_way.append(work.get_future().then(lambda done: then(done.value()[0])))
        return self._under_way[-1]

    def _sum_later(
        self, shared: SharedSums, tensor: Tensor, then: Callable[[Tensor], Tensor]
    ) -> "torch.futures.Future[Tensor]":
        future: torch.futures.Future[Tensor] = torch.futures.Future()

        def finish() -> None:
            shared.sum(tensor)
            future.set_result(then(tensor))

        self._put_off.append(finish)
        return future

    def _wait_for_callbacks(self) -> None:
        """Sums that fail are over, too. While one is not, gloo's thread will want the GIL for its callback; whoever
        frees the process group holds that and waits for the thread."""
        for future in self._under_way:
            with contextlib.suppress(RuntimeError):
                future.wait()

    def _deliver(self) -> None:
        """Sums of split weights in fp32 become p.grad. The next gradients are written where the buckets are, in which
        p.grad is now: MLP of 50M weights in bf16, one thread of Zen 5: 7 ms of 97 less for copies."""
        learning = [p for p in self.module.parameters() if p.grad is not None]
        mark_written(p.grad for p in learning if p.grad is not None)  # gloo does not say so, and norms are remembered
        for p in learning:
            if p.grad is not None and p.numel() >= SMALL and p.grad.dtype is p.dtype and p.grad.is_contiguous():
                lend(p, p.grad)
        for parameters, flat in self._summed:
            parts = flat.split([weight.numel() for weight in parameters])
            for weight, part in zip(parameters, parts, strict=True):
                if weight.grad is not None:
                    weight.grad = part.view(weight.shape)


class _Parallel(DistributedDataParallel):
    """With the attributes of the model that it holds: losses of others may ask for them."""

    def __getattr__(self, name: str) -> Any:
        try:
            return super().__getattr__(name)
        except AttributeError:
            return getattr(super().__getattr__("module"), name)


def _send(averaged: Any, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
    result: torch.futures.Future[torch.Tensor] = averaged.send(bucket)
    return result


def _before_bucket(reference: "weakref.ref[Averaged]") -> Callable[[Tensor], None]:
    """Runs when autograd has added to p.grad, before DDP looks at it."""

    def hook(p: Tensor) -> None:
        averaged = reference()
        if averaged is not None:
            averaged.before_bucket(p)

    return hook
