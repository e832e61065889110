"""torch.nn.Conv2d over ops.patches: those whose stride is their kernel, as in patch embeddings, where that pays."""

import torch
from torch import Tensor
from torch.overrides import _get_current_function_mode_stack

from ..ops.patches import has_inner_channels, patches, patches_reference, pays, pays_for


class Conv2d(torch.nn.Conv2d):
    def forward(self, input: Tensor) -> Tensor:
        if not pays(input, self.weight):
            return patches_reference(input, self.weight, self.bias)
        y = patches(input, self.weight, self.bias)
        # With innermost channels y.view() may fail, and outside of a prepared forward nobody is there to answer it.
        return y if has_inner_channels(input) or _views_are_answered() else y.contiguous()


def _views_are_answered() -> bool:
    """By rewriting/function_mode.py, which says so of itself; torch.device("cpu") and others are modes, too."""
    return any(getattr(mode, "answers_views", False) for mode in _get_current_function_mode_stack())


def why_not(module: torch.nn.Conv2d) -> str | None:
    if module.stride != module.kernel_size:
        return f"stride is {module.stride}; a product takes that of its kernel, {module.kernel_size}"
    if module.padding not in ((0, 0), "valid"):
        return f"padding is {module.padding}; patches have none"
    for name, usual in (("dilation", (1, 1)), ("groups", 1), ("padding_mode", "zeros")):
        if getattr(module, name) != usual:
            return f"{name} is {getattr(module, name)}; patches have {usual}"
    if not pays_for(module.weight):
        return f"torch is as fast with {module.out_channels} filters of {_size(module)}"
    return None


def _size(module: torch.nn.Conv2d) -> str:
    return " x ".join(str(size) for size in module.weight.shape[1:])
