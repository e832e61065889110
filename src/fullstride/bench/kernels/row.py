"""One line of the kernel benchmark."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from ... import counting
from ...machine.streams import MIXES

STREAMING_SHARE = 0.85
PORTABLE = "portable"  # the peer that benchmark.py adds: the same call of the variant that needs nothing of the CPU


@dataclass(frozen=True)
class Row:
    """A kernel on one input, what it is measured against, and its work in the units that people know it by.

    `bytes` is what the algorithm must move between memory and the cores, each input and output once: with the time
    it gives the share of the machine's bandwidth. None for kernels that do not stream. `mix` says which bandwidth:
    "read" for reductions, "write" where the results go into other arrays, "update" where most of what is read is
    written back in place (machine/streams.py says why they differ). None: all of it stays in a cache, and is a share
    of nothing that is measured.
    `flops` is counted(), of products in `precision`; `parameters` is how many an optimizer updates.
    """

    case: str
    ours: Callable[[], object]
    peers: Mapping[str, Callable[[], object]]
    bytes: int | None = None
    targets: Mapping[str, float] = field(default_factory=dict)  # peer -> at least this ratio
    mix: str | None = "write"
    streaming: bool = False  # expected to reach STREAMING_SHARE of the bandwidth
    flops: int | None = None
    precision: str = "fp32"
    parameters: int | None = None
    left_out: Mapping[str, str] = field(default_factory=dict)  # peer that is not measured -> why

    def __post_init__(self) -> None:
        assert self.mix is None or self.mix in MIXES, self.mix
        assert self.targets.keys() <= self.peers.keys(), "a target for no peer"
        assert (self.bytes and self.mix) or not self.streaming, "streaming what?"
        assert not self.left_out.keys() & self.peers.keys(), "left out and measured"


def forward_backward(
    function: Callable[..., Tensor], *inputs: Tensor, gradient: Tensor | None = None
) -> Callable[[], tuple[Tensor, ...]]:
    """A call that runs function(*inputs) and its backward pass."""
    leaves = [x for x in inputs if x.requires_grad]

    def run() -> tuple[Tensor, ...]:
        out = function(*inputs)
        return torch.autograd.grad(out, leaves, torch.ones_like(out) if gradient is None else gradient)

    return run


def counted(function: Callable[..., Tensor], *inputs: Tensor) -> int:
    """FLOPs of function(*inputs), in plain torch, and of its backward pass for the inputs that require a gradient."""
    return counting.flops_of(nn.Module(), lambda _, batch: function(*batch), inputs).total


def name_of(dtype: torch.dtype) -> str:
    """bf16, fp32"""
    return "bf16" if dtype is torch.bfloat16 else "fp32"
