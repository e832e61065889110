"""The norms of each layer's gradient and weights: where a model learns, stalls or explodes.

run_folder/gradient_verdicts.py judges them. The norm of weights is that of 512 of them, always the same ones, for all
(optim/_criteria.py): within a tenth of the true one, and nothing is read that a row would make the step wait for.
"""

import math
from collections import defaultdict
from typing import Any

from torch import Tensor, nn

from ...ops.grads import grad_norm
from ...optim._criteria import Sampler

Norms = dict[str, float | None]


class LayerNorms:
    """Of a model that is prepared. A layer is the module that owns the parameters."""

    def __init__(self, model: nn.Module) -> None:
        self._layers: dict[str, list[nn.Parameter]] = defaultdict(list)
        for name, parameter in model.named_parameters():
            self._layers[name.rpartition(".")[0] or name].append(parameter)
        self.sizes = {name: sum(p.numel() for p in parameters) for name, parameters in self._layers.items()}
        self._samplers = {name: Sampler(model, self._layers[name]) for name, size in self.sizes.items() if size}

    def row(self, optimizer: Any) -> dict[str, Norms]:
        """Columns of a row of metrics, before the step: of gradients without the loss scale, of the weights of the
        layers that have one. None where it is not finite."""
        scale = 1.0 if optimizer.scaler is None else optimizer.scaler.scale
        gradients, weights = Norms(), Norms()
        for name, parameters in self._layers.items():
            given: list[Tensor] = [p.grad for p in parameters if p.grad is not None]
            if given:
                norm, finite = grad_norm(given)
                gradients[name] = norm / scale if finite else None
                if name in self._samplers:
                    weights[name] = self._weights(name)
        return {"grad_norms": gradients, "weight_norms": weights}

    def _weights(self, name: str) -> float | None:
        sample = self._samplers[name]()
        norm = math.sqrt(math.fsum(x * x for x in sample) / len(sample) * self.sizes[name])
        return norm if math.isfinite(norm) else None
