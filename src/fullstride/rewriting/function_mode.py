"""Calls of torch.nn.functional inside a model, answered by our ops while a prepared forward runs.

FastFunctions is a TorchFunctionMode: torch asks it before each of its functions. The table below maps a function to one
with the same signature that returns NotImplemented where our op does not compute the same thing; then torch's runs.
"""

from collections.abc import Callable, Collection
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.overrides import TorchFunctionMode

from ..nn import cross_entropy
from ..ops import attention as attention_op
from ..ops import bias_act as bias_act_op
from ..ops import conv1d as conv1d_op
from ..ops import cross_entropy as cross_entropy_op
from ..ops import dropout as dropout_op
from ..ops import embedding as embedding_op
from ..ops import layer_norm as layer_norm_op
from ..ops import linear as linear_op
from ..ops import patches as patches_op
from ..ops import rms_norm as rms_norm_op
from ..ops import softmax as softmax_op
from ..ops._tensors import KERNEL_DTYPES


class FastFunctions(TorchFunctionMode):
    """caught: counts the calls that were answered, by name. without: parts that torch computes."""

    answers_views = True  # nn/conv2d.py asks for that

    def __init__(self, caught: dict[str, int] | None = None, without: Collection[str] = ()) -> None:
        super().__init__()
        self._caught = {} if caught is None else caught
        self._without = without

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        fast = TABLE.get(func)
        if fast is not None and PARTS_OF.get(func) not in self._without:
            result = fast(*args, **kwargs)
            if result is not NotImplemented:
                name = NAMES[func]
                self._caught[name] = self._caught.get(name, 0) + 1
                return result
        return func(*args, **kwargs)


def _plain(*tensors: Any) -> bool:
    """Subclasses, LazyLogits among them, have a will of their own."""
    return all(t is None or type(t) in (Tensor, torch.nn.Parameter) for t in tensors)


def linear(input: Tensor, weight: Tensor, bias: Tensor | None = None) -> Any:
    if not _plain(input, weight, bias) or weight.dim() != 2 or input.dim() == 0:
        return NotImplemented
    return linear_op.linear(input, weight, bias)


def conv1d(
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: Any = 1,
    padding: Any = 0,
    dilation: Any = 1,
    groups: int = 1,
) -> Any:
    if not _plain(input, weight, bias) or not conv1d_op.pays(input, weight):
        return NotImplemented
    if not _steps_by((1,), stride, dilation, groups):
        return NotImplemented
    return conv1d_op.conv1d(input, weight, bias, padding if isinstance(padding, str) else _each(padding, 1)[0])


def conv2d(
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: Any = 1,
    padding: Any = 0,
    dilation: Any = 1,
    groups: int = 1,
) -> Any:
    if not _plain(input, weight, bias) or not patches_op.pays(input, weight):
        return NotImplemented
    if not _steps_by(tuple(weight.shape[2:]), stride, dilation, groups):
        return NotImplemented
    if padding != "valid" and (isinstance(padding, str) or _each(padding, 2) != (0, 0)):
        return NotImplemented
    return patches_op.patches(input, weight, bias)


def _steps_by(steps: tuple[int, ...], stride: Any, dilation: Any, groups: int) -> bool:
    """A convolution of one group without gaps, whose stride is `steps`, a number a dimension."""
    return groups == 1 and _each(stride, len(steps)) == steps and _each(dilation, len(steps)) == (1,) * len(steps)


def _each(value: Any, dimensions: int) -> tuple[Any, ...]:
    """What torch makes of one number for all dimensions."""
    values = tuple(value) if isinstance(value, (tuple, list)) else (value,)
    return values * dimensions if len(values) == 1 else values


def view(input: Tensor, *shape: Any, size: Any = None, dtype: Any = None) -> Any:
    """Of what a convolution gives with its channels innermost, and torch's would have given dense: a copy.

    So is a view of a part of it, or of what an activation made of it. Writes to such a copy do not reach the original.
    """
    if not _plain(input) or torch.compiler.is_compiling() or input.is_contiguous():
        return NotImplemented
    shape = shape if size is None else (size,)
    if dtype is not None or not shape or isinstance(shape[0], torch.dtype):
        return NotImplemented
    try:
        input.view(*shape)
    except RuntimeError:
        return input.reshape(*shape)  # which says what is wrong with another shape
    return NotImplemented


def view_as(input: Tensor, other: Tensor) -> Any:
    return view(input, other.shape)


def attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Any:
    if not _plain(query, key, value, attn_mask) or query.dim() < 3:
        return NotImplemented
    if torch.is_autocast_enabled("cpu"):  # which torch's own follows, too
        dtype = torch.get_autocast_dtype("cpu")
        query, key, value = (x.to(dtype) for x in (query, key, value))
        if attn_mask is not None and attn_mask.is_floating_point():
            attn_mask = attn_mask.to(dtype)
    return attention_op.attention(query, key, value, attn_mask, is_causal, scale, enable_gqa, dropout_p)


def layer_norm(
    input: Tensor,
    normalized_shape: Any,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-5,
    cudnn_enable: bool = True,
) -> Any:
    if not _plain(input, weight, bias) or not _over_last(input, normalized_shape):
        return NotImplemented
    return layer_norm_op.layer_norm(input, weight, bias, eps)


def rms_norm(input: Tensor, normalized_shape: Any, weight: Tensor | None = None, eps: float | None = None) -> Any:
    if not _plain(input, weight) or not _over_last(input, normalized_shape):
        return NotImplemented
    return rms_norm_op.rms_norm(input, weight, torch.finfo(input.dtype).eps if eps is None else eps)


def gelu(input: Tensor, *, approximate: str = "none") -> Any:
    if not _activates(input) or approximate not in ("none", "tanh"):
        return NotImplemented
    return bias_act_op.bias_act(input, None, "gelu_tanh" if approximate == "tanh" else "gelu")


def silu(input: Tensor, inplace: bool = False) -> Any:
    return NotImplemented if inplace or not _activates(input) else bias_act_op.bias_act(input, None, "silu")


def softmax(input: Tensor, dim: int | None = None, _stacklevel: int = 3, dtype: torch.dtype | None = None) -> Any:
    if not _activates(input) or dim not in (-1, input.dim() - 1) or dtype not in (None, torch.float32):
        return NotImplemented
    return softmax_op.softmax(input if dtype is None else input.to(dtype))


def torch_softmax(input: Tensor, dim: int, dtype: torch.dtype | None = None, out: Tensor | None = None) -> Any:
    return NotImplemented if out is not None else softmax(input, dim, dtype=dtype)


def dropout(input: Tensor, p: float = 0.5, training: bool = True, inplace: bool = False) -> Any:
    if inplace or not _activates(input) or not 0 <= p <= 1:
        return NotImplemented
    return dropout_op.dropout(input, p, training=training)


def embedding(
    input: Tensor,
    weight: Tensor,
    padding_idx: int | None = None,
    max_norm: float | None = None,
    norm_type: float = 2.0,
    scale_grad_by_freq: bool = False,
    sparse: bool = False,
) -> Any:
    if not _plain(input, weight) or max_norm is not None or scale_grad_by_freq or sparse:
        return NotImplemented
    if input.dtype not in embedding_op.INDEX_DTYPES or weight.dim() != 2:
        return NotImplemented
    return embedding_op.embedding(input, weight, padding_idx)


def cross_entropy_loss(
    input: Tensor,
    target: Tensor,
    weight: Tensor | None = None,
    size_average: Any = None,
    ignore_index: int = -100,
    reduce: Any = None,
    reduction: str = "mean",
    label_smoothing: float = 0.0,
) -> Any:
    if weight is not None or size_average is not None or reduce is not None:
        return NotImplemented
    if not _plain(input, target) or not cross_entropy.fits(input, target):
        return NotImplemented
    return cross_entropy_op.cross_entropy(input, target, ignore_index, label_smoothing, reduction)


def lstm(input: Tensor, *args: Any) -> Any:
    """In fp32 under autocast. oneDNN has no bf16 LSTM without AVX-512, and torch raises an error there."""
    if not torch.is_autocast_enabled("cpu") or torch.compiler.is_compiling():
        return NotImplemented
    with torch.autocast("cpu", enabled=False):
        return torch._VF.lstm(*(_wide(x) for x in (input, *args)))


def _wide(value: Any) -> Any:
    """16-bit tensors, also in a list of states or weights, in fp32."""
    if isinstance(value, (tuple, list)):
        return [_wide(x) for x in value]
    return value.float() if isinstance(value, Tensor) and value.dtype in (torch.bfloat16, torch.float16) else value


def _over_last(input: Tensor, normalized_shape: Any) -> bool:
    shape = tuple(normalized_shape)
    return len(shape) == 1 and input.dim() > 0 and input.shape[-1] == shape[0] and input.is_floating_point()


def _activates(input: Tensor) -> bool:
    return _plain(input) and input.dim() > 0 and input.dtype in KERNEL_DTYPES


TABLE: dict[Any, Callable[..., Any]] = {
    F.linear: linear,
    F.conv1d: conv1d,
    F.conv2d: conv2d,
    Tensor.view: view,
    Tensor.view_as: view_as,
    F.scaled_dot_product_attention: attention,
    F.layer_norm: layer_norm,
    torch.layer_norm: layer_norm,
    F.rms_norm: rms_norm,
    torch.rms_norm: rms_norm,
    F.gelu: gelu,
    F.silu: silu,
    F.softmax: softmax,
    torch.softmax: torch_softmax,
    Tensor.softmax: torch_softmax,
    F.dropout: dropout,
    F.embedding: embedding,
    F.cross_entropy: cross_entropy_loss,
    torch._VF.lstm: lstm,
}
NAMES = {func: func.__name__ for func in TABLE}
_FUNCTIONS: dict[str, tuple[Any, ...]] = {
    "linear": (F.linear,),
    "convolutions": (F.conv1d, F.conv2d, Tensor.view, Tensor.view_as),
    "attention": (F.scaled_dot_product_attention, F.softmax, torch.softmax, Tensor.softmax),
    "norms": (F.layer_norm, torch.layer_norm, F.rms_norm, torch.rms_norm),
    "activations": (F.gelu, F.silu),
    "dropout": (F.dropout,),
    "embedding": (F.embedding,),
    "loss": (F.cross_entropy,),
}
PARTS_OF = {func: part for part, functions in _FUNCTIONS.items() for func in functions}
"""The part of mechanisms.PARTS that a function is of; lstm, which torch cannot do in bf16 everywhere, is of none."""
