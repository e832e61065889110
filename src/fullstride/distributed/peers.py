"""The processes with the parts of one micro-batch, and what a loss over the whole of it needs of them.

The gradient of a step is the mean over all processes, and each micro-batch is in `size` of them: so a loss that all of
them compute, from vectors that were gathered, has to hand each its own vectors' gradient `size` times, and what they
have in common, a temperature say, once.
"""

import contextlib
import time
from collections.abc import Iterator, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.nn.functional import all_reduce

from .messages import bytes_of_sum
from .world import World


class Peers:
    """sent: bytes that this process sent. waited: seconds in exchanges."""

    def __init__(self, group: dist.ProcessGroup) -> None:
        self.group = group
        self.size, self.place = group.size(), group.rank()
        self.sent, self.waited = 0, 0.0

    @classmethod
    def of(cls, world: World, parts: int) -> "Peers | None":
        """Those around a process; None where micro-batches are whole. All processes must call it."""
        if parts == 1:
            return None
        blocks = [list(range(first, first + parts)) for first in range(0, world.size, parts)]
        groups = [dist.new_group(block, timeout=world.timeout) for block in blocks]
        return cls(groups[world.rank // parts])

    def sum(self, tensor: Tensor) -> Tensor:
        """Over the parts, without a gradient."""
        total = tensor.detach().clone()
        with self.exchange(bytes_of_sum(total, self.size)):
            dist.all_reduce(total, group=self.group)
        return total

    def sum_with_gradient(self, tensor: Tensor) -> Tensor:
        """Its gradient is summed, too, in backward, whose time is not told apart."""
        ways = 1 + (torch.is_grad_enabled() and tensor.requires_grad)
        with self.exchange(ways * bytes_of_sum(tensor, self.size)):
            total: Tensor = all_reduce(tensor, group=self.group)
        return total

    @contextlib.contextmanager
    def exchange(self, sent: int) -> Iterator[None]:
        """Around what sends so many bytes and waits for others."""
        began = time.perf_counter()
        yield
        self.sent, self.waited = self.sent + sent, self.waited + time.perf_counter() - began

    def gather(self, vectors: Tensor) -> list[Tensor]:
        """(n_i, E) of each part, in their order, with a gradient for this one's."""
        return list(GatherFunction.apply(vectors, self))

    def gather_pairs(self, module: nn.Module, inputs: Sequence[Any]) -> tuple[Tensor, Tensor, Any] | None:
        """A hook before a contrastive loss of (image, text, scale), the first texts being those of the images: it gets
        those of all parts, captions of pictures first."""
        if not (module.training and torch.is_grad_enabled()):
            return None
        image, text, scale = inputs
        images, texts = self.gather(image), self.gather(text)
        own = [t[: len(i)] for i, t in zip(images, texts, strict=True)]
        wrong = [t[len(i) :] for i, t in zip(images, texts, strict=True)]
        return torch.cat(images), torch.cat(own + wrong), scale


class GatherFunction(torch.autograd.Function):
    @staticmethod
    def forward(ctx, vectors, peers):  # type: ignore[no-untyped-def]
        ctx.peers = peers
        rows = torch.zeros(peers.size, dtype=torch.int64)
        rows[peers.place] = len(vectors)
        rows = peers.sum(rows)
        longest = int(rows.max())
        # gloo wants all of one size
        padded = vectors.new_zeros(longest, *vectors.shape[1:])
        padded[: len(vectors)] = vectors
        found = [torch.empty_like(padded) for _ in range(peers.size)]
        with peers.exchange((peers.size - 1) * padded.numel() * padded.element_size()):
            dist.all_gather(found, padded, group=peers.group)
        found[peers.place] = vectors.clone()
        return tuple(x[: int(n)] for x, n in zip(found, rows, strict=True))

    @staticmethod
    def backward(ctx, *gradients):  # type: ignore[no-untyped-def]
        return gradients[ctx.peers.place] * ctx.peers.size, None
