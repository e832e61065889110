"""The loss of CLIP: each picture finds its caption among all, and each of those captions its picture.

    L = s I T^T
    loss = (mean over rows i of (log sum over j of e^L_ij - L_ii)
          + mean over columns j < B of (log sum over i of e^L_ij - L_jj)) / 2

image I: (B, E), text T: (N, E) with N >= B, scale s: one number. The first B texts belong to the images, the others are
wrong ones to tell apart from them. With P the softmax of the rows, and Q that of the first B columns and 0 elsewhere:

    dL = (P + Q - 2 * identity) / 2 B,   dI = s dL T,   dT = s dL^T I,   ds = sum of I * (dL T) = sum of T * (dL^T I)

The logits are computed once, in fp32 whatever I and T are, and dL takes their place in forward; backward is two
products. Kept for it: dL, (B, N), and the inputs. Radford et al., https://arxiv.org/abs/2103.00020
"""

import torch
import torch.nn.functional as F
from torch import Tensor

from ._tensors import needs_grad, takes_kernel
from ._twice import by_torch_for_graphs, gradients_of
from .cross_entropy import _forward as cross_entropy_forward
from .products import product


def contrastive_loss_reference(image: Tensor, text: Tensor, scale: Tensor) -> Tensor:
    logits = scale * image @ text.t()
    targets = torch.arange(len(image), device=image.device)
    return (F.cross_entropy(logits, targets) + F.cross_entropy(logits[:, : len(image)].t(), targets)) / 2


def _forward(image: Tensor, text: Tensor, scale: Tensor, wants_gradient: bool) -> tuple[Tensor, Tensor]:
    """(the loss, dL or whatever stands there if nobody wants it), of dense fp32."""
    batch = len(image)
    logits = product(image * scale, text.t())
    columns = logits[:, :batch].t().clone(memory_format=torch.contiguous_format)
    targets = torch.arange(batch, device=image.device)
    losses = []
    for part in (logits, columns):
        losses.append(cross_entropy_forward(part, targets, part if wants_gradient else None, -100, 0.0, "mean"))
    if wants_gradient:
        logits[:, :batch] += columns.t()
        logits *= 0.5
    return (losses[0] + losses[1]) / 2, logits


def _by_torch(ctx, dloss):  # type: ignore[no-untyped-def]
    image, text, scale, _ = ctx.saved_tensors
    return tuple(gradients_of(contrastive_loss_reference, [image, text, scale], dloss, ctx.needs_input_grad))


class ContrastiveLossFunction(torch.autograd.Function):
    @staticmethod
    def forward(ctx, image, text, scale):  # type: ignore[no-untyped-def]
        loss, dlogits = _forward(image.contiguous(), text.contiguous(), scale, wants_gradient=True)
        ctx.save_for_backward(image, text, scale, dlogits)
        return loss

    @staticmethod
    @by_torch_for_graphs(_by_torch)
    def backward(ctx, dloss):  # type: ignore[no-untyped-def]
        with torch.autocast("cpu", enabled=False):  # backward inside of the context would cast
            return _backward(ctx, dloss)


def _backward(ctx, dloss):  # type: ignore[no-untyped-def]
    image, text, scale, dlogits = ctx.saved_tensors
    wants_dimage, wants_dtext, wants_dscale = ctx.needs_input_grad
    dimage: Tensor | None = None
    dtext: Tensor | None = None
    dscale = None
    if wants_dimage or not wants_dtext:
        dimage = product(dlogits, text.contiguous())
    if wants_dtext:
        dtext = product(dlogits.t(), image.contiguous())
    if wants_dscale:  # before the scale comes into them: it may be 0
        dscale = ((text * dtext) if dimage is None else (image * dimage)).sum() * dloss
    factor = scale * dloss
    for gradient in (dimage, dtext):
        if gradient is not None:
            gradient.mul_(factor)
    return dimage if wants_dimage else None, dtext, dscale


def contrastive_loss(image: Tensor, text: Tensor, scale: Tensor) -> Tensor:
    """The loss in fp32 of image (B, E) and text (N, E), taken as they are: normalise them first.

    backward() can be repeated with retain_graph=True. Tensors in fp64 go through the reference.
    """
    _check(image, text, scale)
    if not any(x.dtype is torch.float64 for x in (image, text, scale)):
        image, text, scale = image.float(), text.float(), scale.float()
    if torch.is_autocast_enabled("cpu"):
        with torch.autocast("cpu", enabled=False):
            return _loss(image, text, scale)
    return _loss(image, text, scale)


def _loss(image: Tensor, text: Tensor, scale: Tensor) -> Tensor:
    if not takes_kernel(image, text, scale):
        return contrastive_loss_reference(image, text, scale)
    if needs_grad(image, text, scale):
        loss: Tensor = ContrastiveLossFunction.apply(image, text, scale)
        return loss
    return _forward(image.contiguous(), text.contiguous(), scale, wants_gradient=False)[0]


def _check(image: Tensor, text: Tensor, scale: Tensor) -> None:
    if image.dim() != 2 or text.dim() != 2 or image.shape[1] != text.shape[1]:
        raise ValueError(
            "contrastive_loss: expected image (B, E) and text (N, E) of one width,"
            f" got {tuple(image.shape)} and {tuple(text.shape)}"
        )
    if not 1 <= len(image) <= len(text):
        raise ValueError(
            f"contrastive_loss: expected one image or more and a text for each, got {len(image)} images and"
            f" {len(text)} texts; the first texts belong to the images, in their order"
        )
    if scale.dim():
        raise ValueError(f"contrastive_loss: expected scale to be one number, got {tuple(scale.shape)}")
