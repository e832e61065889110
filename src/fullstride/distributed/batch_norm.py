"""BatchNorm over all parts of a micro-batch, where it is cut: the statistics are those of the whole.

    mean, variance   of sums and sums of squared distances over the parts, with their gradients

torch has SyncBatchNorm for GPUs alone. Running statistics of processes with micro-batches of their own are averaged
after each step: each then knows what all have seen.
"""

from collections.abc import Iterable

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from .peers import Peers


def share_statistics(model: nn.Module, peers: Peers) -> int:
    """Lets every BatchNorm of the model see all parts. Returns how many there are."""
    found = [module for module in model.modules() if isinstance(module, _BatchNorm)]
    for module in found:
        module.__dict__["_peers"] = peers
        module.__dict__["forward"] = _Forward(module)
    return len(found)


class _Forward:
    """In place of a module's forward: in evaluation, and without statistics of batches, its own."""

    def __init__(self, module: _BatchNorm) -> None:
        self.module, self.own = module, module.forward

    def __call__(self, input: Tensor) -> Tensor:
        module = self.module
        uses_batch = module.training or module.running_mean is None
        if not uses_batch or not torch.is_grad_enabled():
            return self.own(input)
        return whole_batch_norm(module, input, module.__dict__["_peers"])


def whole_batch_norm(module: _BatchNorm, x: Tensor, peers: Peers) -> Tensor:
    """Of x (N, C, ...), a part."""
    over = [0, *range(2, x.dim())]
    wide = x.float()
    count = peers.sum(torch.tensor(float(x.numel() // x.shape[1]), dtype=torch.float64)).item()
    mean = peers.sum_with_gradient(wide.sum(over)) / count
    shape = (1, -1, *[1] * (x.dim() - 2))
    variance = peers.sum_with_gradient(((wide - mean.view(shape)) ** 2).sum(over)) / count
    _follow(module, mean.detach(), variance.detach() * count / max(1.0, count - 1))
    y = (wide - mean.view(shape)) * torch.rsqrt(variance + module.eps).view(shape)
    if module.affine:
        y = y * module.weight.view(shape) + module.bias.view(shape)
    return y.to(x.dtype)


@torch.no_grad()
def _follow(module: _BatchNorm, mean: Tensor, variance: Tensor) -> None:
    """Running statistics, as torch keeps them."""
    if not module.track_running_stats or module.running_mean is None or module.running_var is None:
        return
    assert module.num_batches_tracked is not None
    module.num_batches_tracked.add_(1)
    factor = 1.0 / float(module.num_batches_tracked) if module.momentum is None else module.momentum
    module.running_mean.lerp_(mean.to(module.running_mean.dtype), factor)
    module.running_var.lerp_(variance.to(module.running_var.dtype), factor)


def running_statistics(model: nn.Module) -> list[Tensor]:
    """Buffers of BatchNorm that follow the data, in floating point."""
    modules: Iterable[nn.Module] = (m for m in model.modules() if isinstance(m, _BatchNorm))
    return [b for module in modules for b in module.buffers(recurse=False) if b.is_floating_point()]


def other_buffers(model: nn.Module) -> list[Tensor]:
    """What else is saved beside the weights. Nobody knows what a mean of it would be, so all have that of the first
    process when it is looked at, as with DistributedDataParallel."""
    return [
        b for module in model.modules() if not isinstance(module, _BatchNorm)
        for name, b in module._buffers.items() if b is not None and name not in module._non_persistent_buffers_set
    ]  # fmt: skip
