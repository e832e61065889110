"""Which functions the prepared model computes by one op, and what it fuses with it.

    linear, conv1d         with the bias; the ReLU, GELU or SiLU right behind them is in the same pass
    silu(a) * b            one pass over both, GEGLU as well
    norm(a + b)            one pass, if both stand in the code of one module; backward adds the other gradient, too
    attention              without its scores in memory
    head and loss          of a head with many classes: the logits are never held (linear_cross_entropy)
    dropout                without a mask; embedding, softmax, cross-entropy: one pass
    a 16-bit product       of an fp32 tensor rounds it first; layers that share the tensor share that

Rules and no proof: prepare() looks at the code of a module before it fuses, and explain() says what came of it.
"""

import weakref
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ... import counting
from ...rewriting import lazy_logits
from .calls import Form
from .watching import Watch

GATES = ("silu", "gelu")
Handler = Callable[..., Any]


def answer(watch: Watch, func: Any, args: Any, kwargs: Any) -> Any:
    """What func gives, with a note of what it costs."""
    watch.num_asked += watch.is_inside
    handler = TABLE.get(func) if watch.is_inside or func is F.cross_entropy else None
    result = NotImplemented if handler is None else handler(watch, func, *args, **kwargs)
    if result is not NotImplemented:
        return result
    first = args[0] if args else None
    if isinstance(first, Tensor) and first in watch.heads:
        return _of_head(watch, func, args, kwargs)
    return func(*args, **kwargs)


def _of_head(watch: Watch, func: Any, args: Any, kwargs: Any) -> Any:
    """A view or cast of logits that are not there is one as well; whoever else looks has them computed."""
    if getattr(func, "__name__", "") in ("float", "to"):
        out = watch.stand_in(None, func, args, kwargs)
    else:
        out = func(*args, **kwargs)
        is_view = isinstance(out, Tensor) and out._is_view()
        if not is_view:
            return out
    watch.heads[out] = watch.heads[args[0]]
    return out


def linear(watch: Watch, func: Any, input: Tensor, weight: Tensor, bias: Tensor | None = None) -> Any:
    if weight.dim() != 2 or input.dim() == 0:
        return NotImplemented
    shape = input.shape[:-1].numel(), input.shape[-1]
    rows = Form(shape, _rounded(watch, input), (input.shape[-1], 1), input.requires_grad)
    call = watch.call("linear", {"x": rows, "weight": weight, "bias": bias}, activation="none")
    call.flops = 2 * input.numel() * weight.shape[0]
    out = watch.stand_in(call, func, (input, weight, bias))
    module = watch.modules[-1][0]
    if type(module) is nn.Linear and lazy_logits.is_large(module):
        watch.heads[out] = call
    return out


def _rounded(watch: Watch, x: Tensor) -> torch.dtype:
    """The dtype in which a product meets x: x's own if it has to round it first, which is then a part of it."""
    dtype = watch.dtype_of_products
    if dtype is None or x.dtype is dtype or not x.is_floating_point():
        return x.dtype
    if watch.cast() is x:
        return dtype
    watch.cast = weakref.ref(x)
    return x.dtype


def convolution(watch: Watch, func: Any, input: Tensor, weight: Tensor, bias: Tensor | None = None, *rest: Any,
                **options: Any) -> Any:  # fmt: skip
    named = dict(zip(("stride", "padding", "dilation", "groups"), rest, strict=False)) | options
    plain = {name: list(value) if isinstance(value, tuple) else value for name, value in named.items()}
    call = watch.call(
        "convolution", {"x": input, "weight": weight, "bias": bias}, activation="none", operation=func.__name__, **plain
    )
    is_inner = input.dim() == 3 and input.stride(1) == 1 < input.shape[1]

    def run(*args: Any) -> Tensor:
        y: Tensor = func(*args, **named)
        return y.transpose(1, 2).contiguous().transpose(1, 2) if is_inner else y  # the layout of ours

    out = watch.stand_in(call, run, (input, weight, bias))
    call.flops = counting.convolution_flops(input, weight, out, transposed=False)
    return out


def attention(watch: Watch, func: Any, query: Tensor, key: Tensor, value: Tensor, attn_mask: Tensor | None = None,
              dropout_p: float = 0.0, is_causal: bool = False, scale: float | None = None,
              enable_gqa: bool = False) -> Any:  # fmt: skip
    dtype = watch.dtype_of_products
    forms = {"query": Form.of(query, dtype), "key": Form.of(key, dtype), "value": Form.of(value, dtype)}
    call = watch.call(
        "attention", {**forms, "mask": attn_mask}, causal=is_causal, gqa=enable_gqa, dropout=float(dropout_p)
    )
    square = counting.attention_flops(query, key, value)
    call.flops = square // 2 if is_causal else square
    named = {"is_causal": is_causal, "scale": scale, "enable_gqa": enable_gqa}

    def run(*args: Any) -> Tensor:
        y: Tensor = func(*args, **named)  # without dropout: see counting.py
        return y.transpose(-3, -2).contiguous().transpose(-3, -2)  # the layout of ours

    return watch.stand_in(call, run, (query, key, value, attn_mask))


def activation(watch: Watch, func: Any, input: Tensor, *args: Any, **kwargs: Any) -> Any:
    """Behind a linear layer or a convolution in time it is a part of it."""
    name = func.__name__.rstrip("_")
    maker = watch.made.get(input)
    is_layer = maker is not None and (maker.name == "linear" or maker.options.get("operation") == "conv1d")
    if is_layer and maker.options["activation"] == "none" and input not in watch.heads:
        maker.options["activation"] = name
        out = watch.stand_in(None, _copied(func), (input, *args), kwargs)
        watch.made[out] = maker
        return out
    if name == "relu":
        return NotImplemented
    return watch.stand_in(watch.call("activation", {"x": input}, activation=name), func, (input, *args), kwargs)


def _copied(func: Any) -> Any:
    """Also of what works in place: a Function may not give back what it was given."""
    return lambda x, *args, **kwargs: func(x.clone(), *args, **kwargs)


def product(watch: Watch, func: Any, input: Any, other: Any, **kwargs: Any) -> Any:
    """activation(gate) * up."""
    if kwargs or not isinstance(input, Tensor) or not isinstance(other, Tensor) or input.shape != other.shape:
        return NotImplemented
    for gate, up in ((input, other), (other, input)):
        maker = watch.made.get(gate)
        if gate is up or maker is None or maker.options.get("activation") not in GATES:
            continue
        if maker.name == "activation":
            maker.is_absorbed = True
        else:
            maker.options["activation"] = "none"
        return watch.stand_in(watch.call("glu", {"gate": gate, "up": up}), func, (input, other))
    return NotImplemented


def addition(watch: Watch, func: Any, *args: Any, **kwargs: Any) -> Any:
    out = func(*args, **kwargs)
    call = watch.made.get(out) if isinstance(out, Tensor) else None
    if call is None or kwargs or len(args) != 2:
        return out
    if [form.shape for form in call.inputs.values()] == 2 * [out.shape]:
        watch.sums[out] = (call, watch.frame)
    return out


def norm(watch: Watch, func: Any, input: Tensor, normalized_shape: Any, *args: Any, **kwargs: Any) -> Any:
    if len(tuple(normalized_shape)) != 1:
        return NotImplemented
    total, frame = watch.sums.get(input, (None, None))
    is_fused = total is not None and frame is watch.frame and not total.is_absorbed
    if is_fused:
        total.is_absorbed = True
        for form in total.inputs.values():
            if form.dtype is not input.dtype:  # both sides in fp32 first
                watch.call("cast", {"x": form}).outputs = {"y": Form(form.shape, input.dtype, form.stride)}
    call = watch.call(func.__name__, {"x": input}, residual=is_fused)
    call.path = call.path if watch.frame is None else _path_of(watch, watch.frame)
    return watch.stand_in(call, func, (input, normalized_shape, *args), kwargs)


def _path_of(watch: Watch, module: nn.Module) -> str:
    return next(path for known, path in watch.modules if known is module)


def softmax(watch: Watch, func: Any, input: Tensor, dim: int | None = None, *args: Any, **kwargs: Any) -> Any:
    if dim not in (-1, input.dim() - 1):
        return NotImplemented
    dtype = kwargs.get("dtype") or input.dtype
    call = watch.call("softmax", {"x": input})
    return watch.stand_in(call, lambda *given, **named: func(*given, **named).to(dtype), (input, dim, *args), kwargs)


def dropout(
    watch: Watch, func: Any, input: Tensor, p: float = 0.5, training: bool = True, inplace: bool = False
) -> Any:
    if inplace or not training or p == 0:
        return NotImplemented
    return watch.stand_in(watch.call("dropout", {"x": input}), func, (input, p, True))


def embedding(watch: Watch, func: Any, input: Tensor, weight: Tensor, *args: Any, **kwargs: Any) -> Any:
    """Rows of a split weight come in fp32: the residual stream starts there (nn/embedding.py)."""
    is_split = type(watch.modules[-1][0]) is nn.Embedding and weight.dtype is torch.bfloat16

    def run(*given: Any, **named: Any) -> Tensor:
        rows: Tensor = func(*given, **named)
        return rows.float() if is_split else rows

    return watch.stand_in(watch.call("embedding", {"indices": input, "weight": weight}), run, (input, weight, *args),
                          kwargs)  # fmt: skip


def cross_entropy(watch: Watch, func: Any, input: Tensor, target: Tensor, *args: Any, **kwargs: Any) -> Any:
    head = watch.heads.get(input)
    if head is not None and not head.is_absorbed:
        head.is_absorbed = True
        rows, features = target.numel(), head.inputs["x"].shape[1]
        x = head.inputs["x"]
        hidden = Form((rows, features), watch.dtype or x.dtype, (features, 1), x.learns)
        call = watch.call(
            "linear_cross_entropy", {"x": hidden, "weight": head.inputs["weight"], "bias": head.inputs.get("bias")}
        )
        call.path, call.flops = head.path, 2 * rows * head.inputs["weight"].numel
        out = watch.stand_in(None, func, (input, target, *args), kwargs)
        call.wants = frozenset(role for role, form in call.inputs.items() if form.learns)
        return out
    if not watch.is_inside or input.dim() != 2:
        return NotImplemented
    return watch.stand_in(watch.call("cross_entropy", {"x": input}), func, (input, target, *args), kwargs)


TABLE: dict[Any, Handler] = {
    F.linear: linear,
    **dict.fromkeys((F.conv1d, F.conv2d, F.conv3d), convolution),
    F.scaled_dot_product_attention: attention,
    **dict.fromkeys((F.relu, torch.relu, Tensor.relu, torch.relu_, F.gelu, F.silu), activation),
    **dict.fromkeys((torch.mul, Tensor.mul), product),
    **dict.fromkeys((torch.add, Tensor.add), addition),
    **dict.fromkeys((F.layer_norm, torch.layer_norm, F.rms_norm, torch.rms_norm), norm),
    **dict.fromkeys((F.softmax, torch.softmax, Tensor.softmax), softmax),
    F.dropout: dropout,
    F.embedding: embedding,
    F.cross_entropy: cross_entropy,
}
