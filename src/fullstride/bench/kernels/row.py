"""One line of the kernel benchmark."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor

from ...machine.streams import MIXES

STREAMING_SHARE = 0.85


@dataclass(frozen=True)
class Row:
    """A kernel on one input, and what it is measured against.

    `bytes` is what the algorithm must move between memory and the cores, each input and output once: with the time
    it gives the share of the machine's bandwidth. None for kernels that do not stream. `mix` says which bandwidth:
    "read" for reductions, "write" where the results go into other arrays, "update" where most of what is read is
    written back in place (machine/streams.py says why they differ).
    """

    case: str
    ours: Callable[[], object]
    peers: Mapping[str, Callable[[], object]]
    bytes: int | None = None
    targets: Mapping[str, float] = field(default_factory=dict)  # peer -> at least this ratio
    mix: str = "write"
    streaming: bool = False  # expected to reach STREAMING_SHARE of the bandwidth

    def __post_init__(self) -> None:
        assert self.mix in MIXES, self.mix
        assert self.targets.keys() <= self.peers.keys(), "a target for no peer"
        assert self.bytes or not self.streaming, "streaming what?"


def forward_backward(
    function: Callable[..., Tensor], *inputs: Tensor, gradient: Tensor | None = None
) -> Callable[[], tuple[Tensor, ...]]:
    """A call that runs function(*inputs) and its backward pass."""
    leaves = [x for x in inputs if x.requires_grad]

    def run() -> tuple[Tensor, ...]:
        out = function(*inputs)
        return torch.autograd.grad(out, leaves, torch.ones_like(out) if gradient is None else gradient)

    return run
