"""contrastive(): the contrastive loss of a large batch with the memory of a small one.

    loss = fullstride.contrastive(model.encode_image, model.encode_text, images, texts, model.log_scale.exp(), chunk=16)
    loss.backward()

Every caption of the batch is a wrong one for every other picture, so the loss needs the vectors of all at once. It does
not need what the encoders computed on the way: they run chunk by chunk, keep nothing, and compute each chunk once more
in backward, with the same random numbers. The loss and its gradients are those of the whole batch, to rounding; a
forward pass more is the price. Gao et al., https://arxiv.org/abs/2101.06983
Statistics of a batch, as BatchNorm has them, are those of a chunk, and running ones see each chunk twice.
"""

from collections.abc import Callable, Mapping
from numbers import Real
from typing import Any, TypeAlias

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from .ops.contrastive_loss import contrastive_loss

Inputs: TypeAlias = Tensor | tuple[Tensor, ...] | list[Tensor] | Mapping[str, Tensor]
Encoder: TypeAlias = Callable[..., Tensor]


def contrastive(
    encode_image: Encoder,
    encode_text: Encoder,
    images: Inputs,
    texts: Inputs,
    scale: Tensor | float,
    chunk: int = 16,
    normalise: bool = True,
) -> Tensor:
    """The loss of B pictures and N >= B captions, the first B of which belong to the pictures, in their order.

    encode_image, encode_text: anything that gives (n, E) for n inputs: modules, methods, lambdas, prepared or not.
    images, texts: a tensor, encode(x); a tuple, encode(*x); a dict, encode(**x). Split along their first dimension.
    scale: of the logits, 1 / temperature. chunk: how many an encoder takes at a time.
    normalise: vectors are made as long as 1, so that the logits are scale * cosine.
    """
    if isinstance(chunk, bool) or not isinstance(chunk, int) or chunk < 1:
        raise ValueError(f"contrastive: expected chunk to be a whole number above 0, got {chunk!r}")
    _check_scale(scale)
    num_images, num_texts = _length("images", images), _length("texts", texts)
    if not 1 <= num_images <= num_texts:
        raise ValueError(
            f"contrastive: expected one image or more and a text for each, got {num_images} images and {num_texts}"
            " texts; the first texts belong to the images, in their order"
        )
    image = _encode("encode_image", encode_image, images, num_images, chunk)
    text = _encode("encode_text", encode_text, texts, num_texts, chunk)
    if image.shape[1] != text.shape[1]:
        raise ValueError(
            f"contrastive: expected vectors of one width, got {image.shape[1]} from encode_image and {text.shape[1]}"
            " from encode_text; project both into one space"
        )
    if normalise:
        image, text = F.normalize(image, dim=-1), F.normalize(text, dim=-1)
    scale = scale if isinstance(scale, Tensor) else image.new_tensor(scale)
    return contrastive_loss(image, text, scale.squeeze())


def _check_scale(scale: Any) -> None:
    if isinstance(scale, Tensor):
        is_one, got = scale.numel() == 1 and not scale.is_complex(), f"{scale.dtype} {tuple(scale.shape)}"
    else:
        is_one, got = isinstance(scale, Real) and not isinstance(scale, bool), repr(scale)
    if not is_one:
        raise ValueError(f"contrastive: expected scale to be a number or a tensor of one number, got {got}")


def _encode(name: str, encode: Encoder, inputs: Inputs, length: int, chunk: int) -> Tensor:
    """(length, E), in fp32 if it comes in 16 bits."""
    is_direct = length <= chunk or not torch.is_grad_enabled()  # nothing would be saved by computing it again
    found = []
    for begin in range(0, length, chunk):
        end = min(begin + chunk, length)
        part = _map(inputs, lambda x, begin=begin, end=end: x[begin:end])  # type: ignore[misc]
        if is_direct:
            y = _call(encode, part)
        else:
            y = checkpoint(_call, encode, part, use_reentrant=False, preserve_rng_state=True)
        found.append(_checked(name, y, end - begin))
    if len({y.shape[1] for y in found}) > 1:
        raise ValueError(
            f"contrastive: expected {name} to give vectors of one width, got {sorted({y.shape[1] for y in found})}"
        )
    return found[0] if len(found) == 1 else torch.cat(found)


def _call(encode: Encoder, part: Inputs) -> Tensor:
    if isinstance(part, Tensor):
        return encode(part)
    return encode(**part) if isinstance(part, Mapping) else encode(*part)


def _checked(name: str, y: Any, length: int) -> Tensor:
    if isinstance(y, Tensor) and y.dim() == 2 and len(y) == length and y.is_floating_point():
        return y.float() if y.dtype in (torch.bfloat16, torch.float16) else y
    got = f"{y.dtype} {tuple(y.shape)}" if isinstance(y, Tensor) else type(y).__name__
    raise ValueError(
        f"contrastive: expected {name} to give vectors ({length}, E) for {length} inputs, got {got};"
        " wrap it in a function that returns that tensor"
    )


def _map(inputs: Inputs, change: Callable[[Tensor], Tensor]) -> Inputs:
    if isinstance(inputs, Tensor):
        return change(inputs)
    if isinstance(inputs, Mapping):
        return {name: change(x) for name, x in inputs.items()}
    return tuple(change(x) for x in inputs)


def _length(name: str, inputs: Inputs) -> int:
    if isinstance(inputs, Tensor):
        parts = {"": inputs}
    elif isinstance(inputs, Mapping):
        parts = {f"[{key!r}]": x for key, x in inputs.items()}
    elif isinstance(inputs, (tuple, list)):
        parts = {f"[{i}]": x for i, x in enumerate(inputs)}
    else:
        parts = {}
    if not parts or not all(isinstance(x, Tensor) and x.dim() for x in parts.values()):
        raise ValueError(
            f"contrastive: expected {name} to be a tensor, or a tuple or dict of tensors, with a row for each of them,"
            f" got {type(inputs).__name__}{_wrong(parts)}"
        )
    lengths = {key: len(x) for key, x in parts.items()}
    if len(set(lengths.values())) > 1:
        what = ", ".join(f"{length} in {name}{key}" for key, length in lengths.items())
        raise ValueError(f"contrastive: expected tensors of one length in {name}, got {what}")
    return next(iter(lengths.values()))


def _wrong(parts: Mapping[str, Any]) -> str:
    for key, x in parts.items():
        if not isinstance(x, Tensor):
            return f" with {type(x).__name__} in {key}"
        if not x.dim():
            return f" with a single number{f' in {key}' if key else ''}"
    return ""
