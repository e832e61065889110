"""The boundary check that LayerNorm and RMSNorm share."""

from torch import Tensor


def check_norm_shapes(op: str, x: Tensor, residual: Tensor | None, **parameters: Tensor | None) -> None:
    if x.dim() == 0:
        raise ValueError(f"{op}: expected x with at least one dimension, got a scalar; normalise over a dimension")
    if residual is not None and residual.shape != x.shape:
        raise ValueError(f"{op}: expected residual of shape {tuple(x.shape)} like x, got {tuple(residual.shape)}")
    cols = x.shape[-1:]
    for name, parameter in parameters.items():
        if parameter is not None and parameter.shape != cols:
            raise ValueError(
                f"{op}: expected {name} of shape {tuple(cols)}, the last dimension of x,"
                f" got {tuple(parameter.shape)}"
            )
